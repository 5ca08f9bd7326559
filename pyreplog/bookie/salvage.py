"""Makes the log of a bookie openable again after its segments were damaged or lost.

A bookie that refuses to start because of one file loses all its copies for the cluster. So intact records stay in
place, and lost ones are reported: the file `lost-segments` is written durably before anything is changed, and stays
unsettled until the opening has put open ledgers into limbo and noted the copies of closed ones for repair.

| damage | repair |
|---|---|
| no segment file, or one of another log or position | a hollow segment takes its place |
| the header | it is written anew, with the epoch that a stamp tells; without one: as a missing file |
| another size | the existing bytes, followed by zeros |
| damaged records without an index that names them | a filler takes the place of the damaged ones |
| the end of a sealed segment | a blank behind the last intact record |

The previous files are kept below `aside/`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyreplog._native.ledger_log.entries import encode_control
from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import SegmentHeader, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.bookie.protocol import ID_MAX
from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import CorruptionError, FormatVersionError, ReplogError, WrongLogError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import indexes, names, recovery
from pyreplog.log.files import Files
from pyreplog.log.headers import find_epoch, read_header
from pyreplog.log.lock import WriterLock
from pyreplog.log.segments import PREPARED, UNNUMBERED
from pyreplog.regular_files import open_reading, read_regular

logger = logging.getLogger(__name__)

NAME = "lost-segments"
FORMAT = "pyreplog bookie lost segments"
VERSION = 1
FILLER = ID_MAX
"""The ledger of control records that fill the place of damaged records. No ledger has this number."""

_FILLER_CODE = 255  # not a `ControlCode`
_FILE_MAX = 64 << 20
_KEPT_MAX = 1000  # settled segments that stay in the list, for operators
_LONG_HEADER, _BLANK_BYTES = 64, 32
_STAMP = slice(8, 12)  # in a record's header


@dataclass(frozen=True)
class LostSegment:
    """A segment of which records were lost.

    Attributes:
        base: position of the segment.
        reason: the damage, for operators.
        settled: whether the ledgers are in limbo, and the missing copies noted for repair.
    """

    base: int
    reason: str
    settled: bool = False


class LostSegments:
    """The file in a bookie's directory that lists segments of which records were lost."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path, self._files = directory / NAME, files

    def load(self) -> list[LostSegment]:
        """Return the segments in the order in which they were noted.

        Raises CorruptionError and FormatVersionError when the file cannot be read; then it is unknown which copies are
        lost.
        """
        try:
            content = load_checksummed(read_regular(self._path, _FILE_MAX), FORMAT, VERSION, self._path)
            return [LostSegment(int(base), str(reason), bool(settled)) for base, reason, settled in content["segments"]]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(self._path, 0, "an intact list of lost segments", str(error)) from error

    def add(self, lost: list[LostSegment]) -> None:
        """Note segments durably, in place of unsettled notes of the same segments.

        Raises OSError when the disk fails.
        """
        bases = {segment.base for segment in lost}
        self._save([*(known for known in self.load() if known.settled or known.base not in bases), *lost])

    def settle(self) -> None:
        """Mark all segments as settled, durably. Raises OSError when the disk fails."""
        self._save([replace(segment, settled=True) for segment in self.load()])

    def _save(self, segments: list[LostSegment]) -> None:
        surplus = max(len(segments) - _KEPT_MAX, 0)
        kept = [segment for at, segment in enumerate(segments) if at >= surplus or not segment.settled]
        rows = [[segment.base, segment.reason, segment.settled] for segment in kept]
        self._files.replace_small(self._path, dump_checksummed(FORMAT, VERSION, {"segments": rows}))


def salvage(log: Path, uuid: bytes, record: LostSegments, files: Files) -> list[LostSegment]:
    """Make a damaged log openable, and note the segments of which records were lost.

    Args:
        log: directory of the log.
        uuid: uuid of the log according to the identity of the bookie.
        record: file that lists the damaged segments before anything is changed.
        files: access to the disk.

    Returns:
        The segments of which records were lost. If there are none, headers may still have been written anew.

    Raises:
        LockedError: another process has the log open.
        WrongLogError: it is another log, or no segment of it is left.
        ReplogError: as the reading of a log.
        OSError: the disk failed.
    """
    lock = WriterLock(log)
    try:
        work = _Salvage(log, uuid, files)
        lost = work.lost()
        if lost:
            record.add(lost)
        work.repair()
    finally:
        lock.release()
    for segment in lost:
        logger.error("%s: the segment at %d: %s; its copies are noted for repair", log, segment.base, segment.reason)
    return lost


@dataclass
class _Plan:
    """The repair of one segment.

    Attributes:
        base: position of the segment.
        reason: the damage, for operators; "": no record was lost.
        epoch: epoch of the segment.
        header: a new header; None: the header is intact.
        content: keep the file; otherwise a hollow segment takes its place.
        damages: offsets [start, stop) of damaged records.
        blank_at: offset of a new blank; None: the blank is intact.
    """

    base: int
    reason: str = ""
    epoch: int = 0
    header: bytes | None = None
    content: bool = True
    damages: tuple[tuple[int, int], ...] = ()  # offsets [start, stop) of damaged records
    blank_at: int | None = None


