"""A small log with everything in it, and ways to damage it."""

from __future__ import annotations

from pathlib import Path

import pyreplog
from pyreplog.log import headers, names

SEGMENT_BYTES = 1 << 16
ENTRIES = 1200


def value_of(n: int) -> bytes:
    return b"value %d." % n * (n % 19 + 3)


def key_of(n: int) -> bytes | None:
    return None if n % 3 == 0 else b"key %d" % (n % 7)


def event_time_of(n: int) -> int | None:
    return None if n % 2 else 1_700_000_000_000_000 - n * 1000


def make_log(path: Path) -> None:
    """ENTRIES entries in several segments, with keys, event times and control records, closed cleanly."""
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as log:
        for start in range(0, ENTRIES, 60):
            batch = range(start, start + 60)
            log.append_batch(
                [value_of(n) for n in batch],
                [key_of(n) for n in batch],
                [event_time_of(n) for n in batch],
                control=b"up to %d" % start if start % 180 == 0 else None,
            )


def assert_intact(path: Path, entries: range = range(ENTRIES)) -> None:
    """The log holds these entries of `make_log` and nothing else."""
    with pyreplog.open(path, "r") as log:
        assert (log.start, log.end) == (entries.start, entries.stop)
        records = [record for batch in log.read() for record in batch]
        assert [record.entry for record in records] == list(entries)
        for record in records:
            n = record.entry
            assert (record.value, record.key, record.event_time) == (value_of(n), key_of(n), event_time_of(n))
            assert log.get(n).value == value_of(n)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Invert one bit of a file; twice is as if never."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def segments(path: Path) -> list[Path]:
    """The segment files of a closed log, ascending."""
    return [names.segment_path(path, base) for base in names.segment_bases(path)]


def indexes(path: Path) -> list[Path]:
    return sorted(path.glob("*.idx"))


def first_entries(path: Path) -> list[int]:
    """Number of the first entry of each segment."""
    return [headers.read_header(file).first_entry for file in segments(path)]


def position_of(path: Path, entry: int) -> int:
    with pyreplog.open(path, "r") as log:
        return log.position_of(entry)
