"""A consumer that is dropped without being closed causes a warning, and other consumers get its messages."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from tests.topic.partitioning import PATIENCE_S, PLAIN, until

VALUES = [b"%d" % at for at in range(8)]
KEYS = [b"%d" % (at % 5) for at in range(8)]


def take(consumer: Any, count: int) -> list[Any]:
    values: list[Any] = []
    while len(values) < count:
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"{len(values)} of {count} came"
        values.append(message)
    return values


def wait_for_warning(warnings: pytest.WarningsRecorder) -> None:
    """Wait for the warning: the thread that delivered the last message may keep a reference for a moment."""
    until(lambda: gc.collect() >= 0 and len(warnings))


def forget(make: Callable[[], Any], take_part: Callable[[Any], None]) -> None:
    """Create a consumer, use it, and drop it."""
    consumer = make()
    take_part(consumer)
    del consumer


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover"])
def test_others_get_what_a_forgotten_consumer_had(place: Any, partitions: int | None, kind: str) -> None:
    topic = place.topic("t", **({} if partitions is None else {"partitions": partitions}), **PLAIN)
    topic.create_subscription("s", start="earliest")
    topic.publish_batch(VALUES, KEYS)
    acked: list[bytes] = []

    def use(consumer: Any) -> None:
        messages = take(consumer, len(VALUES))
        consumer.acknowledge(messages[:3])
        consumer.flush()
        acked.extend(message.value for message in messages[:3])

    with pytest.warns(ResourceWarning, match=r"unclosed consumer forgetful of s on t\b") as warnings:
        forget(lambda: topic.subscribe("s", type=kind, name="forgetful"), use)
        wait_for_warning(warnings)
    assert len([line for line in warnings if line.category is ResourceWarning]) == 1, "once, also of several partitions"

    def consumers() -> int:
        stats = topic.stats()
        (sub,) = (stats if partitions is None else stats.total).subscriptions
        return len(sub.consumers)

    until(lambda: consumers() == 0)
    with topic.subscribe("s", type=kind) as other:
        left = sorted(message.value for message in take(other, len(VALUES) - len(acked)))
        assert left == sorted(set(VALUES) - set(acked))


def test_waiting_consumer_gets_messages_of_a_garbage_collected_one(place: Any) -> None:
    topic = place.topic("t", **PLAIN)
    with pytest.warns(ResourceWarning) as warnings:
        first = topic.subscribe("s", type="shared", start="earliest")
        topic.publish_batch(VALUES)
        take(first, len(VALUES))
        with topic.subscribe("s", type="shared") as second:
            del first
            wait_for_warning(warnings)
            assert [message.value for message in take(second, len(VALUES))] == VALUES


def test_the_finalizer_of_a_consumer_may_run_under_the_lock(tmp_path: Path) -> None:
    """The finalizer may run in a thread that holds the lock of the consumer's subscription."""
    with Cluster.embedded(tmp_path / "c", bookies=1) as cluster:
        topic = cluster.topic("t", **PLAIN)
        consumers = [topic.subscribe("s", type="shared", start="earliest")]
        subscription = topic.subscription("s")
        with pytest.warns(ResourceWarning), subscription._lock:
            consumers.clear()
            gc.collect()
        until(lambda: subscription.consumers == 0)


def test_closing_causes_no_warning(place: Any) -> None:
    """There is also no warning if the topic closes the consumer. (Warnings are errors.)"""
    for partitions in ({}, {"partitions": 2}):
        topic = place.topic(f"t{len(partitions)}", **partitions, **PLAIN)
        consumer = topic.subscribe("s")
        topic.close()
        del consumer, topic
        gc.collect()
