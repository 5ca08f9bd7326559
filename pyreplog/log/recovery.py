"""Opening a log: what is there, what of it is proven, and where it ends.

A record that is not intact is *corruption* when it lies below the checkpoint, or when a later intact record claims an
entry at or above it as synced; otherwise everything from it on is a *torn tail*: bytes that a power cut left of appends
nobody was told were durable. (Rule: DESIGN, "Torn or corrupt"; RocketMQ and Kafka cut at the first bad record wherever
it lies, and lose what follows.)
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pyreplog._native.segment import HEADER_BYTES, Segment, decode_header
from pyreplog._native.sparse import SparseIndex
from pyreplog.errors import CorruptionError, FormatVersionError, NotALogError
from pyreplog.log import names
from pyreplog.log.checkpoint import Checkpoint
from pyreplog.log.files import Files
from pyreplog.log.segments import PREPARED

logger = logging.getLogger(__name__)

BLANK = -9  # status of the end-of-segment record, see _native/record.pxd
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class SegmentFile:
    """A segment file as its header describes it."""

    base: int
    first_entry: int
    epoch: int
    path: Path


@dataclass
class Recovered:
    """What `recover` found. `active` has its index; `end` is a position, `entry` the number the next append gets."""

    files: list[SegmentFile]
    checkpoint: Checkpoint
    opened: list[Segment] = field(default_factory=list)  # from the checkpoint on; the last one is the active one
    end: int = 0
    entry: int = 0
    sealed: bool = False  # the last segment ends in a blank: the next append starts another
    cut: bool = False
    cut_stop: int = 0  # offset in the last segment after the last byte that is cut
    last_time: int = 0


def read_header(path: Path, files: Files) -> tuple[bytes, int, int, int, int]:
    """(uuid, base, size, first entry, epoch) of a segment file."""
    with path.open("rb") as file:
        return decode_header(str(path), file.read(HEADER_BYTES))


def find_segments(directory: Path, files: Files, checkpoint: Checkpoint | None) -> tuple[list[SegmentFile], bytes, int]:
    """The segment files in use, ascending, and the log's uuid and segment size.

    Files after the last one in use (prepared, or never synced) are left out. Errors: NotALogError, CorruptionError
    for a file that is missing, of another log, or in another's place.
    """
    proven = checkpoint.position if checkpoint else 0
    found: list[SegmentFile] = []
    uuid, size = (checkpoint.uuid, checkpoint.segment_bytes) if checkpoint else (b"", 0)
    for base in names.segment_bases(directory):
        path = names.segment_path(directory, base)
        try:
            file_uuid, file_base, file_size, first, epoch = read_header(path, files)
        except CorruptionError:
            if base >= proven and (checkpoint is not None or found):
                break  # a file whose header never reached the disk
            raise
        if not uuid:
            uuid, size = file_uuid, file_size
        if file_uuid != uuid:
            raise CorruptionError(path, base, f"a segment of log {uuid.hex()}", f"one of log {file_uuid.hex()}")
        if file_base != base and base >= proven:
            break  # recycled for this place, and the new header never reached the disk
        if (file_base, file_size) != (base, size):
            raise CorruptionError(
                path,
                base,
                f"the segment at {base} of {size} bytes",
                f"that at {file_base} of {file_size} bytes",
            )
        if first == PREPARED:
            break
        if path.stat().st_size != size:
            raise CorruptionError(path, base, f"a file of {size} bytes", f"{path.stat().st_size} bytes")
        if found and base != found[-1].base + size:
            missing = names.segment_path(directory, found[-1].base + size)
            raise CorruptionError(missing, found[-1].base + size, "a segment file", f"none; the next is at {base}")
        found.append(SegmentFile(base, first, epoch, path))
    if not found:
        raise NotALogError(f"{directory}: no segment of a pyreplog log")
    if proven > found[-1].base + size:
        missing = names.segment_path(directory, found[-1].base + size)
        raise CorruptionError(missing, found[-1].base + size, f"a log synced up to {proven}", "no segment file")
    return found, uuid, size


def recover(directory: Path, files: Files, checkpoint: Checkpoint | None, *, writable: bool) -> Recovered:
    """Verify all from the checkpoint's segment on and find the end. Changes nothing on disk.

    The cost is that of scanning from the checkpoint's segment to the end, not that of the log.
    """
    found, uuid, size = find_segments(directory, files, checkpoint)
    if checkpoint is None:
        logger.warning("%s: no intact checkpoint; verifying all %d segments", directory, len(found))
        checkpoint = Checkpoint(
            uuid=uuid, segment_bytes=size, position=found[0].base, entry=max(found[0].first_entry, 0),
            epoch=max(file.epoch for file in found), clean=False,
        )  # fmt: skip
    result = Recovered(found, checkpoint)
    at = max((i for i, file in enumerate(found) if file.base <= checkpoint.position), default=0)
    if at and found[at].base == checkpoint.position:
        at -= 1  # the checkpoint lies at a boundary: look at the blank before it, too
    for number in range(at, len(found)):
        segment = Segment(files.open(found[number].path, writable=writable), str(found[number].path), writable=writable)
        result.opened.append(segment)
        segment.index = SparseIndex(segment.size)
        offset, status = segment.verify(segment.index, HEADER_BYTES, segment.size)
        result.end, result.sealed = segment.base + offset, status == BLANK
        result.entry = max(segment.first_entry, 0) + segment.index.entries
        segment.advance(offset, result.sealed)
        if result.sealed:
            if number + 1 < len(found) and 0 <= found[number + 1].first_entry != result.entry:
                raise CorruptionError(
                    found[number + 1].path, found[number + 1].base, f"first entry {result.entry}",
                    f"{found[number + 1].first_entry}",
                )  # fmt: skip
            continue
        _judge(result, segment, offset, status, found[number + 1 :], files)
        del result.files[number + 1 :]
        break
    result.last_time = _last_time(result.opened)
    return result


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
    result: Recovered, segment: Segment, offset: int, status: int, later: list[SegmentFile], files: Files
) -> None:
    """Decide whether the records that stop at `offset` stop there by a torn write or by corruption."""
    position = segment.base + offset
    if position < result.checkpoint.position:
        raise segment.fault(offset, status)
    if result.checkpoint.clean and position == result.checkpoint.position and not later:
        return
    claimed, stop = _remains(segment, offset)
    for file in later:
        other = Segment(files.open(file.path, writable=False), str(file.path), writable=False)
        claimed = max(claimed, _remains(other, HEADER_BYTES)[0])
    if claimed >= result.entry and segment.first_entry >= 0:
        raise segment.fault(offset, status)
    result.cut = stop > offset or bool(later)
    result.cut_stop = stop


def _remains(segment: Segment, offset: int) -> tuple[int, int]:
    """What is left of this segment's records from `offset` on: (highest entry they claim was synced or -1, offset
    after the last of them; `offset` when there is none, not even the beginning of one)."""
    claimed, stop = -1, offset
    if offset + 32 <= segment.size and segment.stamp_at(offset) == segment.stamp:
        stop = min(offset + max(segment.head_at(offset)[4], 32), segment.size)
    at = offset
    while (at := segment.find_intact(at, segment.size)) >= 0:
        _, _, synced, _, length = segment.head_at(at)
        claimed = max(claimed, synced)
        at += (length + 7) & ~7
        stop = max(stop, at)
    return claimed, stop


def set_aside(directory: Path, files: Files, segment: Segment, stop: int, later: list[Path]) -> Path:
    """Copy what is about to be cut (up to offset `stop`, and later files) into `aside/`, durably. The folder's path."""
    folder = directory / names.ASIDE / f"{segment.base + segment.end:020d}-{time.time_ns():020d}"
    folder.mkdir(parents=True, mode=0o700)
    _copy(
        files,
        folder / f"{segment.base + segment.end:020d}.cut",
        segment.view(segment.end, stop - segment.end),
    )
    for path in later:
        _copy(files, folder / path.name, memoryview(path.read_bytes()))
    files.sync_directory(folder)
    files.sync_directory(folder.parent)
    files.sync_directory(directory)
    return folder


