"""Messages of a topic as a record batch: what kafka-python and we read of it is what the messages hold."""

from __future__ import annotations

import warnings
from random import Random

import pytest

from pyreplog._native.kafka.record_batch import ProducedBatch, take_produced
from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.log.attributes import encode_attributes
from pyreplog._native.topic.messages import decode_messages
from pyreplog.errors import InvalidArgumentError
from pyreplog.record_batches.batches import read_batch, transcode
from pyreplog.record_batches.compression import CODECS, decompress
from tests.topic.entries import LEDGER, TIME, decoded, encoded
from tests.topic.twin import TwinMessage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch


def draw(rng: Random, count: int) -> list[TwinMessage]:
    texts = [b"", b"v", b"value" * 50]
    return [
        TwinMessage(
            rng.choice(texts), rng.choice([None, *texts]), rng.choice([None, 5, TIME + rng.randint(0, 1 << 40)]), 0, -1,
            tuple((f"name{i}".encode(), rng.choice(texts)) for i in range(rng.choice([0, 0, 1, 3]))),
        )
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_messages_are_transcoded_to_records(codec: int, seed: int) -> None:
    rng = Random(f"{seed} {codec}")
    for sizes in ([1], [2, 1, 3], [100], [1, 1, 1], [200, 1]):
        entries = [draw(rng, size) for size in sizes]
        messages = [message for entry in entries for message in entry]
        batch = decoded([encoded(entry) for entry in entries], sizes)
        data = transcode(batch, codec=codec, leader_epoch=7)
        header, columns = read_batch(data)
        assert (header.base_offset, header.leader_epoch, header.count) == (0, 7, len(messages))
        times = [(TIME if message.event_time is None else message.event_time) // 1000 for message in messages]
        assert columns.timestamp.tolist() == times and header.max_timestamp == max(times)
        assert columns.keys() == [message.key for message in messages]
        assert columns.values() == [message.value for message in messages]
        assert [columns.headers(i) for i in range(len(columns))] == [list(message.properties) for message in messages]
        assert isinstance(take_produced(data, decompress=decompress), ProducedBatch)
        if codec != CODECS["snappy"]:  # kafka-python wants another package for it
            records = list(DefaultRecordBatch(data))
            assert [(record.offset, record.key, record.value) for record in records] == [
                (number, message.key, message.value) for number, message in enumerate(messages)
            ]


def test_entries_of_one_message_keep_attributes_as_headers() -> None:
    """Their keys, times and properties are those of the record."""
    attributes = [
        encode_attributes(5_000_000, {"a": b"1", "b": b""}, b"me", 3),
        None,
        encode_attributes(None, {"c": b"x"}),
    ]
    entries = encode_entries(
        [b"v", b"", b"w"], [b"k", None, b""], ledger=LEDGER, first=0, lac=-1, time=TIME, attributes=attributes
    )
    records = parse_entries(bytes(entries.view), ledger=LEDGER, first=0, last=9)
    header, columns = read_batch(transcode(decode_messages(records, offset=100, entries=0, size=0)))
    assert header.base_offset == 100
    assert (columns.keys(), columns.values()) == ([b"k", None, b""], [b"v", b"", b"w"])
    assert columns.timestamp.tolist() == [5000, TIME // 1000, TIME // 1000]
    assert [columns.headers(i) for i in range(3)] == [[(b"a", b"1"), (b"b", b"")], [], [(b"c", b"x")]]


def test_transcode_refuses_empty_batches_and_batches_with_gaps() -> None:
    batch = decoded([encoded(draw(Random(1), 4))], [4])
    with pytest.raises(InvalidArgumentError, match="batch: expected messages, found none"):
        transcode(batch.slice(0, 0))
    part = batch.slice(2, 4)
    header, _ = read_batch(transcode(part))
    assert (header.base_offset, header.count) == (2, 2)
    with pytest.raises(InvalidArgumentError, match="found a gap in front of message 1"):
        transcode(batch.select([0, 2]))
