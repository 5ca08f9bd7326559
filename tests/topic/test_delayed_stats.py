"""Delayed messages count neither as lag nor as a stalled backlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.clock import ManualClock
from pyreplog.topic.model.stats import SubscriptionStats
from pyreplog.topic.owner import delayed_count as delayedcount
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import SMALL, US, nothing_comes, open_cluster, received

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture
def topic(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    with open_cluster(tmp_path, clock=clock) as cluster, cluster.topic("late", **SMALL) as topic:
        yield topic


def stats_of(topic: Topic) -> SubscriptionStats:
    topic.maintain()
    return topic.stats().subscriptions[0]


def test_an_idle_consumer_of_a_delayed_message_is_neither_late_nor_stalled(topic: Topic, clock: ManualClock) -> None:
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
        assert nothing_comes(consumer)
        for _ in range(12):
            clock.advance(10 * SECOND)
            now = stats_of(topic)
            assert (now.backlog_messages, now.delayed, now.stalled, now.lag_s) == (1, 1, False, 0.0)
        topic.publish_batch([b"now", b"now"])
        consumer.acknowledge([message for message in [consumer.receive(timeout=60)] if message is not None])
        consumer.flush()
        assert received(consumer, 1) == [2]
        for _ in range(7):
            clock.advance(10 * SECOND)
            now = stats_of(topic)
        assert (now.stalled, now.delayed) == (True, 1)
        assert now.lag_s == pytest.approx(70), "of the one that is due"
        consumer.acknowledge([2])
        consumer.flush()
        assert stats_of(topic).stalled is False and stats_of(topic).oldest_us is None


def test_a_delayed_message_is_late_from_its_time_on(topic: Topic, clock: ManualClock) -> None:
    """The lag is that of the first due message, also without a consumer."""
    due_us = clock.now_us() + HOUR
    topic.create_subscription("s", type="shared", start="earliest")
    topic.publish(b"later", deliver_at=due_us)
    assert stats_of(topic).oldest_us is None
    clock.advance(HOUR + 30 * SECOND)
    assert stats_of(topic).lag_s == pytest.approx(30)


def test_delayed_messages_of_ordered_subscriptions_count_as_lag(topic: Topic, clock: ManualClock) -> None:
    topic.create_subscription("s", type="exclusive", start="earliest")
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    clock.advance(30 * SECOND)
    assert stats_of(topic).lag_s == pytest.approx(30)


def test_delayed_messages_are_counted_without_a_consumer(topic: Topic, clock: ManualClock) -> None:
    topic.subscribe("s", type="shared", start="earliest").close()
    assert stats_of(topic).delayed == 0, "there is no backlog"
    for hours in (1, 0, 2, 3, 0, 4):
        topic.publish(b"v", deliver_at=clock.now_us() + hours * HOUR if hours else None)
    now = stats_of(topic)
    assert (now.backlog_messages, now.delayed, now.backlog_no_delayed) == (6, 4, 2)
    clock.advance(HOUR)
    assert stats_of(topic).delayed == 3
    with topic.subscribe("s", type="shared") as consumer:
        assert received(consumer, 3) == [0, 1, 4]
        assert stats_of(topic).delayed == 3
        consumer.acknowledge([0, 1, 2])
        consumer.flush()
    assert stats_of(topic).delayed == 2
    topic.publish_batch([b"v"] * 5, deliver_at=[clock.now_us() + HOUR] * 5)
    assert stats_of(topic).delayed == 7
    topic.seek("s", 8)
    assert stats_of(topic).delayed == 3
    topic.seek("s", "earliest")
    assert stats_of(topic).delayed == 8, "nothing is acknowledged any more, and the first one is due"
    clock.set(clock.now_us() - 2 * HOUR)
    assert stats_of(topic).delayed == 9
    topic.clear("s")
    assert stats_of(topic).delayed == 0


def test_ordered_subscriptions_have_no_delayed_messages(topic: Topic, clock: ManualClock) -> None:
    topic.create_subscription("s", type="failover", start="earliest")
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    assert stats_of(topic).delayed == 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the offsets of reads."""
    numbers: list[int] = []
    read = ManagedLedger.read

    def reading(managed: ManagedLedger, offset: int, **options: Any) -> Any:
        numbers.append(offset)
        return read(managed, offset, **options)

    monkeypatch.setattr(ManagedLedger, "read", reading)
    return numbers


def test_stats_read_only_entries_that_were_not_counted_before(
    topic: Topic, clock: ManualClock, reads: list[int]
) -> None:
    topic.create_subscription("s", type="shared", start="earliest")
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    assert stats_of(topic).delayed == 1
    reads.clear()
    assert stats_of(topic).delayed == 1 and not reads
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    assert stats_of(topic).delayed == 2 and reads == [1]


def test_a_long_backlog_is_not_read_to_count_delayed_messages(
    topic: Topic, clock: ManualClock, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create_subscription("s", type="shared", start="earliest")
    for _ in range(12):
        topic.publish(b"later" * 100, deliver_at=clock.now_us() + HOUR)
    monkeypatch.setattr(delayedcount, "BYTES_MAX", 10 * topic.managed.end.size // 12)
    monkeypatch.setattr(delayedcount, "_READ_BYTES_MIN", 1)
    assert stats_of(topic).delayed is None
    assert reads in ([], [0]), "one for the oldest message"
    topic.skip("s", 2)
    assert stats_of(topic).delayed == 10
    monkeypatch.setattr(delayedcount, "MESSAGES_MAX", 9)
    assert stats_of(topic).delayed is None
    topic.skip("s", 1)
    assert stats_of(topic).delayed == 9


def test_reads_between_acknowledged_messages_are_bounded(
    topic: Topic, clock: ManualClock, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has 40 entries, every other one of which is acknowledged."""
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        for _ in range(40):
            topic.publish(b"now")
        consumer.acknowledge(received(consumer, 40)[::2])
        consumer.flush()
    monkeypatch.setattr(delayedcount, "BYTES_MAX", 5 << 14)
    monkeypatch.setattr(delayedcount, "_READ_BYTES_MIN", 5 << 14)
    reads.clear()
    assert topic.stats().subscriptions[0].delayed is None
    assert len(reads) <= 3, "two to count, one for the oldest message"