def _copy(files: Files, path: Path, data: memoryview) -> None:
    path.touch(mode=0o600, exist_ok=False)
    fd = files.open(path, writable=True)
    try:
        files.write(fd, data, 0)
        files.sync(fd)
    finally:
        os.close(fd)


def cut(directory: Path, files: Files, result: Recovered, later: list[Path]) -> None:
    """Set aside and durably remove everything after `result.end`, so that it never counts again.

    Order: copies synced, the rest of the segment zeroed and synced, later files removed from the last one down.
    """
    segment = result.opened[-1]
    folder = set_aside(directory, files, segment, result.cut_stop, later)
    logger.warning(
        "%s: torn tail cut at position %d (entry %d); its bytes are kept in %s",
        directory,
        result.end,
        result.entry,
        folder,
    )
    zero_rest(files, segment, segment.end)
    for path in reversed(later):
        files.remove(path)
    files.sync_directory(directory)


def zero_rest(files: Files, segment: Segment, offset: int) -> None:
    """Durably zero a segment from `offset` on."""
    zeros = memoryview(bytes(_COPY_BYTES))
    stop = segment.used_end(offset)
    for at in range(offset, stop, _COPY_BYTES):
        files.write(segment.fileno(), zeros[: min(_COPY_BYTES, stop - at)], at)
    files.sync(segment.fileno())


def rewrite_unproven(files: Files, result: Recovered) -> None:
    """Write and sync again all past the checkpoint: it was seen in the page cache, which is not the disk, and a sync
    that failed before the crash may have left it there as clean."""
    for segment in result.opened:
        start = max(result.checkpoint.position - segment.base, 0) & ~4095
        stop = segment.size if segment.sealed else segment.end
        for at in range(start, stop, _COPY_BYTES):
            files.write(segment.fileno(), segment.bytes_at(at, min(_COPY_BYTES, stop - at)), at)
        if start < stop:
            files.sync(segment.fileno())


def check_directory(path: Path) -> None:
    """NotALogError when a path that exists cannot be, or hold, a log."""
    if path.exists() and not path.is_dir():
        raise NotALogError(f"{path} is a file; a log is a directory")


__all__ = [
    "FormatVersionError",
    "Recovered",
    "SegmentFile",
    "check_directory",
    "cut",
    "find_segments",
    "recover",
]
