"""`deliver_at` and `delay` of each class that publishes: valid and refused values, and equal signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.topic.client.publishing.delivery_times import EARLIEST_US, delivery_time, delivery_times
from pyreplog.topic.client.publishing.publisher import Publisher
from tests.topic.remoting import PLAIN, ServedCluster

MOMENT = datetime(2033, 5, 18, 3, 33, 20, 7, tzinfo=UTC)
MOMENT_US = 2_000_000_000_000_007
HOUR_US = 3_600_000_000

Topics = dict[str, Any]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with ExitStack() as stack:
        served = ServedCluster(tmp_path_factory.mktemp("cluster"), stack)
        client = served.client()
        for name, partitions in (("news", {}), ("parts", {"partitions": 2})):
            served.cluster.topic(name, **PLAIN, **partitions)
        cluster = served.cluster
        yield {
            "local": cluster.topic("news"), "remote": client.topic("news"),
            "local partitioned": cluster.topic("parts"), "remote partitioned": client.topic("parts"),
        }  # fmt: skip


WHERE = ("local", "remote", "local partitioned", "remote partitioned")


def due_times(topic: Any) -> list[int]:
    """Return the due times of all messages, in ascending order; 0 stands for a message without a delay."""
    places = range(topic.partitions) if hasattr(topic, "partitions") else [None]
    batches = [batch for at in places for batch in (topic.read() if at is None else topic.read(at))]
    return sorted(int(time) for batch in batches for time in batch.deliver_at)


def publish_each_way(topic: Any, **fields: Any) -> None:
    """Publish one message with each method, of the topic and of a producer."""
    columns = {name: value if name == "delay" else [value] for name, value in fields.items()}
    for to in (topic, topic.producer("p")):
        to.publish(b"v", b"k", **fields)
        to.submit(b"v", b"k", **fields).result(30)
        to.publish_batch([b"v"], [b"k"], **columns)
        to.submit_batch(iter([b"v"]), **columns).result(30)


@pytest.mark.parametrize("where", WHERE)
def test_a_moment_is_an_aware_datetime_or_microseconds(topics: Topics, where: str) -> None:
    before = due_times(topics[where])
    for moment in (MOMENT, MOMENT_US, np.int64(MOMENT_US), MOMENT.astimezone(timezone(timedelta(hours=-7)))):
        publish_each_way(topics[where], deliver_at=moment)
    assert due_times(topics[where]) == sorted([*before, *[MOMENT_US] * 32])


@pytest.mark.parametrize("where", WHERE)
def test_a_delay_is_seconds_from_now(topics: Topics, where: str) -> None:
    before = due_times(topics[where])
    now_us = pyreplog.SystemClock().now_us()
    publish_each_way(topics[where], delay=3600)
    later_us = pyreplog.SystemClock().now_us()
    new = due_times(topics[where])
    for time in before:
        new.remove(time)
    assert len(new) == 8
    assert all(now_us + HOUR_US <= time <= later_us + HOUR_US for time in new)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "naive": ({"deliver_at": datetime(2033, 5, 18)}, "deliver_at: expected a datetime with a time zone"),
    "old": ({"deliver_at": datetime(1999, 1, 1, tzinfo=UTC)}, "deliver_at: expected a moment from 2001 on"),
    "seconds": ({"deliver_at": 1_800_000_000}, "look like seconds: multiply by 1,000,000"),
    "milliseconds": ({"deliver_at": 1_800_000_000_000}, "look like milliseconds: multiply by 1,000,"),
    "neither": ({"deliver_at": 5}, "found 5.*: give an aware datetime, or delay="),
    "just before 2001": ({"deliver_at": EARLIEST_US - 1}, "expected microseconds since the epoch, from 2001 on"),
    "the first seconds of 2001": ({"deliver_at": EARLIEST_US // 1_000_000}, "look like seconds"),
    "seconds of 2000": ({"deliver_at": EARLIEST_US // 1_000_000 - 1}, "found 978307199.*: give an aware datetime"),
    "negative": ({"deliver_at": -1}, "from 2001 on, found -1"),
    "nanoseconds": ({"deliver_at": 1_800_000_000_000_000_000}, "look like nanoseconds: divide by 1,000"),
    "both": ({"deliver_at": MOMENT, "delay": 1.0}, "expected deliver_at or delay, found both"),
    "delay is nan": ({"delay": float("nan")}, "delay: expected at most"),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", REFUSED)
def test_publish_with_an_invalid_delivery_time_raises_and_publishes_nothing(
    topics: Topics, where: str, name: str
) -> None:
    fields, message = REFUSED[name]
    topic = topics[where]
    columns = {key: value if key == "delay" else [MOMENT_US, value] for key, value in fields.items()}
    before = due_times(topic)
    for to in (topic, topic.producer("p")):
        for call in (to.publish, to.submit):
            with pytest.raises(InvalidArgumentError, match=message):
                call(b"v", **fields)
        for call in (to.publish_batch, to.submit_batch):
            with pytest.raises(InvalidArgumentError, match=message):
                call([b"v", b"w"], [b"a", b"b"], **columns)
    assert due_times(topic) == before


def test_columns_are_checked_whatever_their_form() -> None:
    for form in (list, tuple, iter, np.array, lambda items: np.array(items, np.uint64)):
        assert list(delivery_times(form([MOMENT_US, 0]))) == [MOMENT_US, 0]
        with pytest.raises(InvalidArgumentError, match="found 1800000000 for message 1: these look like seconds"):
            delivery_times(form([0, 1_800_000_000]))
    assert delivery_times([None, MOMENT, 0]) == [None, MOMENT_US, 0]


def test_delivery_times_follow_from_delays_and_times() -> None:
    clock = ManualClock(MOMENT_US)
    assert delivery_time(None, None, clock) is None
    assert delivery_time(0, None, clock) == 0
    assert delivery_time(None, -5.0, clock) == clock.now_us() == delivery_time(None, 0, clock)
    assert delivery_time(None, 1.5, clock) == clock.now_us() + 1_500_000
    with pytest.raises(WrongTypeError, match="deliver_at: expected an int, of microseconds, or an aware datetime"):
        delivery_time(True, None, clock)
    with pytest.raises(WrongTypeError, match="delay: expected a number of seconds, found timedelta"):
        delivery_time(None, timedelta(seconds=1), clock)  # type: ignore[arg-type]


# ---- signatures ------------------------------------------------------------------------------------------------

TOPIC_CLASSES = (pyreplog.Topic, pyreplog.RemoteTopic, pyreplog.PartitionedTopic, pyreplog.RemotePartitionedTopic)
PRODUCER_CLASSES = (pyreplog.Producer, pyreplog.PartitionedProducer)
PUBLISHING = ("publish", "submit", "publish_batch", "submit_batch")


def parameters(kind: type, name: str) -> list[tuple[str, Any, Any]]:
    values = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.kind, each.default) for each in values]


@pytest.mark.parametrize("name", [*PUBLISHING, "subscribe", "create_subscription", "producer"])
def test_all_topics_have_the_same_signatures(name: str) -> None:
    expected = parameters(pyreplog.Topic, name)
    for kind in TOPIC_CLASSES:
        assert parameters(kind, name) == expected, kind


@pytest.mark.parametrize("name", PUBLISHING)
def test_producers_have_the_signatures_of_topics_but_for_their_name(name: str) -> None:
    expected = [each for each in parameters(Publisher, name) if each[0] != "producer"]
    for kind in PRODUCER_CLASSES:
        assert parameters(kind, name) == expected, kind


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", PUBLISHING)
def test_an_object_has_the_signature_of_its_class(topics: Topics, where: str, name: str) -> None:
    of_object = inspect.signature(getattr(topics[where], name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in of_object] == parameters(type(topics[where]), name)[1:]
