"""Scanning: rows are what the log itself says, verified or by headers alone, however they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.log.attributes import encode_attributes
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import NO_EVENT_TIME
from pyreplog._native.tables.arrow_columns import attribute_column, number_column, value_column, walk
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.errors import InvalidArgumentError
from pyreplog.tables.planning import plan
from tests import samples
from tests.spark.reading import batches_of, column, options_of, read_table


@pytest.fixture
def log(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "orders")
    return tmp_path / "orders"


def micros(times: list[Any]) -> list[int | None]:
    return [None if time is None else round(time.timestamp() * 1e6) for time in times]


@pytest.mark.parametrize("more", [{}, {"batchRows": 7}, {"batchBytes": 1}, {"batchBytes": 3000, "minPartitions": 9}])
def test_rows_of_a_scan_are_the_records_of_the_log(log: Path, more: dict[str, object]) -> None:
    rows = read_table(log, includeHeaders=True, includeMetadata=True, **more).to_pydict()
    with pyreplog.open(log, "r") as reader:
        batches = list(reader.read())
        records = [record for batch in batches for record in batch]
        files = {record.entry: reader.hold_segment(record.position)[1].path for record in records}
    assert rows["key"] == [record.key for record in records]
    assert None in rows["key"]
    assert rows["value"] == [record.value for record in records]
    assert rows["offset"] == rows["entryId"] == [record.entry for record in records] == list(range(samples.ENTRIES))
    assert rows["position"] == [record.position for record in records]
    assert rows["segment"] == [Path(files[record.entry]).name for record in records]
    assert rows["size"] == [len(record.value) for record in records]
    assert rows["crc"] == [int.from_bytes(record.raw[4:8], "little") for record in records]
    assert rows["storedSize"] == [(len(record.raw) + 7) & ~7 for record in records]
    assert micros(rows["timestamp"]) == micros(rows["publishTime"]) == [record.timestamp for record in records]
    assert micros(rows["eventTime"]) == [record.event_time for record in records]
    assert {None, 1_700_000_000_000_000} < set(micros(rows["eventTime"]))
    for name, value in (
        ("topic", "orders"), ("partition", -1), ("timestampType", 1), ("ledgerId", 0), ("producerName", None),
        ("sequenceId", None), ("crcOk", True),
    ):  # fmt: skip
        assert rows[name] == [value] * len(records)
    assert rows["headers"] == [[]] * len(records)


@pytest.mark.parametrize("rows", [1, 2, 10_000])
def test_scan_of_headers_alone_equals_a_verified_scan(log: Path, rows: int) -> None:
    """Also where all records of a batch have neither key nor attributes."""
    names = "offset,timestamp,size,key,eventTime,position,entryId,ledgerId,producerName,sequenceId,headers"
    walked = read_table(log, columns=names, verifyChecksum=False, batchRows=rows)
    assert walked == read_table(log, columns=names, verifyChecksum=True)


def test_values_that_are_not_asked_for_are_not_touched(log: Path) -> None:
    """Every value is something else now, and nothing is verified: nothing notices."""
    before = read_table(log, columns="offset,timestamp,size,key")
    with pyreplog.open(log, "r") as reader:
        records = [
            (record.position, bytes(record.raw), len(record.value)) for batch in reader.read() for record in batch
        ]
    for position, raw, size in records:
        path = samples.segments(log)[position // samples.SEGMENT_BYTES]
        with path.open("r+b") as file:
            file.seek(position % samples.SEGMENT_BYTES + int.from_bytes(raw[:4], "little") - size)
            file.write(b"\xee" * size)
    assert read_table(log, columns="offset,timestamp,size,key") == before
    assert column(log, "value", verifyChecksum=False)[5] == b"\xee" * len(samples.value_of(5))
    with pytest.raises(pyreplog.CorruptionError):
        read_table(log, columns="value")


def test_batches_of_a_scan_are_bounded_in_rows(log: Path) -> None:
    options = options_of(log, batchRows=50, columns="offset")
    sizes = [batch.num_rows for task in plan(options) for batch in batches_of(options, task)]
    assert max(sizes) == 50
    assert sum(sizes) == samples.ENTRIES


def test_batches_of_numbers_are_larger(tmp_path: Path) -> None:
    """They cost less for each row; values are held in memory, and numbers hardly."""
    with pyreplog.open(tmp_path / "log", segment_bytes=8 << 20) as log:
        log.append_batch([b"v"] * 40_000)

    def rows(columns: str, **settings: bool) -> list[int]:
        options = options_of(tmp_path / "log", columns=columns, **settings)
        return [batch.num_rows for task in plan(options) for batch in batches_of(options, task)]

    assert (rows("offset,size"), rows("offset,value")) == ([32_768, 7_232], [10_000] * 4)
    assert rows("offset,value", verifyChecksum=False) == [10_000] * 4, "they are held, checked or not"


def test_columns_in_the_order_asked_for(log: Path) -> None:
    assert read_table(log, columns="size,key").column_names == ["size", "key"]
    assert column(log, "key")[:4] == [None, b"key 1", b"key 2", None]


# ---- attributes ------------------------------------------------------------------------------------------------


def entries_log(path: Path) -> Path:
    """One ledger's entry for each kind of attributes."""
    new_attributes = [
        encode_attributes(5, {"carrier": "UA", "": b"\xff"}, b"writer", 41),
        b"",
        encode_attributes(None, {"carrier": "AA"}, None, 42),
        encode_attributes(-7, None, b"", None),
    ]
    config = LogConfig.of({"segment_bytes": 64 << 10, "durability": "appended"})
    with LedgerLog(path, config) as log:
        for entry, attributes in enumerate(new_attributes):
            log.append(with_attributes(entry, attributes))
    return path


