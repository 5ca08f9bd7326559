"""MirrorLog: a byte-identical copy of another log, written from the stream of its master."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyreplog._native.log.apply_replicated import MirrorLogBase, marks_of, progress_of, show_up_to, stand_at
from pyreplog._native.log.log_position import LogPosition
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import decode_header, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.clock import Clock
from pyreplog.config import LogConfig
from pyreplog.errors import CorruptionError, FormatVersionError, OutOfRangeError, ReplicaError, StreamError
from pyreplog.log import recovery, replica, truncation
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.runtime import LogRuntime
from pyreplog.log.truncation import Truncation

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

STREAM_HEADER_BYTES = 64
"""The part of a segment's header block that is streamed; the rest is zero."""

BLANK_BYTES = 32
"""The part of a blank that is streamed; the bytes behind it are zero."""

_NOWHERE = LogPosition(-1, -1)


class MirrorLog(CommitLog, MirrorLogBase):
    """A log that holds the bytes which the master of another log streams, at the same positions.

    The appending methods raise ReplicaError. Readers, also in other processes, see its records up to the commit point
    (`show`). Received bytes of an incomplete record are kept, and count once the record is complete. Bytes are written
    with `pwrite`, which takes no page faults on fresh or recycled files; the map is never written to.

    Any thread may read; `append_replicated`, `begin` and `cut` exclude each other. Close it, or use `with`.

    Args:
        config: settings, see `pyreplog.open`. With durability "synced" files are zeroed ahead; a caller that reports
            what is synced calls `sync`.
        runtime: its threads serve the log, and no segment is allocated ahead; None: the log has its own threads.
    """

    def __init__(
        self, path: Path, config: LogConfig, *, clock: Clock | None = None, files: Files | None = None,
        retention_floor: int = 1 << 62, record_batches: bool = False, runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            path, config, create=False, clock=clock, files=files, gated=True, mirror=True,
            retention_floor=retention_floor, record_batches=record_batches, runtime=runtime,
        )  # fmt: skip

    @classmethod
    def create(
        cls, path: Path, config: LogConfig, *, uuid: bytes, segment_bytes: int, start: tuple[int, int],
        clock: Clock | None = None, files: Files | None = None, runtime: LogRuntime | None = None,
    ) -> MirrorLog:  # fmt: skip
        """Create an empty copy of log `uuid` (16 bytes) whose first segment is the one at `start`, and open it.

        Raises:
            InvalidArgumentError: an argument is malformed.
            NotALogError: the directory holds other files.
            LockedError: another process has the directory open.
        """
        replica.make(path, files or RealFiles(), uuid=uuid, segment_bytes=segment_bytes, start=start)
        return cls(path, config, clock=clock, files=files, runtime=runtime)

    # ---- opening --------------------------------------------------------------------------------------------

    def _continue(self, recovered: recovery.RecoveryResult) -> None:
        last = self._checkpoint.last
        self._first = last.start, last.entry  # start of a log without segments
        self._commit = LogPosition(0, 0)
        self._releasing = False
        self._last_synced = _NOWHERE, _NOWHERE  # the mark as the log reports it, and its canonical form
        if not recovered.files:
            stand_at(self, last.position, last.entry)
            self._received_end = last.position
            return
        active = recovered.opened[-1]
        if self._runtime is None and not active.sealed:  # its space was freed while the log was idle
            self._files.allocate(active.fileno(), Path(active.path), active.size)
        self._stand_in(active, recovered.entry, recovered.last_time)

    def _stand_in(self, segment: Segment, entry: int, last_time: int) -> None:
        """Set the end of the log behind the last record of a segment; behind the segment, if it is sealed."""
        end, sealed = segment.end, segment.sealed
        self._activate(segment, end, entry, last_time)
        segment.advance(end, sealed)
        self._received_end = segment.base + (segment.size if sealed else end)

    def _may_close(self) -> bool:
        """Return whether the log may close its files: not between two segments, and not within a record."""
        segment, end, _, _ = self._state
        if segment is not None and (segment.sealed or self._received_end > end):
            return False
        return super()._may_close()

    def _begin_first(self) -> None:
        """Begin no segment: the master's header is the next in the stream."""

    # ---- positions ------------------------------------------------------------------------------------

    @property
    def received_end(self) -> int:
        """Position at which the stream continues: behind all received bytes, incomplete records included."""
        return self._received_end

    @property
    def received_mark(self) -> LogPosition:
        """(position, entry) behind the last complete record.

        Between two segments it is the position of the second one's header, even if that segment has begun: the stream
        continues there, perhaps with the header of another master.
        """
        return self._canonical(marks_of(self)[0])

    @property
    def synced_mark(self) -> LogPosition:
        """(position, entry) behind the last record that is known to be synced."""
        return self._canonical(marks_of(self)[1])

    @property
    def progress(self) -> tuple[LogPosition, LogPosition]:
        """`received_mark` and `synced_mark`, read together."""
        received, synced = progress_of(self, self.segment_bytes)
        if synced != self._last_synced[0]:  # it usually lies in an earlier segment, which takes a lookup
            self._last_synced = synced, self._canonical(synced)
        return received, self._last_synced[1]

    def _canonical(self, mark: LogPosition) -> LogPosition:
        position, entry = mark
        segment, end, _, _ = self._state
        if segment is not None and position < segment.base:
            return self._canonical_behind(mark)
        if segment is not None and segment.sealed and position == end:
            return LogPosition(segment.base + segment.size, entry)
        return canonical(mark, self.segment_bytes)

    def _canonical_behind(self, mark: LogPosition) -> LogPosition:
        """Return the canonical form of a mark before the active segment.

        The first entry of the next segment decides whether the mark is the end of its own segment.
        """
        rows = self._segment_table()
        base, first_entry, _ = rows[bisect_right(rows, mark[0], key=itemgetter(0))]
        return LogPosition(base, first_entry) if first_entry == mark[1] else canonical(mark, self.segment_bytes)

    # ---- receiving ------------------------------------------------------------------------------------

    def begin(self, header: ReadableBuffer) -> None:
        """Begin the next segment with the 64 bytes of header that the master sent.

        An empty segment may be begun again: the header of another master at the same position may have another epoch.

        Raises:
            StreamError: it is not the header of the next segment.
            DiskFullError: nothing was changed; the same holds for other DiskErrors.
        """
        data = bytes(header)
        if len(data) != STREAM_HEADER_BYTES:
            raise StreamError(
                self._received_end, f"the header of a segment, {STREAM_HEADER_BYTES} bytes", f"{len(data)} bytes"
            )
        self._enter()
        try:
            base, first, epoch, version = self._check_header(data)
            active, _, _, last_time = self._state
            self._pool.epoch, self._pool.version = epoch, version
            if active is not None and active.base == base:
                self._begin_anew(active, first, epoch, version, last_time)
            else:
                self._begin_segment(self._pool.take(first), first, last_time)
            self._received_end = base + HEADER_BYTES
            self._publish_end()
        finally:
            self._leave()

    def _begin_anew(self, active: Segment, first: int, epoch: int, version: int, last_time: int) -> None:
        header = encode_header(self.uuid, active.base, active.size, first, epoch, version)
        self._files.write(active.fileno(), header, 0)
        active.reassign(active.path, self.uuid, active.base, first, epoch)
        active.index = SparseIndex(active.size)
        self._activate(active, HEADER_BYTES, first, last_time)

    def _check_header(self, data: bytes) -> tuple[int, int, int, int]:
        """Return (base, first entry, epoch, version) of a header that must be the next one."""
        try:
            uuid, base, size, first, epoch, version = decode_header("the stream", data[:STREAM_HEADER_BYTES])
        except (CorruptionError, FormatVersionError) as error:
            raise StreamError(self._received_end, "the header of a segment", str(error)) from error
        expected = (self.uuid, self._received_end, self.segment_bytes, self._state[2])
        if base + HEADER_BYTES == self._received_end:  # the segment has begun, and is empty
            expected = (self.uuid, base, self.segment_bytes, self._state[2])
        if (uuid, base, size, first) != expected or self._received_end % self.segment_bytes not in (0, HEADER_BYTES):
            raise StreamError(self._received_end, _header(*expected), _header(uuid, base, size, first))
        if encode_header(uuid, base, size, first, epoch, version)[:STREAM_HEADER_BYTES] != data:
            raise StreamError(base, "a header as this version writes it", data.hex())
        return base, first, epoch, version

    def resume(self) -> LogPosition:
        """Drop the bytes of an incomplete record; return the mark at which another stream continues.

        A commit point beyond it belongs to the previous stream, which may have come from another master.
        """
        self._enter()
        try:
            mark = self.received_mark
            self._received_end, self._commit = mark.position, min(self._commit, mark)
            return mark
        finally:
            self._leave()

    def append_replicated(self, position: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Apply bytes of the stream, all in one segment, which begin at `position`, the end of the received bytes.

        The header of a segment comes alone, as for `begin`. Complete records count from now on; the CRC, stamp and
        number of each are verified. A blank ends the segment.

        Raises:
            StreamError: the bytes do not continue the log, or a record is bad. The log ends before that record, and the
                stream continues there.
            PoisonedError: the disk failed.
        """
        if position % self.segment_bytes:
            self._apply_replicated(position, buffers)
        else:
            self.begin(*buffers)

    def _refuse_record(self, segment: Segment, status: int) -> NoReturn:
        """Raise StreamError for the record after the last good one.

        The received bytes after it do not count, and are zeroed: behind a good record in place of the refused one they
        would count once the log is opened again, whether its master has them or not.
        """
        fault = segment.fault(segment.end, status)
        end = self._state[1]
        try:
            recovery.zero(self._files, segment, end - segment.base, self._received_end - segment.base)
            self._files.sync(segment.fileno())
        except OSError as error:
            raise self._poison("append", error) from error
        self._received_end = end
        raise StreamError(fault.position, fault.expected, fault.found) from fault

    def _end_segment(self, segment: Segment) -> None:
        """Seal a segment whose blank has arrived: zero what an earlier use of the file left behind it."""
        recovery.zero(self._files, segment, segment.end + BLANK_BYTES, segment.used_end(segment.end + BLANK_BYTES))
        segment.advance(segment.end, True)
        self._received_end = segment.base + segment.size
        self._note_sealed(segment)

    # ---- commit point ---------------------------------------------------------------------------------------

    def show(self, position: int, entry: int) -> None:
        """Show readers the entries before the master's commit point, as far as this log reaches.

        The commit point never goes back. Any thread.
        """
        self._commit = max(self._commit, LogPosition(position, entry))
        show_up_to(self, *self._commit)

    def _publish_end(self) -> None:
        """Show readers an end that was set without an append."""
        self._publish(is_open=True)
        show_up_to(self, *self._commit)

    # ---- truncation -----------------------------------------------------------------------------------------

    def cut(self, position: int, entry: int) -> None:
        """Cut the entries that the master does not have: the log ends at `position`, where record `entry` would begin.

        Durable and crash-safe, like `CommitLog.truncate`; the bytes that are cut are kept in `aside/`. The stream
        continues at the cut, or with the header of the segment if the cut is in front of its first record. Followers
        beyond it get TruncatedError.

        Raises:
            OutOfRangeError: no record begins there.
            PoisonedError: the disk failed.
        """
        self.check_open()
        position, entry = canonical((position, entry), self.segment_bytes)
        self.sync()  # the cut end counts as synced, so everything before it must be
        with self._lock:
            self._enter()
            try:
                self._check_boundary(position, entry)
                self._sync_sealed()
                if (position, entry) != self.received_mark:
                    self._cut(position, entry)
                self._received_end = position
            except OSError as error:
                raise self._poison("truncation", error) from error
            finally:
                self._leave()

    def _check_boundary(self, position: int, entry: int) -> None:
        end, start = self.received_mark, (self.start_position, self.start)
        if (position, entry) in (end, start):
            return
        if not start[0] < position < end[0]:
            raise OutOfRangeError(f"position {position}: the log has {start[0]} to {end[0]}")
        held, segment = self.hold_segment(position)
        index = SparseIndex(segment.size)
        stop = max(position - segment.base, HEADER_BYTES)
        at, status = segment.verify(index, HEADER_BYTES, stop)
        del held
        if status or at != stop or segment.entry_after(index.entries) != entry:
            raise OutOfRangeError(f"position {position}: no record with number {entry} begins there")

    def _cut(self, position: int, entry: int) -> None:
        folder = recovery.set_aside(self.path, self._files, position, self._cut_bytes(position))
        logger.warning(
            "%s: cut at position %d (entry %d); what was cut is kept in %s", self.path, position, entry, folder
        )
        self._cut_off(position, entry)

    def _cut_off(self, position: int, entry: int) -> None:
        """Cut without a copy of the cut bytes. The caller is inside, holds the lock, and has synced the log."""
        epoch = max(self._checkpoint.last.epoch, self._pool.epoch) + 1
        self._carry_out(Truncation(position, entry, epoch))
        rows = [row for row in self._segment_table() if row[0] < position]
        if position % self.segment_bytes:
            segment = truncation.reopen(self.path, self._files, position, self.segment_bytes)
            rows[-1] = segment.base, segment.first_entry, segment
            segment.advance(position - segment.base, False)
        self._set_segments(rows)
        self._commit = min(self._commit, LogPosition(position, entry))
        if rows:
            _, segment = self.hold_segment(rows[-1][0])
            self._load_index(segment, entry - 1)
            self._stand_in(segment, entry, 0)
        else:
            self._first = position, entry
            stand_at(self, position, entry)
        self._set_synced(position, entry)
        self._last_synced = _NOWHERE, _NOWHERE
        self._publish(is_open=True)

    def _cut_bytes(self, position: int) -> Iterator[tuple[str, memoryview]]:
        """Yield (file name, bytes) of everything behind a position."""
        for base, _, _ in self._segment_table():
            if base + self.segment_bytes > position and base < self._received_end:
                start, stop = max(position - base, 0), min(self._received_end - base, self.segment_bytes)
                _, segment = self.hold_segment(base)
                yield f"{base + start:020d}.cut", segment.view(start, stop - start)

    # ---- closing --------------------------------------------------------------------------------------------

    def promote(self) -> None:
        """Close the mirror, and turn it into a log of its own, which `pyreplog.open` opens. It is synced before.

        Raises:
            PoisonedError: the disk failed; the log is still a mirror.
            ClosedError: the log was closed.
        """
        if self._error is not None:
            raise self._error
        self._releasing = True
        self.close()

    def _finish(self) -> None:
        with self._lock:
            if not self._is_dormant:
                self._enter()
                try:
                    self._forget_partial()
                finally:
                    self._leave()
            super()._finish()
        if self._releasing:
            replica.unmark(self.path, self._files)

    def _forget_partial(self) -> None:
        """Zero the bytes behind the last record, which a later record may not overwrite."""
        segment, end, _, _ = self._state
        if segment is not None and not segment.sealed and self._received_end > end:
            recovery.zero(self._files, segment, end - segment.base, self._received_end - segment.base)
            self._files.sync(segment.fileno())
            self._received_end = end

    # ---- unsupported --------------------------------------------------------------------------------

    def append(self, *_: object, **__: object) -> NoReturn:
        """Raise ReplicaError."""
        self.check_open()
        raise ReplicaError(self.path)

    append_batch = append_columns = submit = submit_batch = truncate = append
    append_record_batches = append_record_batches_pending = append_record_batch_pending = append
    append_pending = append_batch_pending = append

    def __repr__(self) -> str:
        state = "closed" if self._error or self._parents else f"entries {self.start} to {self.end}"
        return f"<MirrorLog {str(self.path)!r} {state}>"


def canonical(mark: tuple[int, int], segment_bytes: int) -> LogPosition:
    """Return a mark; the position of a segment's first record is replaced by that of the segment's header."""
    position, entry = mark
    return LogPosition(position - HEADER_BYTES if position % segment_bytes == HEADER_BYTES else position, entry)


def _header(uuid: bytes, base: int, size: int, first_entry: int) -> str:
    return f"the header of log {uuid.hex()} at {base}, {size} bytes, first entry {first_entry}"
