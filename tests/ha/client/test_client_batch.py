"""Records of a batch: a client encodes them, a master verifies and appends them, and a client parses stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.ha.client_batch import append_received, encode_record, encode_records, parse_records
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, RecordTooLargeError
from pyreplog.log.commit_log import CommitLog
from tests.record_batches import open_log

VALUES = [b"a", b"", b"c" * 1000]
KEYS = [b"k", None, b""]
TIMES = [None, 7, -7]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as opened:
        yield opened


def test_a_batch_arrives_as_it_was(log: CommitLog) -> None:
    data, count = encode_records(VALUES, KEYS, TIMES)
    assert count == 3
    first, position = append_received(log, data, count, 0, b"control")
    assert (first, position) == (0, log.end_position)
    assert [(record.value, record.key) for record in log.follow(0, timeout=0)] == list(zip(VALUES, KEYS, strict=True))
    assert [log.get(entry).event_time for entry in range(3)] == TIMES
    assert [record.value for record in log.control_records()] == [b"control"]


def test_properties_of_a_client_are_in_the_record(log: CommitLog) -> None:
    append_received(log, encode_record(b"v", b"k", 5, {"a": "b", "c": b"d"}), 1, 0, None)
    record = log.get(0)
    assert (record.event_time, dict(record.properties)) == (5, {"a": b"b", "c": b"d"})


def test_append_received_skips_entries_that_the_log_already_has(log: CommitLog) -> None:
    data, count = encode_records(VALUES)
    append_received(log, data, count, 2, None)
    assert log[:] == VALUES[2:]
    with pytest.raises(InvalidArgumentError, match="skip"):
        append_received(log, data, count, 3, None)


def test_a_batch_goes_over_segments(log: CommitLog) -> None:
    values = [bytes([n]) * 5000 for n in range(60)]
    data, count = encode_records(values)
    append_received(log, data, count, 0, b"control")
    assert log[:] == values


@pytest.mark.parametrize("at", range(40))
def test_a_damaged_byte_is_found_before_anything_is_written(log: CommitLog, at: int) -> None:
    data, count = encode_records([b"first", b"second"])
    offset = len(data) // 2 + at
    end = log.end_position
    spoiled = data[:offset] + bytes((data[offset] ^ 0x10,)) + data[offset + 1 :]
    with pytest.raises(InvalidRecordsError):
        append_received(log, spoiled, count, 0, b"control")
    assert (log.end, log.end_position) == (0, end)


def sealed(attributes: bytes) -> bytes:
    """Return a record with these attribute bytes and a correct CRC."""
    record = bytearray(encode_record(b"v", None, None, {"n" * max(len(attributes) - 6, 0): b"v"}))
    begin = 34
    assert len(attributes) + begin <= len(record)
    record[32:34] = len(attributes).to_bytes(2, "little")
    record[begin : begin + len(attributes)] = attributes
    length = begin + len(attributes) + 1
    record = record[: length + 7 & ~7]
    record[:4] = length.to_bytes(4, "little")
    record[length:] = bytes(len(record) - length)
    record[4:8] = crc32c(bytes(record[12:]), length).to_bytes(4, "little")
    return bytes(record)


@pytest.mark.parametrize(
    ("attributes", "is_whole"),
    [
        (b"\x01\x08\x00" + b"t" * 8, True),
        (b"\x02\x03\x00\x01\x00nv" * 1, False),  # a byte after them that is no attribute
        (b"\x02\x04\x00\x01\x00nv", True),
        (b"\x02\x04\x00\x09\x00nv", False),  # a name longer than its property
        (b"\x02\x01\x00x", False),
        (b"\x01\x07\x00" + b"t" * 7, False),
        (b"\x02\x04\x00\x01\x00nv\x01\x08\x00" + b"t" * 8, False),  # in descending order
        (b"\x01\x08\x00" + b"t" * 8 + b"\x01\x08\x00" + b"t" * 8, False),  # the same name twice
        (b"\x02\xff\xff\x01\x00nv", False),
        (b"\x07\x01\x00x", True),  # of a later version
    ],
)
def test_records_with_cut_attributes_are_refused(log: CommitLog, attributes: bytes, is_whole: bool) -> None:
    record = sealed(attributes)
    if is_whole:
        append_received(log, record, 1, 0, None)
        assert log[0] == record[34 + len(attributes) :][:1]
    else:
        with pytest.raises(InvalidRecordsError):
            append_received(log, record, 1, 0, None)
        assert log.end == 0


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_append_received_refuses_a_wrong_record_count(log: CommitLog, count: int) -> None:
    data, _ = encode_records([b"first", b"second"])
    with pytest.raises(InvalidRecordsError):
        append_received(log, data, count, 0, None)
    with pytest.raises(InvalidRecordsError):
        append_received(log, data[:-8], 2, 0, None)
    assert log.end == 0


def test_a_record_of_a_log_is_none_of_a_batch(log: CommitLog) -> None:
    """A record of a log has a stamp, a time and a position."""
    log.append(b"own")
    with pytest.raises(InvalidRecordsError):
        append_received(log, bytes(log.get(0).raw), 1, 0, None)


def test_a_record_that_fits_into_no_segment(log: CommitLog) -> None:
    data, count = encode_records([b"x" * (1 << 16)])
    with pytest.raises(RecordTooLargeError):
        append_received(log, data, count, 0, None)
    assert log.end == 0


def test_stored_records_are_parsed(log: CommitLog) -> None:
    log.append_batch([b"0", b"1" * 9])
    log.append_batch([b"2"], control=b"between")
    batch = next(log.read(1, 3))
    parsed = parse_records(bytes(batch.buffer), batch[0].position, 1)
    assert parsed.values() == [b"1" * 9, b"2"] and parsed.entry.tolist() == [1, 2] and parsed.end == 3
    for column in ("position", "size", "key_size", "stride", "timestamp"):
        assert getattr(parsed, column).tolist() == getattr(batch, column).tolist(), column
    assert parsed.next_position == batch.position[0] + len(batch.buffer) == log.end_position


def test_stored_records_that_take_several_numbers_are_parsed(tmp_path: Path) -> None:
    with open_log(tmp_path / "batches") as log:
        log.append_record_batches([b"0", b"1", b"2"], [5, 3, 1])
        batch = next(log.read(6))
        parsed = parse_records(bytes(batch.buffer), batch[0].position, batch.first)
        assert (batch.first, parsed.first, parsed.end) == (5, 5, 9)
        assert parsed.entry.tolist() == batch.entry.tolist() == [7, 8]
        assert parsed.entry_count.tolist() == [3, 1] and parsed.values() == [b"1", b"2"]


def test_stored_records_that_are_damaged_or_others(log: CommitLog) -> None:
    log.append_batch([b"0" * 10, b"1" * 10, b"2" * 10])
    data = bytes(next(log.read()).buffer)
    stride = len(data) // 3
    assert parse_records(data, 4096, 0).values() == log[:]
    for spoiled in (
        b"",
        data[:-8],
        data + data[:8],
        data[:stride] + data[2 * stride :],
        data[: stride + 40] + b"x" + data[stride + 41 :],
    ):
        with pytest.raises(InvalidRecordsError):
            parse_records(spoiled, 4096, 0)
    with pytest.raises(InvalidRecordsError, match="the next entry number"):
        parse_records(data[:stride] + data[2 * stride :], 4096, 0)
    with pytest.raises(InvalidRecordsError):
        parse_records(data[stride:], 4096, 0)  # entry 1 cannot become entry 0, as its segment would begin before 0
