"""The clock is set: timers of the time of day are checked again, and durations are not affected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.cluster import Cluster
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import SMALL, US, nothing_comes, open_cluster, received

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture
def cluster(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without periodic maintenance of its topics."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    monkeypatch.setattr(topics_module, "CLOCK_S", 0.02)
    with open_cluster(tmp_path, clock=clock) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[Topic]:
    with cluster.topic("set", **SMALL, deduplicate=True) as topic:
        yield topic


def test_a_step_forward_delivers_what_is_due_by_then(
    topic: Topic, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server whose clock was an hour late delivers the message at once, and does not wait for another hour."""
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        assert nothing_comes(consumer)
        clock.set(clock.now_us() + HOUR + SECOND)
        assert received(consumer, 1) == [0]
    assert "the clock was set forward by 3601.000 s" in caplog.text


def test_a_step_back_delays_by_as_much(topic: Topic, clock: ManualClock) -> None:
    topic.publish(b"later", deliver_at=clock.now_us() + SECOND // 10)
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        clock.set(clock.now_us() - HOUR)
        clock.advance(SECOND)
        topic.publish(b"now")
        assert received(consumer, 1) == [1]
        assert nothing_comes(consumer)
        clock.advance(HOUR)
        topic.publish(b"now")
        assert sorted(received(consumer, 2)) == [0, 2]


def test_a_message_is_given_to_others_when_its_time_is_over_not_when_the_clock_is_set(
    topic: Topic, clock: ManualClock
) -> None:
    topic.publish(b"slow")
    with topic.subscribe("s", type="shared", start="earliest", ack_timeout_ms=60_000) as consumer:
        assert received(consumer, 1) == [0]
        for step in (HOUR, -2 * HOUR):
            clock.set(clock.now_us() + step)
            topic.publish(b"next")
            received(consumer, 1)
            assert nothing_comes(consumer)
        clock.advance(100 * SECOND)
        topic.publish(b"last")
        assert sorted(received(consumer, 4)) == [0, 1, 2, 3]


def test_unused_subscriptions_are_not_deleted_by_the_clock(topic: Topic, clock: ManualClock) -> None:
    topic.configure(subscription_expiry_ms=60_000)
    topic.create_subscription("idle")
    clock.set(clock.now_us() + 24 * HOUR)
    assert not topic.maintenance.is_due()
    topic.maintain()
    assert topic.subscriptions() == ["idle"]
    clock.set(clock.now_us() - 48 * HOUR)
    clock.advance(61 * SECOND)
    assert topic.maintenance.is_due()
    topic.maintain()
    assert topic.subscriptions() == []


def test_producers_are_not_forgotten_by_the_clock(cluster: Cluster, topic: Topic, clock: ManualClock) -> None:
    """A duplicate is recognized after the clock was corrected, also by the next owner."""
    topic.publish(b"once", producer="p", sequence=7)
    clock.set(clock.now_us() + 24 * HOUR)
    topic.publish(b"other", producer="q", sequence=1)
    topic.maintain()
    assert topic.publish(b"once", producer="p", sequence=7) == -1
    topic.close()
    with cluster.topic("set") as again:
        again.publish(b"other", producer="q", sequence=2)
        again.maintain()
        assert again.publish(b"once", producer="p", sequence=7) == -1
        clock.advance(7 * HOUR)
        again.publish(b"other", producer="q", sequence=3)
        again.maintain()
        assert again.publisher.last_sequence("p") == -1, "six hours are over"


def test_a_backlog_is_not_stalled_because_the_clock_was_set(topic: Topic, clock: ManualClock) -> None:
    with topic.subscribe("s", start="earliest") as consumer:
        topic.publish_batch([b"a", b"b"])
        consumer.acknowledge(received(consumer, 1))
        consumer.flush()
        topic.maintain()
        acked_us = topic.stats().subscriptions[0].last_acked_us
        clock.set(clock.now_us() + HOUR)
        stats = topic.stats().subscriptions[0]
        assert not stats.stalled and stats.last_acked_us == acked_us + HOUR, "a moment ago, on the clock as it is now"
        clock.advance(61 * SECOND)
        assert topic.stats().subscriptions[0].stalled
