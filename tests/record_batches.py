"""Logs that hold record batches, as tests need them, and what such a log must answer."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pyreplog.config import LogConfig
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader

SEGMENT_BYTES = 64 << 10


class Row(NamedTuple):
    """A record: the number of its first entry, how many entries it has, its value."""

    first: int
    count: int
    value: bytes

    @property
    def last(self) -> int:
        return self.first + self.count - 1


def open_log(path: Path, *, record_batches: bool = True, **settings: Any) -> CommitLog:
    config = LogConfig(**{"segment_bytes": SEGMENT_BYTES, **settings})
    return CommitLog(path, config, create=True, clock=None, files=None, record_batches=record_batches)


def rows_of(log: CommitLog | LogReader) -> list[Row]:
    return [
        Row(record.entry - record.entry_count + 1, record.entry_count, record.value)
        for batch in log.read()
        for record in batch
    ]  # fmt: skip


def fill(log: CommitLog, rng: Random, records: int) -> list[Row]:
    """Single entries, record batches and control records; the rows of what was appended."""
    rows: list[Row] = []
    while len(rows) < records:
        first = log.end
        values = [rng.randbytes(rng.choice((0, 5, 200, 1500))) for _ in range(rng.randint(1, 6))]
        counts = [rng.choice((1, 2, 3, 10, 1000)) for _ in values]
        if rng.random() < 0.5:
            counts = [1] * len(values)
            numbers = log.append_batch(values)
        else:
            numbers = log.append_record_batches(values, counts, control=b"c" if rng.random() < 0.2 else None)
        assert numbers == range(first, first + sum(counts))
        for value, count in zip(values, counts, strict=True):
            rows.append(Row(first, count, value))
            first += count
    return rows


def check_reads(log: CommitLog | LogReader, rows: list[Row], rng: Random) -> None:
    """Every way to read gives these rows."""
    assert (log.start, log.end) == ((rows[0].first, rows[-1].last + 1) if rows else (log.end, log.end))
    assert rows_of(log) == rows
    for row in rng.sample(rows, min(len(rows), 20)):
        for entry in {row.first, rng.randint(row.first, row.last), row.last}:
            record = log.get(entry)
            assert (record.entry, record.entry_count, record.value) == (row.last, row.count, row.value)
            assert log[entry] == row.value and log.position_of(entry) == record.position
            following = next(iter(log.follow(entry, timeout=0)))
            assert (following.entry, following.value) == (row.last, row.value)
        end = min(log.end, row.first + rng.choice((1, 2, 5, 3000)))
        start = rng.randint(max(row.first - 5, log.start), row.last)
        ranged = [record.entry for batch in log.read(start, end) for record in batch]
        assert ranged == [other.last for other in rows if other.first < end and other.last >= start and start < end]
    for batch in log.read(batch_bytes=3000):
        assert batch.entry.tolist() == [record.entry for record in batch]
        assert batch.entry_count.tolist() == [record.entry_count for record in batch]
        assert batch.end - batch.first == int(batch.entry_count.sum())