def with_attributes(entry: int, attributes: bytes) -> bytes:
    """The record of ledger 3 with these attributes, made by hand: writers of topics come later."""
    from pyreplog._native.system.checksum import crc32c

    plain = bytes(encode_entries([b"value %d" % entry], None, None, ledger=3, first=entry, lac=-1, time=entry).view)
    if not attributes:
        return plain
    length = int.from_bytes(plain[:4], "little") + 2 + len(attributes)
    head = bytearray(plain[:64])
    head[13] |= 0x20
    body = bytes(head[12:]) + len(attributes).to_bytes(2, "little") + attributes + b"value %d" % entry
    body = body.ljust((length + 7 & ~7) - 12, b"\0")
    return length.to_bytes(4, "little") + crc32c(body, length).to_bytes(4, "little") + bytes(4) + body


def test_attributes_of_records_are_columns(tmp_path: Path) -> None:
    path = entries_log(tmp_path / "log")
    rows = read_table(path, columns="headers,producerName,sequenceId,eventTime,ledgerId,entryId,topic").to_pydict()
    assert rows["headers"] == [
        [{"key": "carrier", "value": b"UA"}, {"key": "", "value": b"\xff"}], [], [{"key": "carrier", "value": b"AA"}], [],
    ]  # fmt: skip
    assert rows["producerName"] == ["writer", None, None, ""]
    assert rows["sequenceId"] == [41, None, 42, None]
    assert micros(rows["eventTime"]) == [5, None, None, -7]
    assert rows["entryId"] == [0, 1, 2, 3]
    assert (rows["ledgerId"], rows["topic"]) == ([3] * 4, [None] * 4)


def test_damaged_text_of_unverified_records_is_read_as_text(tmp_path: Path) -> None:
    """Damaged attributes of records that are not verified: what is read is text, whatever there is."""
    path = entries_log(tmp_path / "log")
    (file, *_) = samples.segments(path)
    file.write_bytes(file.read_bytes().replace(b"writer", b"wr\xffter").replace(b"carrier", b"c\xe9rrier"))
    options = {"columns": "producerName,headers", "verifyChecksum": False}
    rows = read_table(path, **options).to_pydict()
    assert rows["producerName"] == ["wr\ufffdter", None, None, ""]
    assert [pair["key"] for pairs in rows["headers"] for pair in pairs] == ["c\ufffdrrier", "", "c\ufffdrrier"]
    with pytest.raises(pyreplog.CorruptionError):
        read_table(path, columns="producerName", verifyChecksum=True)


# ---- the native side -------------------------------------------------------------------------------------------


def segment_batch(log: Path) -> tuple[Any, RecordBatch]:
    with pyreplog.open(log, "r") as reader:
        _, segment = reader.hold_segment(0)
    return segment, segment.scan(4096, segment.size)


def test_a_walk_is_a_scan_without_the_crc(log: Path) -> None:
    segment, scanned = segment_batch(log)
    walked = walk(segment, 4096, segment.size, until=segment.size, limit=1 << 20)
    for name in ("entry", "position", "size", "timestamp", "key_size", "event_time", "kind", "stride"):
        assert getattr(walked, name).tolist() == getattr(scanned, name).tolist()
    assert walked.next_position == scanned.next_position == segment.size
    few = walk(segment, 4096, segment.size, until=segment.size, limit=3)
    assert few.entry.tolist() == [0, 1, 2]
    rest = walk(segment, few.next_position, segment.size, until=few.next_position + 1, limit=3)
    assert rest.entry.tolist() == [3]
    told = set()
    for record in walked:
        rows = walk(segment, record.position, segment.size, until=segment.size, limit=1)
        assert rows.plain == (record.key is None and not record.attributes)
        told.add(rows.plain)
    assert told == {False, True}


@pytest.mark.parametrize(
    ("offset", "stop", "limit"), [(0, 65536, 1), (4096, 65537, 1), (4096, 4095, 1), (4096, 65536, 0)]
)
def test_a_walk_stays_in_its_segment(log: Path, offset: int, stop: int, limit: int) -> None:
    segment, _ = segment_batch(log)
    with pytest.raises(InvalidArgumentError):
        walk(segment, offset, stop, until=stop, limit=limit)


def test_buffers_of_a_batch_become_columns(log: Path) -> None:
    _, batch = segment_batch(log)
    nulls, valid, offsets, data = value_column(batch)
    assert (nulls, valid) == (0, None)
    assert bytes(data) == b"".join(batch.values())
    assert len(offsets) == 4 * (len(batch) + 1)
    nulls, valid, _ = number_column(batch, 1)
    assert nulls == (batch.event_time == NO_EVENT_TIME).sum() > 0
    assert valid is not None
    assert attribute_column(batch, 3)[0] == len(batch)
    for tag in (0, 256, -1):
        with pytest.raises(InvalidArgumentError, match="tag"):
            attribute_column(batch, tag)
        with pytest.raises(InvalidArgumentError, match="tag"):
            number_column(batch, tag)
