"""The segments and ends of a log at one moment, from segment headers and the writer's tail page. No record is read."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.log.segment_header import decode_header
from pyreplog.errors import CorruptionError, FormatVersionError, NotALogError, ReplogError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, tail_page, truncation
from pyreplog.log.headers import read_header
from pyreplog.log.reader import LogReader
from pyreplog.log.segments import PREPARED
from pyreplog.regular_files import open_regular
from pyreplog.tables.slices import NO_PARTITION

_ATTEMPTS = 5
_BLOCK = 512  # bytes in a unit of st_blocks


@dataclass(frozen=True)
class LogEnds:
    """Where a log begins and ends: two positions, and the number of the entry after the last readable one.

    truncations: how often the writer has cut the log; 0 if the log is not being written.
    """

    start: int
    end: int
    end_entry: int
    truncations: int = 0


@dataclass(frozen=True)
class SegmentToRead:
    """A segment, by its header, and the range of it that is read.

    start: offset of the first record. until: offset before which records begin. stop: offset that no record exceeds.
    weight: approximate number of bytes that a scan reads. fault: the error if the file cannot be read.
    """

    path: str
    base: int
    epoch: int = 0
    first_entry: int = 0
    start: int = HEADER_BYTES
    until: int = HEADER_BYTES
    stop: int = HEADER_BYTES
    weight: int = HEADER_BYTES
    fault: ReplogError | None = None


@dataclass(frozen=True)
class LogSnapshot:
    """The segments of a log that have readable records, ascending.

    called: name that tells the log from the others of a read; empty: the name of its directory. partition: of the topic
    `called`; NO_PARTITION: the log is none. aborted: see `RecordFilter`.
    """

    directory: Path
    uuid: bytes
    ends: LogEnds
    segments: tuple[SegmentToRead, ...]
    called: str = ""
    partition: int = NO_PARTITION
    aborted: tuple[tuple[int, int, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of the log in the column `topic` of its rows."""
        return self.called or self.directory.name

    @property
    def numbered(self) -> bool:
        """Whether the entries are numbered by this log; those of a bookie's log are numbered by ledger."""
        return all(segment.first_entry >= 0 for segment in self.segments)

    def up_to(self, end: int, end_entry: int) -> LogSnapshot:
        """Return the snapshot of the log before a position, and the entry that would begin there."""
        ends = replace(self.ends, end=min(self.ends.end, end), end_entry=min(self.ends.end_entry, end_entry))
        segments = tuple(_part(segment, 0, end) for segment in self.segments if segment.base < end)
        return replace(self, ends=ends, segments=segments)

    @property
    def first_entry(self) -> int:
        """Number of the first entry; `end_entry` if the log is empty."""
        intact = [segment.first_entry for segment in self.segments if segment.fault is None]
        return intact[0] if intact else self.ends.end_entry


def ends_of(directory: Path) -> LogEnds:
    """Return where a log begins and ends now.

    A log that was not closed and has no running writer is opened by a reader, which verifies the records after its
    checkpoint. Raises the errors of opening a log for reading.
    """
    page = tail_page.load(directory)
    if page is not None:
        tail, proven = page
        return LogEnds(max(tail.start, proven.start), tail.visible, tail.visible_entry, tail.truncations)
    checkpoint = checkpoints.load(directory)
    if checkpoint is not None and checkpoint.clean and truncation.pending(directory) is None:
        return LogEnds(checkpoint.start, checkpoint.position, checkpoint.entry)
    with closing(LogReader(directory)) as log:
        return LogEnds(log.start_position, log.end_position, log.end)


def take_snapshot(directory: Path, within: tuple[int, int] | None = None) -> LogSnapshot:
    """Return a snapshot of the log in a directory. A segment file that cannot be read has its error in `fault`.

    within: positions of the first record to read and after the last one; other segments are not examined. Raises
    NotALogError, FormatVersionError, and CorruptionError if no header can be read.
    """
    for _ in range(_ATTEMPTS):
        ends = ends_of(directory)
        snapshot = _try_snapshot(directory, ends, within or (0, ends.end))
        if snapshot is not None and ends_of(directory).truncations == ends.truncations:
            return snapshot
    raise NotALogError(f"{directory} was trimmed or cut {_ATTEMPTS} times while its segments were read; try again")


def _try_snapshot(directory: Path, ends: LogEnds, within: tuple[int, int]) -> LogSnapshot | None:
    """Return a snapshot; None: the log was trimmed meanwhile."""
    checkpoint = checkpoints.load(directory)
    bases = [base for base in names.segment_bases(directory) if base < ends.end]
    uuid, size = (checkpoint.uuid, checkpoint.segment_bytes) if checkpoint else _first_header(directory, bases)
    segments = []
    low, high = max(ends.start, within[0]), min(ends.end, within[1])
    for base in range(low // size * size, high, size):
        path = names.segment_path(directory, base)
        try:
            segment = _examine(path, base, uuid, size, ends.end)
        except FileNotFoundError:
            if ends_of(directory).start > base:
                return None
            fault = CorruptionError(path, base, f"a segment of a log that ends at {ends.end}", "no file")
            segment = SegmentToRead(str(path), base, fault=fault)
        if segment.fault is not None or segment.until > HEADER_BYTES:
            segments.append(_part(segment, *within))
    return LogSnapshot(directory, uuid, ends, tuple(segments))


def _part(segment: SegmentToRead, low: int, high: int) -> SegmentToRead:
    """Return the part of a segment between two positions, at which records begin."""
    start, until = max(segment.start, low - segment.base), min(segment.until, high - segment.base)
    if segment.fault is not None or (start, until) == (segment.start, segment.until):
        return segment
    return replace(segment, start=start, until=until, weight=max(min(segment.weight, until - start), 1))


def _first_header(directory: Path, bases: list[int]) -> tuple[bytes, int]:
    """Return (uuid, segment size) of a log that lost its checkpoint."""
    if not bases:
        raise NotALogError(f"{directory} holds no log: no segment and no checkpoint")
    header = read_header(names.segment_path(directory, bases[0]))
    return header.uuid, header.size


def _examine(path: Path, base: int, uuid: bytes, size: int, end: int) -> SegmentToRead:
    fd = open_regular(path, position=base)
    try:
        status, block = os.fstat(fd), os.pread(fd, HEADER_BYTES, 0)
    finally:
        os.close(fd)
    try:
        first, epoch = _check_header(path, block, base, uuid, size, status.st_size)
    except FormatVersionError:
        raise
    except CorruptionError as error:
        return SegmentToRead(str(path), base, fault=error)
    until = min(end - base, size)
    weight = min(until, status.st_blocks * _BLOCK)  # a hole-punched segment has hardly any
    return SegmentToRead(
        str(path), base, epoch, first, until=until, stop=until, weight=max(weight, HEADER_BYTES)
    )  # fmt: skip


def _check_header(path: Path, block: bytes, base: int, uuid: bytes, size: int, length: int) -> tuple[int, int]:
    """Return (first entry, epoch) of a segment file. Raises CorruptionError if it is not the expected segment."""
    header = decode_header(str(path), block)
    if header.uuid != uuid:
        raise CorruptionError(path, base, f"a segment of log {uuid.hex()}", f"one of log {header.uuid.hex()}")
    if header.base != base or header.first_entry == PREPARED:
        actual = f"that at {header.base} (first entry {header.first_entry})"
        raise CorruptionError(path, base, f"the segment at {base}", actual)
    if header.size != size or length != size:
        raise CorruptionError(path, base, f"a file of {size} bytes", f"{length} bytes")
    return header.first_entry, header.epoch
