"""Kafka's records as messages of topics on ledgers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidRecordBatchError
from pyreplog.kafka.ledgers.records import PROPERTY, decode_produced, encode_fetched
from pyreplog.record_batches.batches import build_batch, read_batch
from pyreplog.topic.owner.topic import Topic

Header = tuple[bytes, bytes | None]

HEADERS: dict[str, list[Header]] = {
    "none": [],
    "one": [(b"a", b"1")],
    "ordered": [(b"z", b"1"), (b"a", b"2")],
    "empty": [(b"", b"")],
    "null value": [(b"a", None)],
    "repeated name": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")],
    "not UTF-8": [(b"\xff\xfe", b"1"), (b"a", b"\xff")],
    "long name": [(b"n" * 70_000, b"1")],
    "the name of the property": [(PROPERTY.encode(), b"mine"), (b"a", b"1")],
}


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        topic = cluster.topic("orders")
        assert isinstance(topic, Topic)
        yield topic


def publish(topic: Topic, data: bytes) -> None:
    records = decode_produced(data)
    topic.publish_batch(records.values, records.keys, properties=records.properties, event_times=records.event_times)


def fetched(topic: Topic) -> bytes:
    batch = topic.read_at(0).result()
    assert batch is not None
    return encode_fetched(batch)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("value", [b"value", b"", None], ids=["value", "empty", "null"])
def test_a_record_comes_back_as_it_was_produced(topic: Topic, headers: list[Header], value: bytes | None) -> None:
    plain: Iterable[Header] = [(b"h", b"v")]
    publish(topic, build_batch(
        [b"before", value, b"after"], keys=[None, b"", b"k"], timestamps_ms=[1, 1_700_000_000_123, 5],
        headers=[plain, headers, plain],
    ))  # fmt: skip
    header, columns = read_batch(fetched(topic))
    assert (header.base_offset, header.count, header.max_timestamp) == (0, 3, 1_700_000_000_123)
    assert columns.values() == [b"before", value, b"after"]
    assert columns.keys() == [None, b"", b"k"]
    assert columns.timestamp.tolist() == [1, 1_700_000_000_123, 5]
    assert [columns.headers(number) for number in range(3)] == [plain, headers, plain]


def test_a_native_consumer_gets_the_last_value_of_a_header_that_is_repeated(topic: Topic) -> None:
    headers = [[(b"a", b"1"), (b"b", None), (b"a", b"3"), (b"\xff", b"4")]]
    publish(topic, build_batch([None], timestamps_ms=[7], headers=headers))
    batch = topic.read_at(0).result()
    assert batch is not None
    message = batch[0]
    assert (message.value, message.key, message.event_time) == (b"", None, 7_000)
    assert {name: value for name, value in message.properties.items() if name != PROPERTY} == {"a": b"3"}


def test_plain_records_have_no_property_of_kafka(topic: Topic) -> None:
    publish(topic, build_batch([b"v"], timestamps_ms=[7], headers=[[(b"a", b"1")]]))
    batch = topic.read_at(0).result()
    assert batch is not None and batch[0].properties == {"a": b"1"}


def test_a_record_without_a_timestamp_gets_the_time_of_its_publication(topic: Topic) -> None:
    publish(topic, build_batch([b"1", b"2"], timestamps_ms=[-1, 9]))
    batch = topic.read_at(0).result()
    assert batch is not None and batch[0].event_time is None
    times = read_batch(fetched(topic))[1].timestamp.tolist()
    assert times == [int(batch.publish_time[0]) // 1000, 9]


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\x00", b"\x02\x01", b"\x01\x03", b"\x01\x02\x01\0\0\0\xff", b"\x01\x01x"]
)
def test_a_property_of_another_form_is_a_header(topic: Topic, data: bytes) -> None:
    """A native program may have chosen the name."""
    topic.publish(b"v", properties={PROPERTY: data, "a": b"1"})
    columns = read_batch(fetched(topic))[1]
    assert columns.values() == [b"v"]
    assert columns.headers(0) == [(PROPERTY.encode(), data), (b"a", b"1")]


@pytest.mark.parametrize("codec", range(5))
def test_records_of_each_codec_are_decoded(codec: int) -> None:
    values = [b"value %d" % number * 30 for number in range(100)]
    assert decode_produced(build_batch(values, timestamps_ms=[5] * 100, codec=codec)).values == values


def test_records_that_grow_beyond_the_limit_are_refused() -> None:
    data = build_batch([bytes(1 << 20)], timestamps_ms=[1], codec=1)
    with pytest.raises(InvalidRecordBatchError, match="at most 65536 bytes"):
        decode_produced(data, max_uncompressed=1 << 16)


def test_one_batch_is_taken_at_a_time() -> None:
    data = build_batch([b"v"], timestamps_ms=[1])
    with pytest.raises(InvalidRecordBatchError, match="bytes behind it"):
        decode_produced(data + data)
