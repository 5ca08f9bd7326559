"""Recovery: find the end of a log, and tell a torn tail from corruption.

A record that is not intact is *corruption* if it lies before the checkpoint, if a later intact record claims that an
entry at or behind it was synced, or if it lies before the end that a writer of this boot has published (a kill tears
no record, since the page cache outlives a process). Otherwise all bytes from it on are a *torn tail*: what a power cut
left of appends that were never acknowledged as durable. docs/guarantees.md, "Torn or corrupt", has the rule. RocketMQ
and Kafka cut at the first bad record wherever it lies, and lose the records that follow.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import CorruptionError, NotALogError
from pyreplog.log import names, tail_page
from pyreplog.log.checkpoint import Checkpoint
from pyreplog.log.files import Files
from pyreplog.log.headers import read_header
from pyreplog.log.segments import PREPARED
from pyreplog.log.truncation import Truncation

logger = logging.getLogger(__name__)

ENTRY, BLANK = -8, -9  # statuses of a record with a wrong number, and of the end of a segment: _native/log/record.pxd
_COPY_BYTES = 1 << 20
_BLANK_BYTES = 32  # bytes of a blank that are written; the rest of its segment is zeros


@dataclass(frozen=True)
class SegmentFile:
    """A segment file as its header describes it."""

    base: int
    first_entry: int
    epoch: int
    version: int
    path: Path


@dataclass
class SegmentListing:
    """The segment files of a log directory.

    files: segments of the log, ascending and without a gap. dropped: files with records behind a gap, where a segment
    never reached the disk. strays: files that are no part of the log (prepared, recycled or removed segments).
    """

    uuid: bytes
    size: int
    files: list[SegmentFile] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)


@dataclass
class RecoveryResult:
    """The result of `recover`. `end` is a position, `entry` the number that the next append gets."""

    survey: SegmentListing
    checkpoint: Checkpoint
    end: int
    entry: int
    opened: list[Segment] = field(
        default_factory=list
    )  # segments from the checkpoint on, indexed; the last one is the active one
    sealed: bool = True  # the last segment ends in a blank, or there is none: the next append begins a segment
    cut: bool = False  # there is a torn tail
    cut_stop: int = 0  # offset behind the last byte of the torn tail, in the last segment
    cut_records: int = 0  # intact records in the torn tail; at least 1 if a writer of this boot had appended there
    last_time: int = 0
    replica: bool = False  # the log is a copy: its records claim what was synced on the master's disk
    appended_end: int = 0  # a writer of this boot had appended up to this position: only damage destroys records

    @property
    def files(self) -> list[SegmentFile]:
        return self.survey.files


def survey(directory: Path, checkpoint: Checkpoint | None, stop: Truncation | None = None) -> SegmentListing:
    """List the segment files of a directory, and check their names, sizes and headers.

    A header is one sector that was synced before the file got its name, or still that of the recycled segment: a header
    that is not intact is damage.

    checkpoint: of the log; None: it has none. stop: a truncation under way; segments behind it are strays.

    Raises NotALogError if there is neither a segment nor a checkpoint; CorruptionError if a file is missing, damaged,
    of another log, or has the name of another segment.
    """
    listing = SegmentListing(checkpoint.uuid, checkpoint.segment_bytes) if checkpoint else SegmentListing(b"", 0)
    start, proven = (checkpoint.start, checkpoint.position) if checkpoint else (0, 0)
    for base in names.segment_bases(directory):
        path = names.segment_path(directory, base)
        if base < start or (stop is not None and base >= stop.position):
            listing.strays.append(path)  # its removal has not reached the disk, or is not complete
            continue
        header = read_header(path)
        if not listing.uuid:
            listing.uuid, listing.size = header.uuid, header.size
        if header.uuid != listing.uuid:
            raise CorruptionError(
                path, base, f"a segment of log {listing.uuid.hex()}", f"one of log {header.uuid.hex()}"
            )
        if header.size != listing.size or path.stat().st_size != header.size:
            raise CorruptionError(path, base, f"a file of {listing.size} bytes", f"{path.stat().st_size} bytes")
        if header.base != base or header.first_entry == PREPARED:
            if base < proven:
                actual = f"that at {header.base} (first entry {header.first_entry})"
                raise CorruptionError(path, base, f"the segment at {base}", actual)
            listing.strays.append(path)
        else:
            _add_segment(listing, SegmentFile(base, header.first_entry, header.epoch, header.version, path), checkpoint)
    if checkpoint is None and not listing.files:
        raise NotALogError(f"{directory}: no segment of a pyreplog log")
    end = listing.files[-1].base + listing.size if listing.files else start
    if proven > end:
        missing = names.segment_path(directory, end)
        raise CorruptionError(missing, end, f"a log synced up to {proven}", "no segment file")
    return listing


def _add_segment(listing: SegmentListing, file: SegmentFile, checkpoint: Checkpoint | None) -> None:
    """Add a segment with records to the listing: to `files`, or to `dropped` if it lies behind a gap.

    Raises CorruptionError if a segment before it is missing.
    """
    if listing.files:
        expected = listing.files[-1].base + listing.size
    else:
        expected = checkpoint.start if checkpoint else file.base
    strays = {int(path.stem) for path in listing.strays}
    while expected < file.base and expected in strays:
        expected += listing.size  # a power cut may leave such a gap: the header of the segment never reached the disk
    if expected != file.base and not listing.dropped:
        missing = file.path.with_name(f"{expected:020d}.log")
        raise CorruptionError(missing, expected, "a segment file", f"none; the next is at {file.base}")
    if listing.dropped or not _is_adjacent(listing, file, checkpoint):
        listing.dropped.append(file.path)
    else:
        listing.files.append(file)


def _is_adjacent(listing: SegmentListing, file: SegmentFile, checkpoint: Checkpoint | None) -> bool:
    if listing.files:
        return listing.files[-1].base + listing.size == file.base
    return checkpoint is None or checkpoint.start == file.base


def recover(
    directory: Path, files: Files, checkpoint: Checkpoint | None, *, writable: bool, stop: Truncation | None = None
) -> RecoveryResult:
    """Verify the records from the checkpoint's segment on, and find the end of the log. Changes nothing on disk.

    The cost is that of a scan from the checkpoint's segment to the end, not of the whole log.

    checkpoint: of the log; None: it has none, and all segments are verified. writable: open the segments for writing.
    stop: a truncation under way; the records behind it do not count.

    Raises the errors of `survey`, and CorruptionError if a record is damaged that is no part of a torn tail.
    """
    listing = survey(directory, checkpoint, stop)
    if checkpoint is None:
        logger.warning("%s: no intact checkpoint; verifying all %d segments", directory, len(listing.files))
        checkpoint = _assumed_checkpoint(listing)
    result = RecoveryResult(listing, checkpoint, checkpoint.position, checkpoint.entry)
    result.replica = (directory / names.REPLICA).exists()
    if stop is None and not result.replica:
        result.appended_end = tail_page.appended(directory, checkpoint)
    result.cut_records = sum(_torn_records_of_file(files, path)[2] for path in listing.dropped)
    for number in range(_first_unproven(listing.files, checkpoint.position), len(listing.files)):
        file = listing.files[number]
        segment = Segment(files.open(file.path, writable=writable), str(file.path), writable=writable)
        offset, status = _verify(result, segment, stop)
        if stop is not None and stop.position == result.end:
            break
        if status != BLANK:
            _check_torn_tail(result, segment, offset, status, listing.files[number + 1 :], files)
            listing.dropped[:0] = [later.path for later in listing.files[number + 1 :]]
            del listing.files[number + 1 :]
            break
        if number + 1 < len(listing.files):
            _check_follows(listing.files[number + 1], result.entry)
            segment.close_file()  # there may be thousands of segments, more than descriptors
    result.cut = result.cut or bool(listing.dropped)
    result.last_time = _last_time(result.opened)
    return result


def _assumed_checkpoint(listing: SegmentListing) -> Checkpoint:
    """Return a checkpoint in place of a lost one: at the first segment, so that all records are verified."""
    first = listing.files[0]
    return Checkpoint(
        uuid=listing.uuid,
        segment_bytes=listing.size,
        start=first.base,
        position=first.base,
        entry=max(first.first_entry, 0),
        epoch=max(file.epoch for file in listing.files) + 1,
        clean=False,
    )


def _first_unproven(files: list[SegmentFile], position: int) -> int:
    """Return the number of the first file to verify.

    If the checkpoint lies between two segments, that is the segment before it, whose blank is verified.
    """
    return max((i for i, file in enumerate(files) if file.base < position), default=0)


def _verify(result: RecoveryResult, segment: Segment, stop: Truncation | None) -> tuple[int, int]:
    segment.index = SparseIndex(segment.size)
    extent = segment.size if stop is None else min(segment.size, stop.position - segment.base)
    offset, status = segment.verify(segment.index, HEADER_BYTES, extent)
    result.opened.append(segment)
    result.end, result.sealed = segment.base + offset, status == BLANK
    result.entry = segment.entry_after(segment.index.entries)
    segment.advance(offset, result.sealed)
    return offset, status


def _check_follows(file: SegmentFile, entry: int) -> None:
    if 0 <= file.first_entry != entry:
        raise CorruptionError(file.path, file.base, f"first entry {entry}", f"{file.first_entry}")


def _last_time(opened: list[Segment]) -> int:
    """Return the append time of the last record; 0 if there is no record."""
    for segment in reversed(opened):
        if segment.index:
            offset, newest = segment.index.block(len(segment.index) - 1)[1], 0
            while offset < segment.end:
                _, _, _, newest, length = segment.head_at(offset)
                offset += (length + 7) & ~7
            return newest
    return 0


def _check_torn_tail(
    result: RecoveryResult, segment: Segment, offset: int, status: int, later: list[SegmentFile], files: Files
) -> None:
    """Decide whether the record at `offset`, which is not intact, begins a torn tail; if so, set `cut` in the result.

    status: why the record is not intact. later: the segments that follow.

    Raises CorruptionError if the record is damaged.
    """
    position = segment.base + offset
    if position < result.checkpoint.position:
        raise segment.fault(offset, status)
    result.cut_stop = offset
    if result.checkpoint.clean and position == result.checkpoint.position and not later:
        return
    claimed, stop, records = torn_records(segment, offset)
    result.cut_records += records
    for file in later:
        intact, _, records = _torn_records_of_file(files, file.path)
        claimed, result.cut_records = max(claimed, intact), result.cut_records + records
    claims = claimed >= result.entry and not result.replica
    was_appended = position < result.appended_end and (stop > offset or result.cut_records > 0)
    if segment.first_entry >= 0 and (claims or was_appended):
        raise segment.fault(offset, status)
    result.cut_records = max(result.cut_records, int(was_appended))  # of a log of ledgers: other bookies have copies
    result.cut, result.cut_stop = stop > offset, stop


def _torn_records_of_file(files: Files, path: Path) -> tuple[int, int, int]:
    return torn_records(Segment(files.open(path, writable=False), str(path), writable=False), HEADER_BYTES)


def torn_records(segment: Segment, offset: int) -> tuple[int, int, int]:
    """Find the intact records of a segment from `offset` on, where one is not intact.

    Returns the highest entry that a record claims was synced, -1 if there is none; the offset behind the last record or
    beginning of a record, `offset` if there is none; and the number of intact records.
    """
    claimed, stop, records = -1, offset, 0
    if offset + 32 <= segment.size and segment.stamp_at(offset) == segment.stamp:
        stop = min(offset + max(segment.head_at(offset)[4], 32), segment.size)
    at = offset
    while (at := segment.find_intact(at, segment.size)) >= 0:
        _, _, synced, _, length = segment.head_at(at)
        claimed = max(claimed, synced)
        at += (length + 7) & ~7
        stop, records = max(stop, at), records + 1
    return claimed, stop, records


def _cut_bytes(result: RecoveryResult) -> Iterator[tuple[str, memoryview]]:
    if result.opened:
        segment = result.opened[-1]
        length = max(result.cut_stop - segment.end, 0)
        yield f"{result.end:020d}.cut", segment.view(segment.end, length)
    for path in result.survey.dropped:
        yield path.name, memoryview(path.read_bytes())


def set_aside(directory: Path, files: Files, end: int, cut: Iterable[tuple[str, memoryview]]) -> Path:
    """Copy the bytes that will be cut into a new folder of `aside/`, durably; return the folder.

    end: position from which on the log is cut. cut: (file name, bytes) of each copy.
    """
    folder = directory / names.ASIDE / f"{end:020d}-{time.time_ns():020d}"
    files.make_directory(folder)
    for name, data in cut:
        files.write_new_synced(folder / name, data)
    files.sync_directory(folder)
    return folder


def cut(directory: Path, files: Files, result: RecoveryResult) -> None:
    """Copy the torn tail to `aside/`, and durably remove it from the log.

    Order: copies synced, the rest of the segment zeroed and synced, later files removed from the last one down.
    """
    folder = set_aside(directory, files, result.end, _cut_bytes(result))
    logger.warning(
        "%s: torn tail cut at position %d (entry %d), %d intact records in it; its bytes are kept in %s",
        directory,
        result.end,
        result.entry,
        result.cut_records,
        folder,
    )
    if result.opened and not result.sealed:
        zero_rest(files, result.opened[-1], result.opened[-1].end)
    for path in reversed(result.survey.dropped):  # one sync each: a disk may reorder removals, and leave a gap
        remove(directory, files, [path])


def remove(directory: Path, files: Files, paths: list[Path]) -> None:
    """Remove segment files and their indexes, the last one first, durably."""
    for path in reversed(paths):
        for side in (".idx", ".led"):
            files.remove(path.with_suffix(side))
        files.remove(path)
    if paths:
        files.sync_directory(directory)


def zero_rest(files: Files, segment: Segment, offset: int) -> None:
    """Durably zero a segment from `offset` on."""
    zero(files, segment, offset, segment.used_end(offset))
    files.sync(segment.fileno())


def zero(files: Files, segment: Segment, start: int, stop: int) -> None:
    """Zero bytes [start, stop) of a segment's file."""
    zeros = memoryview(bytes(_COPY_BYTES))
    for at in range(start, stop, _COPY_BYTES):
        files.write(segment.fileno(), zeros[: min(_COPY_BYTES, stop - at)], at)


