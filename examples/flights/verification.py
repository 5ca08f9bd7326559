"""Whether a log holds exactly what the CSV file holds, found out without pyreplog's own reading of CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

from crc32c import crc32c

from pyreplog import LogReader, RecordBatch


class Mismatch(Exception):
    """Something is not as it must be."""


def rows(table: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Bytes, tail number and scheduled departure (microseconds since the epoch) of every row."""
    with table.open("rb") as file:
        names = next(file).rstrip(b"\n").split(b",")
        tail, hour, minute = (names.index(name) for name in (b"tailnum", b"time_hour", b"minute"))
        for line in file:
            row = line.rstrip(b"\n")
            fields = row.split(b",")
            begins = datetime.strptime(fields[hour].decode(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            yield row, fields[tail], (int(begins.timestamp()) + 60 * int(fields[minute])) * 1_000_000


def verify(log: LogReader, table: Path) -> int:
    """Compare every entry with its row; returns how many there are. Mismatch names the first that differs."""
    expected = rows(table)
    number = 0
    for batch in log.read():
        found = zip(batch.entry.tolist(), batch.values(), batch.keys(), batch.event_time.tolist(), strict=True)
        for entry, value, key, event_time in found:
            row = next(expected, None)
            if entry != number or row != (value, key, event_time):
                raise Mismatch(f"entry {entry}: {(value, key, event_time)}, expected entry {number}: {row}")
            number += 1
    if next(expected, None) is not None:
        raise Mismatch(f"the log ends with entry {number - 1}, the file goes on")
    return number


def same(found: Iterable[RecordBatch], expected: Iterable[RecordBatch]) -> int:
    """Compare entry with entry; returns how many there are. Mismatch: one differs, or one side has more."""
    pairs = zip_longest(_entries(found), _entries(expected))
    count = 0
    for mine, theirs in pairs:
        if mine != theirs:
            raise Mismatch(f"entry {count}: {mine}, expected {theirs}")
        count += 1
    return count


def _entries(batches: Iterable[RecordBatch]) -> Iterator[tuple[bytes, bytes | None, int]]:
    for batch in batches:
        yield from zip(batch.values(), batch.keys(), batch.event_time.tolist(), strict=True)


def crc_of_rows(table: Path) -> int:
    """CRC-32C of all rows end to end, without line ends."""
    return crc32c(b"".join(table.read_bytes().split(b"\n")[1:]))