class _Salvage:
    """The examination of one log, and the repair of its segments."""

    def __init__(self, log: Path, uuid: bytes, files: Files) -> None:
        self._log, self._uuid, self._files = log, uuid, files
        recovery.check_directory(log)
        checkpoint = checkpoints.load(log)
        if checkpoint is not None and checkpoint.uuid != uuid:
            raise WrongLogError(
                f"{log}: its checkpoint is that of log {checkpoint.uuid.hex()}, and the bookie's log is {uuid.hex()}; "
                "put the right directory in place, or start the bookie anew with --replace"
            )
        self._headers = {base: self._header(base) for base in names.segment_bases(log)}
        good = {base: header for base, header in self._headers.items() if header is not None and header.uuid == uuid}
        good = {
            base: header for base, header in good.items() if header.base == base and header.first_entry == UNNUMBERED
        }
        if not good:
            raise WrongLogError(
                f"{log}: no intact segment of log {uuid.hex()} is left; start the bookie anew with --replace, so that "
                "its copies are made again"
            )
        self._good, self._checkpoint = good, checkpoint
        self._size = checkpoint.segment_bytes if checkpoint is not None else next(iter(good.values())).size
        self._start = checkpoint.start if checkpoint is not None else min(good)
        self._proven = checkpoint.position if checkpoint is not None else self._start
        self._plans = [plan for plan in self._examine() if plan.reason or plan.header is not None]

    def _header(self, base: int) -> SegmentHeader | None:
        try:
            return read_header(names.segment_path(self._log, base))
        except CorruptionError:
            return None

    def lost(self) -> list[LostSegment]:
        """Return the segments of which records were lost."""
        return [LostSegment(plan.base, plan.reason) for plan in self._plans if plan.reason]

    # ---- what is damaged ------------------------------------------------------------------------------------

    def _examine(self) -> Iterator[_Plan]:
        last = max([*self._good, (max(self._proven - 1, self._start)) // self._size * self._size])
        known = self._proven if self._checkpoint is not None else last
        epoch = min(header.epoch for header in self._good.values())
        for base in range(self._start, last + 1, self._size):
            plan = self._examine_file(base, epoch)
            if base >= known and not plan.content:
                continue  # behind the checkpoint nothing is proven to be on the disk: recovery handles such gaps
            if plan.content:
                epoch = plan.epoch
                self._examine_records(plan, sealed=base < last)
            yield plan

    def _examine_file(self, base: int, epoch: int) -> _Plan:
        """Examine the header and the size of a segment's file. epoch: epoch of the segment before."""
        lost = _Plan(base, epoch=epoch, content=False)
        if base not in self._headers:
            return replace(lost, reason="its file is missing")
        if base in self._good:
            plan = _Plan(base, epoch=self._good[base].epoch)
        elif (occupying := self._headers[base]) is not None:
            occupant = "another one" if occupying.first_entry != PREPARED else "one that was only prepared"
            return replace(lost, reason=f"{occupant} lies in its place")
        else:
            own_epoch = self._find_epoch(base)
            if own_epoch is None:
                return replace(lost, reason="its header is damaged, and its epoch cannot be determined")
            header = encode_header(self._uuid, base, self._size, UNNUMBERED, own_epoch)
            plan = _Plan(base, epoch=own_epoch, header=header)
        size = names.segment_path(self._log, base).stat().st_size
        if size != self._size:
            plan.reason = f"its file had {size} bytes in place of {self._size}"
        return plan

    def _find_epoch(self, base: int) -> int | None:
        """Find the epoch of a segment by the stamp of its first record or of its ledger index; None: neither
        matches."""
        highest = max([header.epoch for header in self._good.values()])
        if self._checkpoint is not None:
            highest = max(highest, self._checkpoint.epoch)
        with open_reading(names.segment_path(self._log, base)) as file:
            stamps = [os.pread(file.fileno(), 4, HEADER_BYTES + 8)]
        try:
            with open_reading(names.ledgers_path(self._log, base)) as file:
                stamps.append(os.pread(file.fileno(), 4, 48))
        except (OSError, CorruptionError):
            pass
        epochs = (
            find_epoch(self._uuid, base, self._size, int.from_bytes(stamp, "little"), range(highest + 1))
            for stamp in stamps
            if stamp
        )
        return next((epoch for epoch in epochs if epoch is not None), None)

    def _examine_records(self, plan: _Plan, *, sealed: bool) -> None:
        """Find damaged records where no index names them: in a segment without an index, or which recovery reads.

        Damage in a sealed segment with an intact index is left to the scrub.
        """
        segment = self._copy(plan)
        proven = min(max(self._proven - plan.base, HEADER_BYTES), self._size)
        is_read = self._checkpoint is None or plan.base <= self._proven <= plan.base + self._size
        is_read |= plan.header is not None or bool(plan.reason)
        if sealed and not is_read and self._is_indexed(segment):
            return
        stop = self._size if sealed else proven
        damages, at, status = [], HEADER_BYTES, 0
        while at < stop and status != recovery.BLANK:
            at, status = segment.verify(SparseIndex(self._size), at, stop)
            if status < 0 and status != recovery.BLANK:
                begin, at = at, self._next_intact(segment, at, stop)
                damages.append((begin, at))
        if sealed and status != recovery.BLANK and at >= stop:
            plan.blank_at = damages.pop()[0] if damages and damages[-1][1] >= stop else at
            plan.reason = plan.reason or "its end is damaged"
        if damages:
            plan.damages, plan.reason = tuple(damages), plan.reason or "records are damaged, and no index lists them"

    def _next_intact(self, segment: Segment, at: int, stop: int) -> int:
        """Find the next intact record, or the blank, with room for a filler in front of it."""
        next_at = segment.find_intact(min(at + _LONG_HEADER, stop), stop)
        if next_at < 0 and stop == self._size:
            next_at = segment.find_blank(min(at + _LONG_HEADER, stop))
        return next_at if next_at >= 0 else stop

    def _is_indexed(self, segment: Segment) -> bool:
        """Return whether the parts of a segment's ledger index that are read at opening are intact."""
        try:
            indexes.find_end(self._log, segment)
            path = names.ledgers_path(self._log, segment.base)
            with SealedIndex.open(
                path, uuid=segment.uuid, base=segment.base, stamp=segment.stamp, end=segment.end
            ) as index:
                for ledger, first, last, *_ in index.ledgers().tolist():
                    index.entries(ledger, first, last + 1)
        except (OSError, ReplogError) as error:
            if isinstance(error, FormatVersionError):
                raise
            return False
        return True

    def _copy(self, plan: _Plan) -> Segment:
        """Return a copy of a segment in memory, with the right size and header."""
        path = names.segment_path(self._log, plan.base)
        header = encode_header(self._uuid, plan.base, self._size, UNNUMBERED, plan.epoch)
        fd = os.memfd_create(path.name, os.MFD_CLOEXEC)
        try:
            if plan.content:
                with open_reading(path) as file:
                    at = 0
                    while sent := os.sendfile(fd, file.fileno(), at, max(self._size - at, 0)):
                        at += sent
            os.ftruncate(fd, self._size)
            os.pwrite(fd, header, 0)
        except BaseException:
            os.close(fd)
            raise
        return Segment(fd, str(path), writable=True)

    # ---- repairing ------------------------------------------------------------------------------------------

    def repair(self) -> None:
        """Replace every damaged segment; a new file is complete before it is renamed."""
        for plan in self._plans:
            self._keep_aside(plan)
            self._replace(plan)
            logger.warning(
                "%s: the segment at %d was written anew: %s", self._log, plan.base, plan.reason or "its header"
            )

    def _keep_aside(self, plan: _Plan) -> None:
        path = names.segment_path(self._log, plan.base)
        if path.exists():
            data = path.read_bytes()
            recovery.set_aside(self._log, self._files, plan.base, [(path.name, memoryview(data))])

    def _replace(self, plan: _Plan) -> None:
        path = names.segment_path(self._log, plan.base)
        fresh = self._log / f"fresh-{plan.base:020d}.seg"
        self._files.remove(fresh)
        fd = self._files.create(fresh, HEADER_BYTES + 4096 if not plan.content else self._size, zeroed=False)
        try:
            for offset, data in self._content(plan):
                self._files.write(fd, data, offset)
            self._files.sync(fd)
        finally:
            os.close(fd)
        for side in (names.index_path(self._log, plan.base), names.ledgers_path(self._log, plan.base)):
            self._files.remove(side)
        self._files.sync_directory(self._log)  # otherwise the index of the old file may reappear after a crash
        self._files.rename(fresh, path)
        self._files.sync_directory(self._log)

    def _content(self, plan: _Plan) -> Iterator[tuple[int, bytes | memoryview]]:
        segment = self._copy(plan)
        if not plan.content:
            yield 0, segment.bytes_at(0, HEADER_BYTES)
            yield HEADER_BYTES, segment.blank_at(HEADER_BYTES, 0)
            yield self._size - 1, b"\0"
            return
        yield 0, segment.view(0, self._size)
        for start, stop in plan.damages:
            yield start, _filler(stop - start, segment.stamp)
        if plan.blank_at is not None:
            blank = segment.blank_at(plan.blank_at, 0)
            yield plan.blank_at, blank.ljust(self._size - plan.blank_at, b"\0")


def _filler(length: int, stamp: int) -> bytes:
    """Encode a control record of `length` bytes without any content."""
    record = bytearray(encode_control(FILLER, _FILLER_CODE, bytes(length - _LONG_HEADER), lac=-1, time=0))
    record[_STAMP] = stamp.to_bytes(4, "little")
    return bytes(record)


def is_checkpoint_lost(log: Path) -> bool:
    """Return whether a log has segments and no intact checkpoint.

    Recovery would end such a log before the first damaged record.
    """
    return log.is_dir() and bool(names.segment_bases(log)) and checkpoints.load(log) is None
