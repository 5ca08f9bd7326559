"""What a log says about itself at one moment: headers, checkpoint, marker, writer, and where it ends.

Nothing here is believed to be right: `fsck` compares it with the records.
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
    """Where a log's records begin and end. position: of the end, None when damage keeps it unknown; `fault` then says
    which. torn: bytes behind the end that the next writer will cut; torn_records: the intact ones among their records.
    """

    start: int
    position: int | None
    torn: int = 0
    fault: CorruptionError | None = None
    torn_records: int = 0


@dataclass(frozen=True)
class LogState:
    """identity: the log's uuid and segment size, by the vote of all who name one; the checkpoint's counts in a draw.
    headers: what each segment file has as its header, by the base in its name. checkpoint: as found; `own_checkpoint`:
    if it is this log's. writer: process that has the log open for writing (0 when its id cannot be read), or None.
    page: what is wrong with the tail page of a log that a writer has open."""

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
    """Survey a log. writer: as `writer_of` says.

    Errors: NotALogError when there is none, FormatVersionError.
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
    # The end before the headers: what lies before it has its header. The start behind them: what was not there any more
    # when they were read lies before it.
    tail = _live_tail(directory) if writer is not None else None
    end = tail.visible if isinstance(tail, Tail) else None
    headers = {base: header for base in names.segment_bases(directory) if (header := _header(directory, base))}
    if not headers and checkpoint is None:
        raise NotALogError(f"{directory} holds no segment of a pyreplog log")
    identity = _identity(headers, checkpoint)
    if isinstance(tail, Tail):
        extent = Extent(tail.start, end)
    else:
        extent = _settled_extent(directory, _own(checkpoint, identity), min(headers, default=0))
        if isinstance(marker, Truncation):
            extent = Extent(extent.start, marker.position)
    page = tail if isinstance(tail, CorruptionError) else None
    return LogState(directory, identity, headers, checkpoint, marker, writer, extent, page)


def generation(directory: Path) -> tuple[int, bool]:
    """Changes whenever entries are cut from the log: (epoch, whether a truncation is under way)."""
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
        return None  # trimmed while we looked


def _live_tail(directory: Path) -> Tail | CorruptionError | None:
    """The page by which a live writer tells readers where the log begins and ends; or what is wrong with it."""
    try:
        loaded = tail_page.load(directory)
    except CorruptionError as error:
        return error
    return loaded[0] if loaded is not None and loaded[0].open else None


def _settled_extent(directory: Path, checkpoint: Checkpoint | None, first_base: int) -> Extent:
    """What the next writer would find. first_base: where the files begin."""
    start = checkpoint.start if checkpoint is not None else first_base
    try:
        recovered = recovery.recover(directory, RealFiles(), checkpoint, writable=False)
    except CorruptionError as error:
        return Extent(start, None, fault=error)
    torn = max(recovered.cut_stop - recovered.opened[-1].end, 0) if recovered.cut and recovered.opened else 0
    return Extent(start, recovered.end, torn, None, recovered.cut_records)
