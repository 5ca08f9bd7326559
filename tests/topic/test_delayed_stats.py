"""What waits for its time lags behind nothing, and stalls nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.topic import topics as topics_module
from pyreplog.topic.statistics.stats import SubscriptionStats
from pyreplog.topic.topic import Topic
from tests.topic.handling import SMALL, US, nothing_comes, open_cluster, received

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture
def topic(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    monkeypatch.setattr(topics_module, "LOOK_S", 86_400.0)
    with open_cluster(tmp_path, clock=clock) as cluster, cluster.topic("late", **SMALL) as topic:
        yield topic


def told(topic: Topic) -> SubscriptionStats:
    topic.look()
    return topic.stats().subscriptions[0]


def test_an_idle_consumer_of_a_delayed_message_is_neither_late_nor_stalled(topic: Topic, clock: ManualClock) -> None:
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
        assert nothing_comes(consumer)
        for _ in range(12):
            clock.advance(10 * SECOND)
            now = told(topic)
            assert (now.backlog_messages, now.delayed, now.stalled, now.lag_s) == (1, 1, False, 0.0)
        topic.publish_batch([b"now", b"now"])
        consumer.acknowledge([message for message in [consumer.receive(timeout=60)] if message is not None])
        consumer.flush()
        assert received(consumer, 1) == [2]
        for _ in range(7):
            clock.advance(10 * SECOND)
            now = told(topic)
        assert (now.stalled, now.delayed) == (True, 1)
        assert now.lag_s == pytest.approx(70), "of the one that is due"
        consumer.acknowledge([2])
        consumer.flush()
        assert told(topic).stalled is False and told(topic).oldest_us is None


def test_a_delayed_message_is_late_from_its_time_on(topic: Topic, clock: ManualClock) -> None:
    """Also while nobody is connected, of the first one."""
    due_us = clock.now_us() + HOUR
    topic.create_subscription("s", type="shared", start="earliest")
    topic.publish(b"later", deliver_at=due_us)
    assert told(topic).oldest_us is None
    clock.advance(HOUR + 30 * SECOND)
    assert told(topic).lag_s == pytest.approx(30)


def test_those_in_order_are_late_whatever_they_are_delayed_by(topic: Topic, clock: ManualClock) -> None:
    topic.create_subscription("s", type="exclusive", start="earliest")
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    clock.advance(30 * SECOND)
    assert told(topic).lag_s == pytest.approx(30)


def test_without_a_consumer_it_is_not_known_how_many_are_delayed(topic: Topic, clock: ManualClock) -> None:
    topic.subscribe("s", type="shared", start="earliest").close()
    assert told(topic).delayed == 0, "there is no backlog"
    topic.publish(b"later", deliver_at=clock.now_us() + HOUR)
    assert told(topic).delayed is None
    with topic.subscribe("s", type="shared") as consumer:
        assert nothing_comes(consumer)
        assert told(topic).delayed == 1
    assert told(topic).delayed is None
