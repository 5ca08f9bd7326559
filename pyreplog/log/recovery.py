"""Opening a log: what is there, what of it is proven, and where it ends.

A record that is not intact is *corruption* when it lies below the checkpoint, or when a later intact record claims an
entry at or above it as synced, or below the end that a writer of this boot told (a kill tears nothing: the page cache
outlives a process); otherwise everything from it on is a *torn tail*: bytes that a power cut left of appends
nobody was told were durable. docs/guarantees.md, "Torn or corrupt", has the rule. RocketMQ and Kafka cut at the first
bad record wherever it lies, and lose what follows.
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

ENTRY, BLANK = -8, -9  # statuses of a record with a wrong number, of the end of a segment: _native/log/record.pxd
_COPY_BYTES = 1 << 20
_BLANK_BYTES = 32  # what is written of a blank; behind it there are zeros


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
    """The files of a log directory.

    files: in use, ascending and without a gap. dropped: they hold records, but a file in front of them never reached
    the disk. strays: no part of the log (prepared, recycled, removed).
    """

    uuid: bytes
    size: int
    files: list[SegmentFile] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)


@dataclass
class RecoveryResult:
    """What `recover` found. `end` is a position, `entry` the number the next append gets."""

    survey: SegmentListing
    checkpoint: Checkpoint
    end: int
    entry: int
    opened: list[Segment] = field(
        default_factory=list
    )  # from the checkpoint on, indexed; the last one is the active one
    sealed: bool = True  # the last segment ends in a blank, or there is none: the next append starts another
    cut: bool = False  # there is a torn tail
    cut_stop: int = 0  # offset in the last segment after the last byte that is cut
    cut_records: int = 0  # intact ones among what is cut, and one that a writer of this boot had told of
    last_time: int = 0
    replica: bool = False  # of another log: what records claim to be synced was so on its master's disk
    told: int = 0  # position before which a writer of this boot had appended all: only damage takes some of it away

    @property
    def files(self) -> list[SegmentFile]:
        return self.survey.files


def survey(directory: Path, checkpoint: Checkpoint | None, stop: Truncation | None = None) -> SegmentListing:
    """Look at all segment files: name, size and header. With `stop`, those of a log cut there.

    A header is one sector that was synced before the file got its name, or is still that of the file's earlier life:
    one that is not intact is damage. Errors: NotALogError; CorruptionError for a file that is missing, damaged, of
    another log, or in another's place.
    """
    listing = SegmentListing(checkpoint.uuid, checkpoint.segment_bytes) if checkpoint else SegmentListing(b"", 0)
    start, proven = (checkpoint.start, checkpoint.position) if checkpoint else (0, 0)
    for base in names.segment_bases(directory):
        path = names.segment_path(directory, base)
        if base < start or (stop is not None and base >= stop.position):
            listing.strays.append(path)  # its removal never reached the disk, or is under way
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
            _place(listing, SegmentFile(base, header.first_entry, header.epoch, header.version, path), checkpoint)
    if checkpoint is None and not listing.files:
        raise NotALogError(f"{directory}: no segment of a pyreplog log")
    end = listing.files[-1].base + listing.size if listing.files else start
    if proven > end:
        missing = names.segment_path(directory, end)
        raise CorruptionError(missing, end, f"a log synced up to {proven}", "no segment file")
    return listing


def _place(listing: SegmentListing, file: SegmentFile, checkpoint: Checkpoint | None) -> None:
    """Add a file in use behind the others."""
    if listing.files:
        expected = listing.files[-1].base + listing.size
    else:
        expected = checkpoint.start if checkpoint else file.base
    strays = {int(path.stem) for path in listing.strays}
    while expected < file.base and expected in strays:
        expected += listing.size  # prepared, but its header never reached the disk: a gap that a power cut may leave
    if expected != file.base and not listing.dropped:
        missing = file.path.with_name(f"{expected:020d}.log")
        raise CorruptionError(missing, expected, "a segment file", f"none; the next is at {file.base}")
    if listing.dropped or not _joins(listing, file, checkpoint):
        listing.dropped.append(file.path)
    else:
        listing.files.append(file)


def _joins(listing: SegmentListing, file: SegmentFile, checkpoint: Checkpoint | None) -> bool:
    if listing.files:
        return listing.files[-1].base + listing.size == file.base
    return checkpoint is None or checkpoint.start == file.base


def recover(
    directory: Path, files: Files, checkpoint: Checkpoint | None, *, writable: bool, stop: Truncation | None = None
) -> RecoveryResult:
    """Verify all from the checkpoint's segment on and find the end. Changes nothing on disk.

    stop: a truncation under way: what lies behind it does not count.

    The cost is that of scanning from the checkpoint's segment to the end, not that of the log.
    """
    listing = survey(directory, checkpoint, stop)
    if checkpoint is None:
        logger.warning("%s: no intact checkpoint; verifying all %d segments", directory, len(listing.files))
        checkpoint = _assumed(listing)
    result = RecoveryResult(listing, checkpoint, checkpoint.position, checkpoint.entry)
    result.replica = (directory / names.REPLICA).exists()
    if stop is None and not result.replica:
        result.told = tail_page.appended(directory, checkpoint)
    result.cut_records = sum(_remains_of_file(files, path)[2] for path in listing.dropped)
    for number in range(_first_unproven(listing.files, checkpoint.position), len(listing.files)):
        file = listing.files[number]
        segment = Segment(files.open(file.path, writable=writable), str(file.path), writable=writable)
        offset, status = _verify(result, segment, stop)
        if stop is not None and stop.position == result.end:
            break
        if status != BLANK:
            _judge(result, segment, offset, status, listing.files[number + 1 :], files)
            listing.dropped[:0] = [later.path for later in listing.files[number + 1 :]]
            del listing.files[number + 1 :]
            break
        if number + 1 < len(listing.files):
            _check_follows(listing.files[number + 1], result.entry)
            segment.close_file()  # there may be thousands
    result.cut = result.cut or bool(listing.dropped)
    result.last_time = _last_time(result.opened)
    return result


def _assumed(listing: SegmentListing) -> Checkpoint:
    """In place of a lost checkpoint: nothing is proven."""
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
    """Number of the first file to verify. A checkpoint at a boundary takes the file before it: for its blank."""
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
    """Append time of the last record there is."""
    for segment in reversed(opened):
        if segment.index:
            offset, newest = segment.index.block(len(segment.index) - 1)[1], 0
            while offset < segment.end:
                _, _, _, newest, length = segment.head_at(offset)
                offset += (length + 7) & ~7
            return newest
    return 0


def _judge(
    result: RecoveryResult, segment: Segment, offset: int, status: int, later: list[SegmentFile], files: Files
) -> None:
    """Decide whether the records that stop at `offset` stop there by a torn write or by corruption."""
    position = segment.base + offset
    if position < result.checkpoint.position:
        raise segment.fault(offset, status)
    result.cut_stop = offset
    if result.checkpoint.clean and position == result.checkpoint.position and not later:
        return
    claimed, stop, records = torn_records(segment, offset)
    result.cut_records += records
    for file in later:
        intact, _, records = _remains_of_file(files, file.path)
        claimed, result.cut_records = max(claimed, intact), result.cut_records + records
    claims = claimed >= result.entry and not result.replica
    was_there = position < result.told and (stop > offset or result.cut_records > 0)
    if segment.first_entry >= 0 and (claims or was_there):
        raise segment.fault(offset, status)
    result.cut_records = max(result.cut_records, int(was_there))  # other bookies have copies
    result.cut, result.cut_stop = stop > offset, stop


def _remains_of_file(files: Files, path: Path) -> tuple[int, int, int]:
    return torn_records(Segment(files.open(path, writable=False), str(path), writable=False), HEADER_BYTES)


def torn_records(segment: Segment, offset: int) -> tuple[int, int, int]:
    """What is left of this segment's records from `offset` on: (highest entry they claim was synced or -1, offset
    after the last of them; `offset` when there is none, not even the beginning of one; how many are intact)."""
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
    """Copy what is about to be cut from position `end` on, as (file name, bytes), into a folder of `aside/`, durably;
    returns the folder."""
    folder = directory / names.ASIDE / f"{end:020d}-{time.time_ns():020d}"
    files.make_directory(folder)
    for name, data in cut:
        files.write_new_synced(folder / name, data)
    files.sync_directory(folder)
    return folder


def cut(directory: Path, files: Files, result: RecoveryResult) -> None:
    """Set aside and durably remove everything after `result.end`, so that it never counts again.

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
    for path in reversed(result.survey.dropped):  # one by one: a disk that removes another one first leaves a gap
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
    """Write and sync again all past the checkpoint: it was seen in the page cache, which is not the disk, and a sync
    that failed before the crash may have left it there as clean."""
    for segment in result.opened:
        with _file_of(segment, files):
            _rewrite(files, segment, max(result.checkpoint.position - segment.base, 0) & ~4095)


@contextlib.contextmanager
def _file_of(segment: Segment, files: Files) -> Iterator[None]:
    """The segment has a descriptor in the block."""
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
    """NotALogError when a path that exists cannot be, or hold, a log; CorruptionError when what has the name of one of
    its files is none: who opens a pipe waits for ever, and a link to nowhere may be to a disk that is not mounted."""
    if path.exists() and not path.is_dir():
        raise NotALogError(f"{path} is a file; a log is a directory")
    for other in names.no_files(path):
        occupant = "a directory" if other.is_dir() else "something else" if other.exists() else "a link to nowhere"
        raise CorruptionError(other, int(other.stem) if other.stem.isdigit() else 0, "a file", occupant)
