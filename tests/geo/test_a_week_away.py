"""A target is unreachable for a week of simulated time.

The messages that are kept for it are bounded, metrics and alarms report the state, and the target gets all kept
messages afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import BacklogFullError
from pyreplog.geo.metrics import geo_metrics
from pyreplog.geo.policy import GeoBacklogPolicy, ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.topic.owner.topic import Topic
from tests.geo.sites import SYNCED, Site, has_all, has_stored, values
from tests.topic.handling import US
from tests.topic.remoting import Wire
from tests.waiting import until

STEP_US = 4 * 3_600_000_000
STEPS = 7 * 6
PER_STEP = 3
VALUE_BYTES = 1000
BOUND = 30 * VALUE_BYTES
SLACK = 4 * VALUE_BYTES
"""Room for entries that are published before the limit is noticed, and for the headers around their values."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture
def a(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    with Site(tmp_path / "a", clock) as site:
        yield site


@pytest.fixture
def b(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    with Site(tmp_path / "b", clock) as site:
        yield site


class Publisher:
    """A thread that publishes as many messages as `order` asks for, one after the other."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._orders = threading.Semaphore(0)
        self.ordered = self.done = 0
        self.accepted: list[int] = []
        threading.Thread(target=self._run, daemon=True).start()

    def order(self, count: int) -> None:
        self.ordered += count
        self._orders.release(count)

    @property
    def is_done(self) -> bool:
        return self.done == self.ordered

    @property
    def is_held(self) -> bool:
        return self._topic.stats().publishing == "held"

    @property
    def refused(self) -> int:
        return self.done - len(self.accepted)

    def _run(self) -> None:
        while True:
            self._orders.acquire()
            try:
                self._topic.publish(b"%d," % self.done + bytes(VALUE_BYTES))
            except BacklogFullError:
                pass
            else:
                self.accepted.append(self.done)
            self.done += 1


def kept_bytes(topic: Topic) -> int:
    """Return the bytes of messages that cannot be trimmed."""
    topic.trim()
    return topic.managed.end.size - topic.managed.start.size


def numbers(topic: Topic) -> list[int]:
    return [int(value.partition(b",")[0]) for value in values(topic)]


def metrics_of(replicator: Replicator, clock: ManualClock) -> dict[str, float]:
    """Return the metrics of a replication by name."""
    metrics = geo_metrics([replicator.status()], clock.now_us())
    return {
        metric.name.removeprefix("pyreplog_geo_"): float(metric.samples[0][-1]) for metric in metrics if metric.samples
    }


def until_later(clock: ManualClock, condition: Callable[[], bool]) -> None:
    """Wait for a condition while simulated time passes, so that attempts that failed are repeated."""

    def advance_and_check() -> bool:
        clock.advance(10_000)
        return condition()

    until(advance_and_check)


@pytest.mark.parametrize("backlog_policy", ["hold", "error", "detach"])
def test_a_target_is_away_for_a_week(a: Site, b: Site, clock: ManualClock, backlog_policy: GeoBacklogPolicy) -> None:
    topic = a.topic(**{**SYNCED, "retention_bytes": 0, "roll_entries": 1})
    b.topic(**SYNCED)
    policy = ReplicationPolicy(targets=("b",), backlog_bytes=BOUND, backlog_policy=backlog_policy)
    publisher = Publisher(topic)
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address, policy=policy)
        publisher.order(3)
        has_all(replicator, 3)
        until(lambda: topic.trim() >= 2)  # once these are trimmed, this cluster has stored the position of the target
        assert not metrics_of(replicator, clock)["alarm"]
        with wire.apart():
            most = 0
            for _ in range(STEPS):
                publisher.order(PER_STEP)
                until(lambda: publisher.is_done or publisher.is_held)
                most = max(most, kept_bytes(topic))
                clock.advance(STEP_US)
            assert BOUND / 2 < most < BOUND + SLACK, "the disk fills, or nothing was kept for the target"
            state = metrics_of(replicator, clock)
            if backlog_policy == "detach":
                assert replicator.status().state == "detached"
                assert state["alarm"] == 1
                assert "backlog_bytes" in replicator.status().alarm
                assert publisher.is_done and not publisher.refused
            else:
                assert state["oldest_unsent_seconds"] > 6 * 24 * 3600, "the alarm of who watches the age"
                assert (publisher.refused > 0) is (backlog_policy == "error")
                assert publisher.is_held is (backlog_policy == "hold")
        if backlog_policy == "detach":
            assert numbers(b.topic()) == [0, 1, 2], "it was sent messages before anybody decided"
            replicator.resync()
        until_later(clock, lambda: topic.stats().publishing == "open")
        until_later(clock, lambda: publisher.is_done)
        publisher.order(3)
        until_later(clock, lambda: publisher.is_done)
        until_later(clock, lambda: has_stored(replicator, topic.end))
        status = replicator.status()
    assert (status.state, status.alarm, status.unsent_messages) == ("running", "", 0)
    stored = numbers(b.topic())
    lost = dict(status.skipped).get("lost", 0)
    assert len(stored) + lost == len(publisher.accepted), status
    if backlog_policy == "detach":
        assert lost > STEPS
        assert stored == [0, 1, 2, *range(publisher.done - len(stored) + 3, publisher.done)]
    else:
        assert not lost
        assert stored == publisher.accepted
