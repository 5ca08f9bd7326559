"""The records of a partition's log for people: those of record batches one by one, as far as readers may see."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyreplog._native.kafka.logged_batches import batch_heads, find_batch, read_rows
from pyreplog._native.log.batch import RecordBatch
from pyreplog.cli.shared.output import json_bytes, json_text, raw_lines
from pyreplog.errors import CorruptionError, InvalidRecordBatchError
from pyreplog.log import LogReader
from pyreplog.partition.store.partition_reader import (
    HEAD_ATTRIBUTES,
    HEAD_COUNT,
    HEAD_FOUND,
    HEAD_PRODUCER,
    PartitionReader,
    aborted_ranges,
    in_aborted,
    is_partition,
    partition_name,
    read_history,
)
from pyreplog.record_batches.batches import UNCOMPRESSED_MAX, read_batch
from pyreplog.record_batches.compression import decompress

_CONTROL = 0x20  # of the attributes of a batch
_STEP_BYTES = 16 << 20
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


class ShownRecord(NamedTuple):
    """A record. timestamp: of its producer, or of the log, microseconds since 1970; None: it has none. position: of its
    batch in the log."""

    offset: int
    position: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]


def partition_reader(log: LogReader) -> PartitionReader | None:
    """Return the reader of a partition's log; None: it is another log."""
    return PartitionReader(log) if is_partition(log) else None


class PartitionRecords:
    """The records that a reader of some isolation sees.

    Args:
        log: a partition's log.
        reader: of the log.
        isolation: READ_UNCOMMITTED or READ_COMMITTED.
    """

    def __init__(self, log: LogReader, reader: PartitionReader, isolation: str) -> None:
        self._log, self._reader, self._isolation = log, reader, isolation

    @property
    def end(self) -> int:
        """The offset to stop before now. Raises CorruptionError."""
        committed = self._isolation == READ_COMMITTED
        return (self._reader.last_stable() if committed else self._reader.high_watermark).entry

    def read(self, start: int | None, stop: int | None) -> Iterator[ShownRecord]:
        """Iterate over the records between two offsets; None: the ends of the log.

        Raises:
            CorruptionError: a record, or a record batch, is damaged.
            TrimmedError, OutOfRangeError: as `LogReader.read`.
        """
        end = self.end
        first, stop = self._log.start if start is None else start, end if stop is None else min(stop, end)
        if first >= stop:
            return
        aborted = aborted_ranges(self._reader.aborted()) if self._isolation == READ_COMMITTED else ()
        for batch in self._log.read(first, stop):
            skipped = in_aborted(batch, aborted)
            heads = batch_heads(batch)
            for index in range(len(batch)):
                if skipped is None or not skipped[index]:
                    for record in self._records(batch, index, is_batch=bool(heads[HEAD_FOUND, index])):
                        if first <= record.offset < stop:
                            yield record

    def _records(self, batch: RecordBatch, index: int, *, is_batch: bool) -> Iterator[ShownRecord]:
        record = batch[index]
        if not is_batch:
            headers = [(name.encode(), value) for name, value in record.properties.items()]
            yield ShownRecord(record.entry, record.position, record.timestamp, record.key, record.value, headers)
            return
        try:
            header, columns = read_batch(record.value_view)
        except InvalidRecordBatchError as error:
            raise CorruptionError(
                self._log.path, record.position, f"a record batch with {error.expected}", error.found
            ) from error
        if header.control:
            return
        first = record.entry - record.entry_count + 1
        rows = zip(columns.timestamp.tolist(), columns.keys(), columns.values(), strict=True)
        for at, (time_ms, key, value) in enumerate(rows):
            time_us = None if time_ms < 0 else time_ms * 1000
            yield ShownRecord(first + at, record.position, time_us, key, value, columns.headers(at))


def damaged_batches(log: LogReader) -> Iterator[CorruptionError]:
    """Iterate over the record batches whose inner checksum, counts or records are wrong, in records that are intact.

    It ends at the first record that is damaged itself, which `check` of `log.fsck` reports.
    """
    batches = log.read()
    while True:
        try:
            batch = next(batches, None)
        except CorruptionError:
            return
        if batch is None:
            return
        at = find_batch(batch, 0)
        while at < len(batch):
            rows = read_rows(
                batch, at, decompress, verified=True, max_bytes=_STEP_BYTES, max_batch_bytes=UNCOMPRESSED_MAX
            )  # fmt: skip
            at = rows.stop
            if rows.error is not None:
                record = batch[at]
                first = record.entry - record.entry_count + 1
                expected = f"records {first} to {record.entry} in a record batch with {rows.error.expected}"
                yield CorruptionError(log.path, record.position, expected, rows.error.found)
                at += 1
            at = find_batch(batch, at)


class ShownRecordPrinter:
    """Prints records of partitions as `RecordPrinter` does entries: raw, or as one JSON object on each line."""

    def __init__(self, *, as_json: bool, keys: bool) -> None:
        self._json, self._keys = as_json, keys
        self._out = sys.stdout.buffer

    def print(self, record: ShownRecord) -> None:
        if self._json:
            self._out.write(json_text(_fields(record)).encode() + b"\n")
            return
        key = (record.key or b"") + b"\t" if self._keys else b""
        self._out.write(raw_lines([key + (record.value or b"")]))

    def flush(self) -> None:
        self._out.flush()


def _fields(record: ShownRecord) -> dict[str, Any]:
    return {
        "entry": record.offset, "position": record.position, "timestamp": record.timestamp,
        "key": _json(record.key), "value": _json(record.value),
        "headers": [{"key": json_bytes(name), "value": _json(value)} for name, value in record.headers],
    }  # fmt: skip


def _json(data: bytes | None) -> str | dict[str, str] | None:
    return None if data is None else json_bytes(data)


def partition_fields(log: LogReader, reader: PartitionReader) -> dict[str, Any]:
    """Return what `stat` says of a partition: high watermark, last stable offset, epochs, producers, batches, records.

    All of the log is read. Raises CorruptionError.
    """
    name, batches, records, markers, messages = partition_name(log.path.resolve()), 0, 0, 0, 0
    producers = set[int]()
    for batch in log.read():
        heads = batch_heads(batch)
        control = heads[HEAD_ATTRIBUTES] & _CONTROL != 0
        found = heads[HEAD_FOUND] != 0
        batches, markers = batches + int(found.sum()), markers + int(control.sum())
        records += int(heads[HEAD_COUNT][~control].sum())
        messages += int((~found).sum())
        producers.update(heads[HEAD_PRODUCER][found & (heads[HEAD_PRODUCER] >= 0)].tolist())
    epochs = [
        {"epoch": start.term.number, "leader": start.term.master, "start": start.start.entry}
        for start in read_history(log).starts
    ]
    return {
        "topic_id": None if name is None else name.topic_id, "partition": None if name is None else name.number,
        "high_watermark": reader.high_watermark.entry, "high_watermark_known": reader.is_high_watermark_known,
        "last_stable_offset": reader.last_stable().entry, "epochs": epochs, "producers": sorted(producers),
        "batches": batches, "records": records, "markers": markers, "messages": messages,
        "aborted_transactions": len(reader.aborted()),
    }  # fmt: skip
