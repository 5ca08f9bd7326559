"""LogState: the state of a log at one moment, as its headers, checkpoint, marker and tail page describe it.

Any of them may be wrong: `fsck` compares them with the records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyreplog._native.log.tail_page import Tail
from pyreplog.errors import CorruptionError, NotALogError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names, recovery, tail_page, truncation
from pyreplog.log.checkpoint import Checkpoint
from pyreplog.log.files import RealFiles
from pyreplog.log.headers import read_header
from pyreplog.log.truncation import Truncation


@dataclass(frozen=True)
class Header:
    """A segment file's header, and the file's size."""

    uuid: bytes
    base: int
    size: int
    first_entry: int
    epoch: int
    version: int
    file_bytes: int


@dataclass(frozen=True)
class Extent:
    """The range of a log's records.

    start: position of the first segment. position: position of the end; None: unknown because of the damage `fault`.
    torn: bytes behind the end that the next writer will cut. fault: see `position`. torn_records: number of intact
    records in the torn bytes.
    """

    start: int
    position: int | None
    torn: int = 0
    fault: CorruptionError | None = None
    torn_records: int = 0


@dataclass(frozen=True)
class LogState:
    """The state of a log, as its files describe it.

    directory: directory of the log. identity: uuid and segment size of the log, by a majority of its headers and the
    checkpoint, which decides a draw. headers: header of each segment file, or its fault, by the base in its name.
    checkpoint: the intact checkpoint, which may be that of another log (see `own_checkpoint`). marker: a truncation
    under way, or the fault of its marker. writer: process that has the log open for writing (0 if its id cannot be
    read), or None. extent: range of the records. page: fault of the tail page of an open log.
    """

    directory: Path
    identity: tuple[bytes, int]
    headers: dict[int, Header | CorruptionError]
    checkpoint: Checkpoint | None
    marker: Truncation | CorruptionError | None
    writer: int | None
    extent: Extent
    page: CorruptionError | None = None

    @property
    def own_checkpoint(self) -> Checkpoint | None:
        return _own(self.checkpoint, self.identity)


def take(directory: Path, *, writer: int | None) -> LogState:
    """Survey a log. writer: the result of `writer_of`.

    Raises NotALogError if there is no log, FormatVersionError if a newer version wrote it.
    """
    recovery.check_directory(directory)
    if not directory.is_dir():
        raise NotALogError(f"{directory} does not exist")
    checkpoint = checkpoints.load(directory)
    marker: Truncation | CorruptionError | None
    try:
        marker = truncation.pending(directory)
    except CorruptionError as error:
        marker = error
    # The end is read before the headers: every segment before it has its header. The start is read behind them: every
    # segment that was removed before its header was read lies before it.
    tail = _live_tail(directory) if writer is not None else None
    end = tail.visible if isinstance(tail, Tail) else None
    headers = {base: header for base in names.segment_bases(directory) if (header := _header(directory, base))}
    if not headers and checkpoint is None:
        raise NotALogError(f"{directory} holds no segment of a pyreplog log")
    identity = _identity(headers, checkpoint)
    if isinstance(tail, Tail):
        extent = Extent(tail.start, end)
    else:
        extent = _recovered_extent(directory, _own(checkpoint, identity), min(headers, default=0))
        if isinstance(marker, Truncation):
            extent = Extent(extent.start, marker.position)
    page = tail if isinstance(tail, CorruptionError) else None
    return LogState(directory, identity, headers, checkpoint, marker, writer, extent, page)


def generation(directory: Path) -> tuple[int, bool]:
    """Return (epoch, whether a truncation is under way), which changes whenever entries are cut from the log."""
    checkpoint = checkpoints.load(directory)
    return checkpoint.epoch if checkpoint else 0, (directory / names.TRUNCATION).exists()


def _identity(headers: dict[int, Header | CorruptionError], checkpoint: Checkpoint | None) -> tuple[bytes, int]:
    votes = Counter[tuple[bytes, int]]()
    if checkpoint is not None:
        votes[checkpoint.uuid, checkpoint.segment_bytes] += 1
    votes.update((header.uuid, header.size) for header in headers.values() if isinstance(header, Header))
    return votes.most_common(1)[0][0] if votes else (bytes(16), 0)


def _own(checkpoint: Checkpoint | None, identity: tuple[bytes, int]) -> Checkpoint | None:
    if checkpoint is not None and (checkpoint.uuid, checkpoint.segment_bytes) == identity:
        return checkpoint
    return None


def _header(directory: Path, base: int) -> Header | CorruptionError | None:
    path = names.segment_path(directory, base)
    try:
        return Header(*read_header(path), path.stat().st_size)
    except CorruptionError as error:
        return error
    except FileNotFoundError:
        return None  # the segment was trimmed meanwhile


def _live_tail(directory: Path) -> Tail | CorruptionError | None:
    """Return the tail page of a log that a writer has open, or its fault; None if no writer has it open."""
    try:
        loaded = tail_page.load(directory)
    except CorruptionError as error:
        return error
    return loaded[0] if loaded is not None and loaded[0].open else None


def _recovered_extent(directory: Path, checkpoint: Checkpoint | None, first_base: int) -> Extent:
    """Return the range that recovery finds. first_base: base of the first segment file."""
    start = checkpoint.start if checkpoint is not None else first_base
    try:
        recovered = recovery.recover(directory, RealFiles(), checkpoint, writable=False)
    except CorruptionError as error:
        return Extent(start, None, fault=error)
    torn = max(recovered.cut_stop - recovered.opened[-1].end, 0) if recovered.cut and recovered.opened else 0
    return Extent(start, recovered.end, torn, None, recovered.cut_records)
