"""Crash-safe truncation of a log.

A marker file describes a truncation under way; a writer that opens a log with a marker finishes the truncation. A
segment that is cut in the middle is replaced by a copy of the records that stay, so that readers which have the segment
mapped can go on reading the old bytes. Order:

1. marker {position, entry}, durable            crash before: nothing happened
   tail page: readers of this boot stop there
2. later segments removed, the last one first   crash after: repeated at open
3. copy of the cut segment, zero from the cut on, synced, renamed into place
4. checkpoint moved back, with a new epoch
5. marker removed, durable
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.log.tail_page import PAGE, Tail
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError
from pyreplog.log import names
from pyreplog.log.checkpoint import Checkpoint, CheckpointFile
from pyreplog.log.files import Files, boot_id
from pyreplog.regular_files import open_changing, read_regular

_COPY_BYTES = 1 << 20

_MARKER_MAX = 4096  # bytes of a marker


@dataclass(frozen=True)
class Truncation:
    """A truncation.

    position: new end of the log. entry: number that the next entry gets. epoch: epoch of new segments.
    """

    position: int
    entry: int
    epoch: int


def announce(directory: Path, files: Files, truncation: Truncation) -> None:
    """Write the marker, durably (step 1)."""
    body = json.dumps(asdict(truncation)).encode()
    files.replace_small(directory / names.TRUNCATION, b"%08x %s\n" % (crc32c(body), body))


def pending(directory: Path) -> Truncation | None:
    """Return the truncation that a crash interrupted; None if there is no marker.

    Raises CorruptionError if the marker is damaged.
    """
    path = directory / names.TRUNCATION
    try:
        crc, _, body = read_regular(path, _MARKER_MAX).rstrip(b"\n").partition(b" ")
    except FileNotFoundError:
        return None
    try:
        if int(crc, 16) != crc32c(body):
            raise ValueError("CRC-32C")
        return Truncation(**json.loads(body))
    except (ValueError, TypeError) as error:
        raise CorruptionError(path, 0, "an intact truncation marker", f"{body[:60]!r} ({error})") from error


def remove_later(directory: Path, files: Files, bases: list[int]) -> None:
    """Remove the segments behind the cut (step 2). bases: of these segments, ascending."""
    for base in reversed(bases):
        files.remove(names.index_path(directory, base))
        files.remove(names.segment_path(directory, base))
    files.sync_directory(directory)


def replace_segment(directory: Path, files: Files, base: int, size: int, keep: int) -> None:
    """Replace the cut segment by a copy of its first `keep` bytes; the rest is zeros (step 3)."""
    path = names.segment_path(directory, base)
    fresh = directory / f"fresh-{base:020d}.seg"
    files.remove(fresh)
    source, target = files.open(path, writable=False), files.create(fresh, size, zeroed=True)
    try:
        for at in range(0, keep, _COPY_BYTES):
            files.write(target, os.pread(source, min(_COPY_BYTES, keep - at), at), at)
        files.sync(target)
    finally:
        os.close(source)
        os.close(target)
    files.remove(names.index_path(directory, base))
    files.rename(fresh, path)
    files.sync_directory(directory)


def finish(directory: Path, files: Files) -> None:
    """Remove the marker, durably (step 5)."""
    files.remove(directory / names.TRUNCATION)
    files.sync_directory(directory)


def apply(directory: Path, files: Files, wanted: Truncation, checkpoint: CheckpointFile) -> None:
    """Carry out steps 2 to 5, which are idempotent. No other thread may create segment files meanwhile."""
    size = checkpoint.last.segment_bytes
    base = wanted.position // size * size
    remove_later(directory, files, [other for other in names.segment_bases(directory) if other >= wanted.position])
    if wanted.position > base:  # at `base` the cut lies between two segments
        replace_segment(directory, files, base, size, wanted.position - base)
    checkpoint.restart(position=wanted.position, entry=wanted.entry, epoch=wanted.epoch)
    finish(directory, files)


def as_if_done(wanted: Truncation, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint that step 4 writes, for a reader, which writes no checkpoint."""
    return replace(checkpoint, position=wanted.position, entry=wanted.entry, epoch=wanted.epoch, clean=False)


def publish_cut_offline(directory: Path, uuid: bytes, wanted: Truncation) -> None:
    """Publish a truncation in the tail page of a log that no writer has open, if the page is of this boot and log.

    Call it before the files change and again afterwards: a reader may have read its table of segments meanwhile.
    """
    path = directory / names.TAIL
    if not path.exists() or path.stat().st_size < PAGE:
        return
    with open_changing(path) as file:
        tail = Tail(file, writable=True)
    if tail.belongs_to(boot_id(), uuid):
        publish_cut(tail, tail.start, wanted, is_open=False)


def publish_cut(tail: Tail, start: int, wanted: Truncation, *, is_open: bool) -> None:
    """Publish a truncation in a tail page, so that readers stop at the cut before the files behind it are removed."""
    end, entry = wanted.position, wanted.entry
    visible, visible_entry = min((end, entry), (tail.visible, tail.visible_entry))  # a commit point may lie before it
    tail.publish(
        start=start, end=end, end_entry=entry, synced_end=end, synced_entry=entry,
        visible=visible, visible_entry=visible_entry, is_open=is_open,
    )  # fmt: skip
    tail.note_truncation()


def reopen(directory: Path, files: Files, position: int, segment_bytes: int) -> Segment:
    """Map and index the segment that was cut at `position`."""
    base = position // segment_bytes * segment_bytes
    path = names.segment_path(directory, base)
    segment = Segment(files.open(path, writable=True), str(path), writable=True)
    segment.index = SparseIndex(segment.size)
    segment.verify(segment.index, HEADER_BYTES, position - base)
    return segment
