"""Invalid arguments are refused with a typed error, here and by a client of a server, which goes on as before."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, ConfigError, InvalidArgumentError, OutOfRangeError, ReplogError, WrongTypeError
from pyreplog.times import EPOCH, moment_at, moment_us
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.client import Client, connect
from tests.topic.remoting import PATIENCE_S, PLAIN
from tests.waiting import until

WEST = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14)))
"""A moment whose year is beyond those of UTC datetimes."""

OF_TOPICS: dict[str, tuple[Callable[[Any], object], type[ReplogError]]] = {
    "the name of a consumer": (lambda topic: topic.subscribe("t", name=7), WrongTypeError),
    "the name of a subscription": (lambda topic: topic.subscribe(b"t"), WrongTypeError),
    "durable": (lambda topic: topic.subscribe("t", durable=None), WrongTypeError),
    "priority": (lambda topic: topic.subscribe("t", priority=1.5), WrongTypeError),
    "a large priority": (lambda topic: topic.subscribe("t", priority=1 << 31), InvalidArgumentError),
    "start": (lambda topic: topic.subscribe("t", start=1.5), WrongTypeError),
    "a moment": (lambda topic: topic.subscribe("t", start=WEST), InvalidArgumentError),
    "properties": (lambda topic: topic.create_subscription("t", properties=1.5), WrongTypeError),
    "a property": (lambda topic: topic.create_subscription("t", properties={"a": 1.5}), ReplogError),
    "a setting": (lambda topic: topic.configure(ttl_ms=b"x"), ReplogError),
    "no setting": (lambda topic: topic.configure(bogus=1), ConfigError),
    "whom to seek": (lambda topic: topic.seek([], 0), WrongTypeError),
    "when to seek": (lambda topic: topic.seek("s", WEST), InvalidArgumentError),
    "how many to skip": (lambda topic: topic.skip("s", b"x"), WrongTypeError),
    "skipping less than none": (lambda topic: topic.skip("s", -1), InvalidArgumentError),
    "where to skip to": (lambda topic: topic.skip_to("s", None), WrongTypeError),
    "whom to clear": (lambda topic: topic.clear({}), WrongTypeError),
    "whom to delete": (lambda topic: topic.delete_subscription(b"s"), WrongTypeError),
    "where to read to": (lambda topic: list(topic.read(0, "x")), WrongTypeError),
    "when to read from": (lambda topic: list(topic.read(WEST)), InvalidArgumentError),
}

OF_CONSUMERS: dict[str, tuple[Callable[[Consumer], object], type[ReplogError]]] = {
    "a negative offset": (lambda consumer: consumer.acknowledge(-1), OutOfRangeError),
    "one that no topic has": (lambda consumer: consumer.acknowledge([0, 1 << 63]), OutOfRangeError),
    "all up to a negative offset": (lambda consumer: consumer.acknowledge_cumulative(-1), OutOfRangeError),
    "to refuse a negative offset": (lambda consumer: consumer.nack(-1), OutOfRangeError),
    "a delay of text": (lambda consumer: consumer.nack(1, delay="soon"), WrongTypeError),  # type: ignore[arg-type]
    "a delay that is none": (lambda consumer: consumer.nack(1, delay=math.nan), InvalidArgumentError),
    "a delay for ever": (lambda consumer: consumer.nack(1, delay=math.inf), InvalidArgumentError),
    "a moment": (lambda consumer: consumer.seek(WEST), InvalidArgumentError),
    "a wait of text": (lambda consumer: consumer.receive_batch("soon"), WrongTypeError),  # type: ignore[arg-type]
    "a flush of text": (lambda consumer: consumer.flush("soon"), WrongTypeError),  # type: ignore[arg-type]
}


@pytest.fixture
def topic(place: Cluster | Client) -> Iterator[Any]:
    with place.topic("news", **PLAIN) as topic:
        topic.create_subscription("s", start="earliest")
        topic.publish_batch([b"%d" % at for at in range(8)])
        yield topic


def test_invalid_arguments_of_topics_raise_typed_errors(topic: Any) -> None:
    for step, (call, error) in OF_TOPICS.items():
        with pytest.raises(ReplogError) as caught:
            call(topic)
        assert isinstance(caught.value, error), f"{step}: {caught.value!r}"
    assert topic.subscriptions() == ["s"]
    topic.skip("s", 1 << 70)  # all messages
    assert topic.stats().subscriptions[0].backlog_messages == 0


def test_invalid_arguments_of_consumers_do_not_disturb_other_consumers(topic: Any) -> None:
    with topic.subscribe("s") as consumer, topic.subscribe("other", start="earliest") as other:
        assert other.receive(max_messages=8, timeout=PATIENCE_S)
        for step, (call, error) in OF_CONSUMERS.items():
            with pytest.raises(ReplogError) as caught:
                call(consumer)
            assert isinstance(caught.value, error), f"{step}: {caught.value!r}"
        consumer.acknowledge(0)
        consumer.flush(PATIENCE_S)
        topic.publish(b"more")
        until(lambda: consumer.receive(timeout=PATIENCE_S).value == b"more")
        assert other.receive(timeout=PATIENCE_S).value == b"more", "nothing comes again: its connection was not lost"


def test_an_empty_list_changes_nothing(topic: Any) -> None:
    """`receive(n, timeout)` returns an empty list after its time-out, which may be acknowledged like any other."""
    with topic.subscribe("s") as consumer:
        for empty in ([], (), iter([]), np.array([], np.int64)):
            consumer.acknowledge(empty)
            consumer.nack(empty)
            consumer.acknowledge_cumulative(empty)
        consumer.flush(PATIENCE_S)
        assert topic.stats().subscriptions[0].backlog_messages == 8
        consumer.acknowledge(consumer.receive(max_messages=8, timeout=PATIENCE_S))
        consumer.flush(PATIENCE_S)
        assert topic.stats().subscriptions[0].backlog_messages == 0
    with pytest.raises(ClosedError):
        consumer.acknowledge([])


def test_an_empty_list_in_a_coroutine(topic: Any) -> None:
    async def acknowledge() -> bytes:
        consumer.acknowledge([])
        consumer.nack([])
        message = await consumer.receive_async()
        consumer.acknowledge([message])
        return bytes(message.value)

    with topic.subscribe("s") as consumer:
        assert asyncio.run(acknowledge()) == b"0"


def test_bytes_as_offsets_are_refused(topic: Any) -> None:
    with topic.subscribe("s") as consumer:
        for strange in (b"\x00\x01", bytearray(b"\x00"), memoryview(b"\x00"), "0"):
            with pytest.raises(WrongTypeError, match=f"messages: expected messages.*found {type(strange).__name__}"):
                consumer.acknowledge(strange)
        consumer.flush(PATIENCE_S)
        assert topic.stats().subscriptions[0].backlog_messages == 8


def test_numbers_of_batches_are_offsets(topic: Any) -> None:
    """Integers of numpy, as columns have them."""
    (batch,) = topic.read()
    assert [len(part) for part in topic.read(batch.offset[2], batch.offset[5])] == [3]
    assert topic.seek("s", batch.offset[6]) == 6
    topic.skip_to("s", batch.offset[7])
    topic.skip("s", batch.offset[1])
    assert topic.stats().subscriptions[0].backlog_messages == 0
    with topic.subscribe("s") as consumer:
        assert consumer.seek(batch.offset[3]) == 3
        assert consumer.receive(timeout=PATIENCE_S).offset == 3
        consumer.acknowledge(batch.offset[3])


def test_plain_offset_for_a_partitioned_topic_raises_wrong_type_error(place: Cluster | Client) -> None:
    with place.topic("parts", partitions=2, **PLAIN) as parts:
        parts.create_subscription("s")
        with pytest.raises(WrongTypeError):
            parts.seek("s", np.int64(0))
        with pytest.raises(WrongTypeError):
            parts.subscribe("s", start=np.int64(0))
        with parts.subscribe("s") as consumer, pytest.raises(WrongTypeError):
            consumer.seek(np.int64(0))


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), EPOCH])
def test_every_moment_of_utc_can_be_sought(topic: Any, moment: datetime) -> None:
    assert moment_at(moment_us("start", moment)) == moment
    where = 8 if moment > datetime.now(UTC) else 0
    assert topic.seek("s", moment) == where
    with topic.subscribe("s") as consumer:
        assert consumer.seek(moment) == where


def test_a_moment_without_a_time_zone_is_no_place(topic: Any) -> None:
    naive = datetime(2033, 5, 18)
    calls: list[Callable[[], object]] = [
        lambda: topic.seek("s", naive), lambda: topic.subscribe("t", start=naive), lambda: topic.read(naive),
        lambda: topic.create_subscription("t", start=naive),
    ]  # fmt: skip
    with topic.subscribe("s") as consumer:
        for call in (*calls, lambda: consumer.seek(naive)):
            with pytest.raises(InvalidArgumentError, match="start: expected a datetime with a time zone, found"):
                call()
    assert topic.subscriptions() == ["s"]


@pytest.mark.parametrize("url", ["pyreplog://", "pyreplog://a", "pyreplog://a:b", "pyreplog://a:1,b:70000", "http://a"])
def test_a_url_of_no_server(url: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        connect(url)