def rewrite_unproven(files: Files, result: RecoveryResult) -> None:
    """Write and sync the records behind the checkpoint again.

    Recovery has read them from the page cache. A sync that failed before the crash may have left pages there that are
    marked as clean, but not on disk.
    """
    for segment in result.opened:
        with _file_of(segment, files):
            _rewrite(files, segment, max(result.checkpoint.position - segment.base, 0) & ~4095)


@contextlib.contextmanager
def _file_of(segment: Segment, files: Files) -> Iterator[None]:
    """Give a segment a descriptor in a `with` block."""
    if segment.fileno() >= 0:
        yield
        return
    segment.set_file(files.open(Path(segment.path), writable=True))
    try:
        yield
    finally:
        segment.close_file()


def _rewrite(files: Files, segment: Segment, start: int) -> None:
    stop = segment.end + _BLANK_BYTES if segment.sealed else segment.end
    for at in range(start, stop, _COPY_BYTES):
        files.write(segment.fileno(), segment.bytes_at(at, min(_COPY_BYTES, stop - at)), at)
    if segment.sealed:
        zero(files, segment, stop, segment.used_end(stop))
    if start < stop:
        files.sync(segment.fileno())


def check_directory(path: Path) -> None:
    """Check that a path can be the directory of a log, and that what has the name of a log's file is a file.

    To open a pipe would block for ever, and a dangling link may lead to a disk that is not mounted.

    Raises NotALogError if the path is a file; CorruptionError if a directory, a pipe or a dangling link has the name of
    one of the log's files.
    """
    if path.exists() and not path.is_dir():
        raise NotALogError(f"{path} is a file; a log is a directory")
    for other in names.no_files(path):
        occupant = "a directory" if other.is_dir() else "something else" if other.exists() else "a link to nowhere"
        raise CorruptionError(other, int(other.stem) if other.stem.isdigit() else 0, "a file", occupant)
