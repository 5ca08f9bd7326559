"""CommitLog: the writer's handle of a log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import uuid as uuid_module
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from pyreplog import handles
from pyreplog._native.log.appender import Appender
from pyreplog._native.log.apply_replicated import show_up_to, stand_at
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import COUNTED, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.arguments import as_int
from pyreplog.clock import Clock, SystemClock
from pyreplog.config import LogConfig
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    ForkedError,
    LockedError,
    NotALogError,
    PoisonedError,
    RecordBatchesError,
    ReplogError,
    TrimmedError,
    WindowFullError,
)
from pyreplog.future import AppendFuture, set_result, settle_all
from pyreplog.log import indexes, log_cursor, names, recovery, retention, startup, truncation
from pyreplog.log.checkpoint import CheckpointFile
from pyreplog.log.commit import GroupCommit
from pyreplog.log.files import Files, RealFiles, disk_error, translate_open_errors
from pyreplog.log.housekeeper import BackgroundTask, Housekeeper
from pyreplog.log.lock import WriterLock
from pyreplog.log.log_view import LogView
from pyreplog.log.runtime import WHEN_WOKEN, LogRuntime
from pyreplog.log.segments import Removed, SegmentPool
from pyreplog.log.stats import LogStats
from pyreplog.log.truncation import Truncation
from pyreplog.log.watcher import Watcher
from pyreplog.purgatory import Purgatory
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

T = TypeVar("T")

LAZY_SYNC_S = 2.0
"""Age, in seconds, at which a sealed segment of an `appended` log is synced. The sync limits how much recovery has to
verify after a crash; the delay saves a log that is trimmed quickly from syncing segments that it removes."""

MAPPED_MAX = 1024
"""Number of sealed segments that stay mapped. Beyond it, the oldest segments without a reader are unmapped."""

WINDOW_BYTES = 4 << 20
"""Half of the bytes that may wait in memory for a sync. An event loop may append while fewer bytes wait."""

_ROOM_BYTES = 64 << 10
"""Bytes that `room()` guarantees in the active segment: an event loop that appends fewer bytes never rolls it."""

_BLANK_BYTES = 32
"""Size of the blank: the record that ends a segment."""

_BLOCK_BYTES = 4096
"""Unit of hole punching: a dormant log frees the blocks behind its end from the next multiple of this on."""

_RETENTION_S = 5.0
"""Interval, in seconds, at which retention runs, in addition to each time that a segment is full. Retention polls,
since no event tells that a segment has aged, a cursor has moved or the retention floor was lowered."""

_IDLE_RETENTION_S = 60.0
"""Longest interval, in seconds, at which retention runs for an idle log without a segment that is old enough. It does
not sleep until the segment is old enough, since the clock may be set meanwhile."""

_LOCK_S = 0.01
_ROLL_S = 0.001


class ClosedSegment(NamedTuple):
    """The active segment of a dormant log: the fields its header must have, its index, and the offset of its end."""

    uuid: bytes
    base: int
    first_entry: int
    epoch: int
    sparse_index: SparseIndex
    offset: int


class CommitLog(LogView, Appender):
    """A log that is open for appending and reading; made by `pyreplog.open`.

    One process at a time has a log open for appending. In it any thread may call any method, and coroutines await what
    `submit` returns. `log[n]` is the value of entry n, `log[a:b]` a list of values, and `len(log)` the number of
    entries. Close the log, or use `with`.

    Attributes:
        path: directory of the log.
        config: its settings.
        uuid: its identity, 16 bytes.
        segment_bytes: size of its segment files, bytes.
        cut_records: number of intact records in the torn tail that opening the log cut.

    Example:
        ```python
        with pyreplog.open("data/orders") as log:
            numbers = log.append_batch([b"a", b"b", b"c"])
            print(log[numbers[0]], log[-2:])
        ```

    See docs/log.md.
    """

    _whole_collected: list[bool] | None = None  # see `make_part_of`

    def __init__(
        self, path: Path, config: LogConfig, *, create: bool, clock: Clock | None, files: Files | None,
        gated: bool = False, mirror: bool = False, retention_floor: int = 1 << 62, record_batches: bool = False,
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        """Open the log and start its background tasks.

        Args:
            path: directory of the log.
            config: settings of the log.
            create: make the log if it does not exist.
            clock: source of append times; None: the system's clock.
            files: the disk; None: the operating system's files.
            gated: the log has a commit point: readers see entries once `show_up_to` has moved it past them.
            mirror: the log is a replica's copy of its master's log.
            retention_floor: position from which on retention removes no segment.
            record_batches: let records take several entry numbers (`append_record_batches`). The headers of new
                segments say so: the log stays one that may hold such records, and earlier builds cannot open it.
            runtime: whose threads the log uses. Such a log makes its first segment with the first append, and closes
                its files while it is idle. None: the log has threads of its own.
        """
        self._runtime = runtime
        self._is_dormant = False  # the log is open, but its next append has to open or make a segment file first
        self._closed_segment: ClosedSegment | None = None  # of a dormant log; None: it has no active segment
        self._used_at, self._used_end = 0.0, -1  # time of the last use of files, and the end then; see `_close_idle`
        self._is_tail_behind = False  # the tail page lacks a change that was made while the log was dormant
        self._first_times = dict[int, int]()  # append time of a segment's first record, by base; see `_first_time`
        self._first = 0, 0  # position and entry number where a log without segments begins
        self._has_rolled = False  # since it was opened or dormant: only then segments are prepared ahead of need
        self.path, self.config, self._gated, self._mirror = path, config, gated, mirror
        self._version = COUNTED if record_batches else 1  # lowest format version of new segments
        self.retention_floor = retention_floor
        """Position from which on retention removes no segment; it holds from opening on. Higher layers lower it."""
        self._files = files if files is not None else RealFiles()
        self._error: ReplogError | None = ClosedError(f"{path} was not opened")
        self._lock = threading.RLock()  # guards the table of segments and the checkpoint
        self._room_lock = threading.Lock()
        self._wanted_room, self._room_waiters = 0, list[AppendFuture[None]]()  # under the lock; see `_want_room`
        self._room_error: DiskError | None = None  # why the last request for room failed
        self._pid = os.getpid()
        self._clock: Clock = clock if clock is not None else SystemClock()
        with translate_open_errors(path):
            startup.prepare_directory(path, self._files, create=create, mirror=mirror, grouped=gated)
            self._writer_lock = WriterLock(path, None if runtime is None else runtime.locks.get(path.parent))
            try:
                self._open(create, clock)
            except BaseException:
                self._writer_lock.release()
                raise
            if runtime is not None:
                self._writer_lock.close_descriptor()
        self._error = None
        self._housekeeper.start()
        self._opened_at = handles.opened(self)

    # ---- opening --------------------------------------------------------------------------------------------

    def _open(self, create: bool, clock: Clock | None) -> None:
        synced = self.config.durability == "synced"
        self._staged = synced and not self._mirror
        self._configure(staged=self._staged, clock=clock, gated=self._gated)
        self._purgatory = Purgatory()
        started = startup.start(self.path, self._files, self.config, create=create)
        self.uuid = started.checkpoint.uuid
        self.segment_bytes = started.checkpoint.segment_bytes
        self._checkpoint = CheckpointFile(self.path, self._files, started.checkpoint)
        self._pool = SegmentPool(
            self.path, self._files, uuid=self.uuid, size=self.segment_bytes, zeroed=synced,
            populate=not (synced or self._mirror), spares=self.config.spare_segments,
        )  # fmt: skip
        self._use_tail(startup.open_tail(self.path, self._files, started), trusted=True)
        self._begin(started.found)
        self._set_open(not self._is_dormant)
        self._commits = GroupCommit(
            self,
            self._submitted,
            self._checkpoint.last.position,
            self._files.write_sync,
            self._poison,
            self._runtime,
        )
        listeners = None if self._runtime is None else self._runtime.listeners
        self._watcher = Watcher(self.tail, self._purgatory, self._sleep, listeners)
        self._sealed: deque[tuple[float, Segment]] = deque()  # (time of sealing, segment) until it is synced; ascending
        self._last_sync = time.monotonic()
        self._housekeeper: Housekeeper[CommitLog] = Housekeeper(
            self,
            preparing=[
                BackgroundTask("making room", CommitLog._make_wanted_room),
                BackgroundTask("retention", CommitLog._retain),
                BackgroundTask("preparing a segment", CommitLog._prepare),
            ],
            syncing=[
                BackgroundTask("syncing sealed segments", CommitLog._seal_due),
                BackgroundTask("syncing at intervals", CommitLog._sync_at_intervals),
                BackgroundTask("closing the files of an idle log", CommitLog._close_idle),
            ],
            poison=CommitLog._poison,
            runtime=self._runtime,
        )
        for segment in started.found.opened:  # their index files may never have been written
            if segment.sealed:
                self._note_sealed(segment)
        if self._runtime is not None:
            self._close_at_opening(self._runtime)
        if self._version > 1 and not self._is_dormant:  # a dormant log does this at its first batch
            self._enter()
            try:
                self._begin_counted()
            finally:
                self._leave()

    def _close_at_opening(self, runtime: LogRuntime) -> None:
        """Close the files of a log that was just opened: a broker may open more logs than it has descriptors."""
        active, end, _, _ = self._state
        if self._is_dormant:
            pass
        elif self._may_close():
            self._enter()
            try:
                self._close_active()
            finally:
                self._leave()
            if active is not None:
                active.close_file()
        elif active is not None:
            self._files.allocate(active.fileno(), Path(active.path), active.size)
            runtime.open_logs.add(self._housekeeper)
        self._used_at, self._used_end = time.monotonic(), end
        if self._is_dormant:
            self._checkpoint.close()
            self.tail.unmap()
            del active
            if not self._sealed:  # the indexes of sealed segments may not be in their files yet
                self._unmap_unpinned()

    def _begin(self, recovered: recovery.RecoveryResult) -> None:
        """Set the table of segments, take or continue the active segment, and publish the tail page."""
        self._check_kind(recovered)
        self.cut_records = recovered.cut_records
        last = self._checkpoint.last
        opened = {segment.base: segment for segment in recovered.opened}
        self._set_segments([(file.base, file.first_entry, opened.get(file.base)) for file in recovered.files])
        epoch = max([last.epoch, *(file.epoch for file in recovered.files)]) + recovered.cut
        next_base = recovered.files[-1].base + self.segment_bytes if recovered.files else last.start
        self._pool.version = max(self._version, recovered.files[-1].version if recovered.files else 1)
        self._pool.place(next_base, epoch)
        self._continue(recovered)
        _, end, entry, _ = self._state
        self._checkpoint.restart(position=end, entry=entry, epoch=epoch)
        self._set_synced(end, entry)
        self._publish(is_open=True)

    def _continue(self, recovered: recovery.RecoveryResult) -> None:
        """Continue the active segment or begin one; with a runtime, a log without segments becomes dormant instead."""
        if self._runtime is not None and not recovered.files:
            self._first = self._checkpoint.last.start, recovered.entry
            stand_at(self, *self._first)
            self._is_dormant = True
        elif recovered.sealed:
            self._begin_synced(recovered.entry, recovered.last_time)
        else:
            active = recovered.opened[-1]
            if self._runtime is None:  # a log with a runtime closes the file at once, and allocates it when it wakes up
                self._files.allocate(active.fileno(), Path(active.path), active.size)
            self._activate(active, active.end, recovered.entry, recovered.last_time)

    def _begin_synced(self, entry: int, last_time: int) -> None:
        self._begin_segment(self._take(entry), entry, last_time)
        self._files.sync(self._state[0].fileno())

    def _check_kind(self, recovered: recovery.RecoveryResult) -> None:
        if any(file.first_entry < 0 for file in recovered.files):
            raise NotALogError(f"{self.path} holds the entries of many ledgers; open it as a LedgerLog")

    def _take(self, entry: int) -> Segment:
        """Take the next segment from the pool; its first entry gets number `entry`."""
        return self._pool.take(entry)

    def _begin_segment(self, segment: Segment, first_entry: int, last_time: int) -> None:
        segment.index = SparseIndex(segment.size)
        self._push_segment(segment)
        self._activate(segment, HEADER_BYTES, first_entry, last_time)

    # ---- methods that the native base classes call ----------------------------------------------------------

    def _refuse(self) -> NoReturn:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self.path} was opened by process {self._pid}; open it again in this one")
        raise self._error if self._error is not None else ClosedError(f"{self.path} was closed")

    def check_open(self) -> None:
        if isinstance(self._error, ClosedError) or os.getpid() != self._pid:
            self._refuse()

    def _reopen(self, waits: bool) -> None:
        if self._error is not None or os.getpid() != self._pid:
            self._refuse()
        if not self._is_dormant:
            with self._lock:  # another thread has ended dormancy meanwhile, or the log is being closed
                if self._is_open:
                    return
                if not self._is_dormant:
                    self._refuse()
        if not waits and _get_running_loop() is not None:
            self._want_room(1, None)
            raise WindowFullError(f"{self.path}: files of the log are being opened; await room() before submit()")
        if self._runtime is not None:
            self._runtime.open_logs.wait()
        self._wake_up()

    def _wake_up(self) -> None:
        """End dormancy: open or make the segment file that the next append writes to.

        Raises DiskError when that fails; the log is then still dormant.
        """
        with self._lock:
            if not self._is_dormant or self._error is not None:  # another thread has ended dormancy
                return
            try:
                self._map_tail()
                self._checkpoint.open()
                if self._closed_segment is not None:
                    self._reopen_active(self._closed_segment)
                else:
                    self._begin_first()
            except OSError as error:
                raise disk_error(error, f"{self.path} cannot be opened for appending") from error
            finally:
                self._note_use()
            self._closed_segment = None
            self._set_open(True)  # first: `_reopen` refuses a log that is neither open nor dormant
            self._is_dormant = False
            if self._runtime is not None:
                self._runtime.open_logs.add(self._housekeeper)

    def _begin_first(self) -> None:
        """Begin the first segment of a dormant log without segments."""
        _, _, entry, last_time = self._state
        self._begin_synced(entry, last_time)
        _, end, entry, _ = self._state
        self._set_synced(end, entry)
        self._publish(is_open=True)

    def _reopen_active(self, closed: ClosedSegment) -> None:
        """Reopen the active segment of a dormant log for appends. If this raises, the log is still dormant."""
        path, (_, _, entry, last_time) = names.segment_path(self.path, closed.base), self._state
        segment = self._segment_table()[-1][2] or self._adopt(self._map_closed(closed))
        segment.set_file(self._files.open(path, writable=True))
        try:
            self._files.allocate(segment.fileno(), path, segment.size)
        except BaseException:
            segment.close_file()
            raise
        self._activate(segment, closed.offset, entry, last_time)

    def _map_closed(self, closed: ClosedSegment) -> Segment:
        """Map the active segment of a dormant log, and close its descriptor. The caller holds the log's lock."""
        path = names.segment_path(self.path, closed.base)
        segment = Segment(self._files.open(path, writable=True), str(path), writable=True)
        segment.close_file()
        if (segment.uuid, segment.base, segment.first_entry, segment.epoch) != closed[:4]:
            raise CorruptionError(
                path, closed.base, "the header of the segment that was closed while the log was idle", "another one"
            )
        segment.index = closed.sparse_index
        segment.advance(closed.offset, False)
        return segment

    # ---- files of an idle log -------------------------------------------------------------------------------

    def _map_tail(self) -> None:
        """Map the tail page of a dormant log. `_close_idle` unmaps it when the log has been idle again."""
        if not self.tail.is_mapped:
            with startup.open_tail_file(self.path, self._files) as file:
                try:
                    self.tail.map(file)
                except ValueError as error:
                    raise CorruptionError(
                        self.path / names.TAIL, 0, "the page that was unmapped while the log was idle", "another one"
                    ) from error
            self._is_tail_behind = False

    def _notify_readers(self) -> None:
        """Map the tail page of a dormant log, so that readers of other processes see a change of it.

        If it cannot be mapped now, `_close_idle` tries again.
        """
        try:
            self._map_tail()
        except (OSError, ReplogError) as error:
            logger.warning("%s: readers of other processes see a change later: %s", self.path, error)
            self._is_tail_behind = True
        self._note_use()

    def _note_use(self) -> None:
        """Note that files of a log with a runtime are open or mapped, so that `_close_idle` closes them again."""
        self._used_at = time.monotonic()
        self._housekeeper.wake_syncing()

    def _close_idle(self) -> float:
        """Close the files of an idle log, and unmap its segments without readers."""
        if self._runtime is None:
            return WHEN_WOKEN
        idle_s, end = self._runtime.idle_s, self._state[1]
        if end != self._used_end:
            self._used_at, self._used_end = time.monotonic(), end
        left = self._used_at + idle_s - time.monotonic()
        if left > 0 and not self._housekeeper.is_asked_to_close:
            return left
        self._housekeeper.is_asked_to_close = False
        self._used_at = time.monotonic()  # if closing fails, the next attempt is `idle_s` later
        try:
            if not self._is_dormant:
                self._close_files()
        finally:
            self._runtime.open_logs.note_attempt(self._housekeeper)
        with self._lock:
            if not self._is_dormant or self._error is not None:
                return idle_s
            pinned = self._unmap_unpinned()
            self._pool.close()
            self._checkpoint.close()
            if self._is_tail_behind:
                with translate_open_errors(self.path):
                    self._map_tail()
            is_unmapped = self.tail.unmap()
            return idle_s if pinned or self._sealed or not is_unmapped else WHEN_WOKEN

    def _close_files(self) -> None:
        """Make an idle log dormant. It syncs before it enters the append path, so that appends do not wait for that."""
        if self._staged and self.staged_bytes:
            return
        self._sync()
        with self._lock:
            self._sync_sealed()
            if self._is_dormant or self._error is not None or self._housekeeper.is_stopping:
                return
            synced, entry = self.tail.synced_end, self.tail.synced_entry
            try:
                self._checkpoint.advance(position=synced, entry=entry, clean=False)
            except OSError as error:
                raise self._poison("closing an idle log", error) from error
            self._enter()
            try:
                if not self._may_close():
                    return
                active = self._state[0]
                self._close_active()
            finally:
                self._leave()
            if active is not None and self._closed_segment is not None:
                self._free_unused_blocks(active, self._closed_segment.offset)

    def _may_close(self) -> bool:
        """Return whether all entries are synced, so that the active segment may be closed.

        The caller is inside the append path.
        """
        if self._error is not None and not isinstance(self._error, ClosedError):
            return False
        return not self.staged_bytes and self.tail.synced_end >= self._state[1]

    def _close_active(self) -> None:
        """Make the log dormant: keep what `_reopen_active` needs, and release the active segment.

        The caller is inside the append path.
        """
        segment, end, _, _ = self._state
        self._is_dormant = True  # first: `_reopen` refuses a log that is neither open nor dormant
        self._set_open(False)
        if self._runtime is not None:
            self._runtime.open_logs.remove(self._housekeeper)
        self._has_rolled = False  # further segments are prepared when the next one is full
        if segment is not None:
            assert segment.index is not None, "the active segment has its index"
            self._closed_segment = ClosedSegment(
                segment.uuid, segment.base, segment.first_entry, segment.epoch, segment.index, end - segment.base
            )
        self._release_active()

    def _free_unused_blocks(self, segment: Segment, end: int) -> None:
        """Free the blocks behind offset `end` of a dormant log's active segment, and close its file."""
        start = -(-end // _BLOCK_BYTES) * _BLOCK_BYTES
        if start < segment.size:
            with contextlib.suppress(OSError):  # not every file system can punch holes
                self._files.punch(segment.fileno(), start, segment.size)
        segment.close_file()

    def _reserve(self, segments: int) -> None:
        """Prepare as many segments as a batch needs, so that a full disk never leaves half of a batch appended."""
        self._pool.prepare(segments)

    def _rebuild(self) -> None:
        """Do nothing: only a reader has to read the table of segments again."""

    def _make_room(self, stride: int) -> None:
        segment, end, entry, last_time = self._state
        if self._staged:
            self._commits.flush()
            if end - segment.base + stride <= segment.size - _BLANK_BYTES:
                self._widen_stage(stride)
                return
        self._roll(segment, entry, last_time)
        if self._staged:
            self._widen_stage(stride)

    def _begin_counted(self) -> None:
        """Make sure that records of the active segment may take several entry numbers.

        An older active segment (the log gets its first record batch, or was truncated into such a segment) gets a new
        header while it is empty; otherwise the log rolls. Raises RecordBatchesError if the log was opened without
        `record_batches`.
        """
        if not self.record_batches:
            raise RecordBatchesError(self.path)
        segment, end, entry, _ = self._state
        if segment.version >= COUNTED:
            return
        if end > segment.base + HEADER_BYTES:
            self._begin_next()
            return
        header = encode_header(self.uuid, segment.base, segment.size, entry, segment.epoch, COUNTED)
        try:
            self._files.write(segment.fileno(), header, 0)
            self._files.sync(segment.fileno())
        except OSError as error:
            raise self._poison("raising the version of a segment", error) from error

    def _begin_next(self) -> None:
        segment, _, entry, last_time = self._state
        if self._staged:
            self._commits.flush()
        self._roll(segment, entry, last_time)

    def _check_inside(self) -> None:
        """Raise WindowFullError in an event loop: the thread inside the append path may wait for the disk."""
        if _get_running_loop() is not None:
            raise WindowFullError(f"{self.path}: room is being made; await room() before submit()")

    def _check_room(self, size: int, segments: int) -> None:
        """Raise WindowFullError if the caller is an event loop that would wait for the disk.

        The caller is inside the append path. size: bytes of the records. segments: number of segments that they begin.
        """
        if _get_running_loop() is None:
            return
        if not self._staged:
            if self._pool.ready >= segments:
                return
            self._want_room(segments, None)
        elif segments or size > WINDOW_BYTES:
            if not segments and not self.staged_bytes:
                self._widen_stage(size)
                return
            if size > self.segment_bytes - HEADER_BYTES - _BLANK_BYTES:
                raise WindowFullError(
                    f"{self.path}: a batch of {size} bytes is longer than a segment; submit it in parts, or in a thread"
                )
            self._want_room(size, None)
        error, self._room_error = self._room_error, None
        if error is not None:
            raise error
        raise WindowFullError(f"{self.path}: {size} bytes wait for the disk; await room() before submit()")

    def _want_room(self, wanted: int, future: AppendFuture[None] | None) -> None:
        """Ask a thread of the log to make room and complete the future then.

        wanted: bytes that must fit into the active segment of a synced log; number of segments to prepare in others.
        """
        with self._room_lock:
            self._wanted_room = max(self._wanted_room, wanted)
            if future is not None:
                self._room_waiters.append(future)
        self._housekeeper.wake_preparing()

    def _make_wanted_room(self) -> float:
        """Wake the log up, roll it or prepare segments, for event loops that wait for room."""
        with self._room_lock:
            wanted, self._wanted_room = self._wanted_room, 0
            waiters, self._room_waiters = self._room_waiters, []
        if not wanted and not waiters:
            return WHEN_WOKEN
        self._room_error = None
        try:
            if self._is_dormant and self._runtime is not None:
                self._runtime.open_logs.wait()
                self._wake_up()
            elif not self._staged:
                self._pool.prepare(wanted)
                if self._is_dormant:  # the log became dormant meanwhile
                    self._note_use()
            else:
                self._enter()
                try:
                    if self._free_bytes < wanted:
                        self._make_room(wanted)
                finally:
                    self._leave()
        except DiskError as error:
            self._room_error = error  # the next `submit` raises it
        finally:
            settle_all([(future, None) for future in waiters])
        return WHEN_WOKEN

    def _end_room(self) -> None:
        """Complete the futures of `room`: the log accepts no more entries, and `submit` raises the reason."""
        with self._room_lock:
            waiters, self._room_waiters = self._room_waiters, []
        settle_all([(future, None) for future in waiters])

    def _roll(self, segment: Segment, entry: int, last_time: int) -> None:
        """Seal the active segment and begin the next one. The caller is inside the append path."""
        taken = self._take(entry)  # first: if the disk is full or fails, the log has not changed
        self._seal()
        if self._staged:
            self._commits.write_blank(segment, self._take_blank())
        self._note_sealed(segment)
        self._begin_segment(taken, entry, last_time)

    def wait_synced(self, position: int) -> None:
        """Wait until all records before `position` of a synced log are on disk. Raises PoisonedError if that fails."""
        self._commits.wait(position)

    def when_synced(self, result: T, position: int) -> AppendFuture[T]:
        """Return an AppendFuture that gives `result` when the records before `position` have the log's durability."""
        return self._commits.acknowledge(result, position)

    def _open_segment(self, base: int) -> Segment:
        if self._is_dormant:
            self._note_use()
        if self._runtime is not None and base + self.segment_bytes > self._state[1]:  # the active one, of a dormant log
            with self._lock:
                active, closed = self._state[0], self._closed_segment
                if closed is not None and closed.base == base:
                    return self._adopt(self._map_closed(closed))
                if active is not None and active.base == base:
                    return active
        path = names.segment_path(self.path, base)
        segment = Segment(self._files.open(path, writable=True), str(path), writable=True)
        segment.advance(HEADER_BYTES, True)
        segment.close_file()
        return segment

    def _load_index(self, segment: Segment, entry: int) -> None:
        with self._lock:
            indexes.cover(self.path, segment, entry)

    def load_index(self, segment: Segment) -> None:
        """Load or build the index of a sealed segment, which tells where its records end.

        Raises CorruptionError if the segment is damaged.
        """
        with self._lock:
            indexes.load_or_build(self.path, segment)

    def _visible(self) -> int:
        return self.tail.visible

    def _poison(self, stage: str, error: OSError) -> PoisonedError:
        """Poison the log after a failed sync, and return the error.

        Nothing is appended or reported as synced until the log is opened again.
        """
        poisoned = PoisonedError(
            f"{self.path}: {stage} failed ({error}); what reached the disk is unknown until reopened"
        )
        poisoned.__cause__ = error
        self._error = self._error or poisoned
        self._set_open(False)
        if self._runtime is not None:
            self._runtime.open_logs.remove(self._housekeeper)  # the housekeeper of a poisoned log closes no files
        self._submitted.fail(poisoned)
        self._end_room()
        logger.error("%s", poisoned)
        return poisoned

    # ---- appending ------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendFuture[range]:
        """Append several entries without waiting for their durability. Waits for room as `submit` does.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.

        Returns:
            An `AppendFuture` that gives the numbers of the entries, a range.

        Raises:
            ReplogError: as `append_batch`.
        """
        entries, position = self.append_batch_pending(values, keys, event_times, None)
        return self.when_synced(entries, position if position is not None else 0)

    def _request_commit(self) -> None:
        self._commits.request()

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as `submit` need not wait: `await log.room()` before it in a coroutine.

        There is room for entries of 64 KiB in all, or of a sixteenth of a segment if that is less. After `submit` has
        refused longer ones with WindowFullError, the next `room()` is done when there is room for them. On a synced log
        it also waits while 4 MiB or more wait to be synced.

        Returns:
            An `AppendFuture`, done when there is room, when room could not be made (`submit` says why), or when the log
                takes no more entries.

        Raises:
            ClosedError: the log was closed.
        """
        self.check_open()
        future: AppendFuture[None] = AppendFuture()
        least = min(_ROOM_BYTES, self.segment_bytes // 16)
        if self._wanted_room or self._is_making_room or self._is_dormant or self._is_short_of(least):
            self._want_room(least if self._staged else 1, future)
            if not self.is_usable:
                self._end_room()
        elif self._staged and self.staged_bytes >= WINDOW_BYTES:
            synced = self.when_synced(None, self.staged_end - WINDOW_BYTES + 8)
            synced.add_done_callback(lambda _: set_result(future, None))
        else:
            set_result(future, None)
        return future

    def _is_short_of(self, least: int) -> bool:
        """Whether so many bytes neither fit into the active segment nor into one that is prepared."""
        segment, end, _, _ = self._state
        return end - segment.base + least > segment.size - _BLANK_BYTES and (self._staged or not self._pool.ready)

    # ---- durability -----------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Sync the log: all entries appended before the call are durable when it returns.

        Any thread may call it; it blocks. A coroutine awaits `sync_async`.

        Returns:
            The number of the first entry that the sync does not cover.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback.
            PoisonedError: the sync failed.
            ClosedError: the log was closed.
        """
        check_may_block("sync")
        return self._sync()

    def _sync(self) -> int:
        """Do what `sync` does, without its check for event loops, which may close and truncate logs."""
        if self._error is not None or os.getpid() != self._pid:
            self._refuse()
        if self._staged:
            self._commits.wait(self._state[1])
            return self.tail.synced_entry
        with self._lock:
            if self._error is not None:  # poisoned while this thread waited
                raise self._error
            segment, position, entry, _ = self._state
            try:
                self._sync_sealed()
                if self.tail.synced_end < position:
                    self._files.sync(segment.fileno())
            except OSError as error:
                raise self._poison("sync", error) from error
            if position > self.tail.synced_end:
                self._set_synced(position, entry)
        return entry

    def commit_stage(self) -> None:
        """Write and sync the staged entries, in this thread and inside the append path.

        An append does so when the stage has no room for it; other threads' appends wait meanwhile. It does nothing if
        nothing is staged. `sync` leaves it to the committing thread, and blocks until that is done.

        Raises:
            PoisonedError: the write or the sync failed.
            ClosedError: the log was closed.
        """
        self._enter()
        try:
            self._commits.flush()
        finally:
            self._leave()

    sync_async = in_thread(sync)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every entry submitted so far has an outcome; the future of each entry gives it.

        Args:
            timeout: seconds; None: without a limit.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: the time ran out; entries that are not synced yet may still become durable.
            ClosedError: the log was closed.
        """
        check_may_block("flush")
        self._commits.check_may_wait()
        self.flush_async().result(timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every entry submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the log was closed.
        """
        self.check_open()
        future: AppendFuture[None] = AppendFuture()
        self.when_synced(None, self._state[1]).add_done_callback(lambda _: set_result(future, None))
        return future

    def show_up_to(self, position: int, entry: int) -> None:
        """Advance the commit point of a log that was opened with one (`gated`), up to the end of the log.

        Readers see all records before it. It never moves back. Any thread may call this.

        Args:
            position: position up to which readers see the log.
            entry: number of the entry that begins at `position`.
        """
        show_up_to(self, position, entry)

    @property
    def end(self) -> int:
        """Number of the first entry that readers may not read: one more than that of the last visible entry."""
        if self._parents is not None:
            raise self._parents
        return self.tail.visible_entry

    @property
    def start(self) -> int:
        """Number of the first entry in the log."""
        self._check_process()
        return super().start if self._segment_table() else self._first[1]

    @property
    def start_position(self) -> int:
        """Position of the first segment, bytes from the beginning of the log."""
        self._check_process()
        return super().start_position if self._segment_table() else self._first[0]

    @property
    def synced_end(self) -> int:
        """Number of the first entry that is not known to be on disk."""
        self._check_process()
        return self.tail.synced_entry

    def _publish(self, *, is_open: bool) -> None:
        """Write all words of the tail page, at open, truncation and close. An append writes only what it changes."""
        _, end, entry, _ = self._state
        tail = self.tail
        if self._staged:
            end, entry = tail.synced_end, tail.synced_entry
        visible = end, entry
        if self._gated:
            # The commit point stays; but not before the first record: readers reject a page with visible end 0.
            first = self.start_position + HEADER_BYTES, self.start
            visible = min(visible, max((tail.visible, tail.visible_entry), first))
        tail.publish(
            start=self.start_position, end=end, end_entry=entry, synced_end=tail.synced_end,
            synced_entry=tail.synced_entry, visible=visible[0], visible_entry=visible[1], is_open=is_open,
        )  # fmt: skip

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _wait_for_entry(self, entry: int, timeout: float | None) -> bool:
        """Return whether `entry` becomes visible within `timeout` seconds. The watcher's thread sleeps meanwhile."""
        return await self._watcher.reached(entry, timeout)

    # ---- removing -------------------------------------------------------------------------------------------

    def trim(self, entry: int) -> int:
        """Remove whole segments whose entries all lie before an entry.

        The active segment stays, and so do segments with records at or behind `retention_floor` or a cursor of the log.
        A reader that holds a removed segment can go on reading it.

        Args:
            entry: number of the first entry to keep.

        Returns:
            The number of the first entry of the log.

        Raises:
            WrongTypeError: `entry` is not an int.
            CorruptionError: the file of a cursor is damaged.
            LockedError: another process creates a cursor, and has held the lock for that for seconds.
            PoisonedError: the disk failed while segments were removed.
            ClosedError: the log was closed.
        """
        self.check_open()
        as_int("entry", entry)
        if len(table := self._segment_table()) > 1 and table[1][1] <= entry:
            with log_cursor.retention_held(self.path, log_cursor.HELD_S), self._lock:
                table, floor, count = self._segment_table(), min(self.retention_floor, self._held_by_cursors()), 0
                while count + 1 < len(table) and table[count + 1][1] <= entry and table[count + 1][0] <= floor:
                    count += 1
                self._remove_front(count)
        return self.start

    @contextlib.contextmanager
    def freeze_files(self) -> Iterator[None]:
        """Keep the log from creating, renaming or removing files during a `with` block.

        For tests, and for operators who copy the directory of an open log. A backup (`pyreplog.log.backup`) does not
        need it. Retention, trimming, truncation, and an append that needs another segment wait for the end of the
        block; other appends go on.
        """
        with self._lock, self._pool.paused():
            yield

    def lower_retention_floor(self, position: int) -> None:
        """Keep retention from removing segments from `position` on.

        When it returns, no retention runs that has read an earlier floor.
        """
        with self._lock:
            self.retention_floor = position

    def _remove_front(self, count: int) -> None:
        """Remove the first `count` segments from the table and then from the disk. The caller holds the log's lock.

        Raises PoisonedError if the disk fails.
        """
        self._retire(self._take_out(count))

    def _take_out(self, count: int) -> list[Removed]:
        """Remove the first `count` segments from the table, for `_retire`. The caller holds the log's lock.

        The checkpoint moves the start of the log before a file is removed: recovery then neither reports the removed
        segments as missing, nor takes the files that a crash left for segments of the log.
        """
        if not count:
            return []
        if self._error is not None:  # a truncation that failed half way may still need these segments
            raise self._error
        table = self._segment_table()
        bases, (start, first_entry, _) = [row[0] for row in table[:count]], table[count]
        if self._is_dormant:
            self._note_use()
            with translate_open_errors(self.path):
                self._checkpoint.open()
        try:
            self._checkpoint.trim(start=start, entry=max(first_entry, 0))
        except OSError as error:
            raise self._poison("trim", error) from error
        dropped = self._drop_segments(count)
        self.tail.start = self.start_position
        if not self.tail.is_mapped:
            self._notify_readers()
        self._forget_sealed(bases[-1])
        for base in bases:
            self._first_times.pop(base, None)
        return list(zip(bases, dropped, strict=True))

    def _retire(self, removed: list[Removed], *, refill: bool = False) -> None:
        """Remove segments that left the table from the disk, in order.

        Empties the list, since a reference to a segment would keep its file from being recycled.

        removed: from `_take_out`. refill: prepare new segments from the files.

        Raises DiskError if no segment could be prepared, PoisonedError if the disk failed otherwise.
        """
        try:
            self._pool.retire(removed, refill=refill)
        except DiskError:
            raise
        except OSError as error:
            raise self._poison("trim", error) from error

    def truncate(self, entry: int) -> int:
        """Truncate the log, so that its next entry gets a given number. A record batch is cut as a whole.

        Durable and crash-safe: after a crash the log has its old end or its new end. Entries that were cut never come
        back. Batches that readers hold stay valid; followers that are beyond the cut get TruncatedError.

        Args:
            entry: number that the next entry gets.

        Returns:
            The number that the next entry gets: `entry`, or that of the first entry of the record batch it lies in.

        Raises:
            OutOfRangeError: `entry` lies behind the end.
            TrimmedError: `entry` lies before the start.
            PoisonedError: the disk failed.
            ClosedError: the log was closed.
        """
        self.check_open()
        as_int("entry", entry)
        self._sync()  # the new end counts as synced, so all records before it must be
        with self._lock:
            self._enter()
            try:
                if self._staged:
                    self._commits.flush()
                self._sync_sealed()
                if entry != self._state[2]:
                    entry = self._cut_to(entry)
            except OSError as error:  # half done: mapped segments may differ from the files
                raise self._poison("truncation", error) from error
            finally:
                self._leave()
        return entry

    def _cut_to(self, entry: int) -> int:
        """Truncate the log at `entry`, or before the record batch that it lies in; return the number of the next entry.

        The caller is inside the append path, holds the lock, and has synced all records before `entry`.
        """
        position, entry = self._place_of(entry)
        last_time = self.get(entry - 1).timestamp if entry > self.start else 0
        epoch = max(self._checkpoint.last.epoch, self._pool.epoch) + 1
        self._carry_out(Truncation(position, entry, epoch))
        segment = truncation.reopen(self.path, self._files, position, self.segment_bytes)
        rows = [row for row in self._segment_table() if row[0] < segment.base]
        self._set_segments([*rows, (segment.base, segment.first_entry, segment)])
        self._restart(segment, position, entry, last_time)
        return entry

    def _carry_out(self, wanted: Truncation) -> None:
        """Carry out all steps of a truncation except that of the table of segments, which the caller sets."""
        with self._pool.quiet():
            self._pool.place(-(-wanted.position // self.segment_bytes) * self.segment_bytes, wanted.epoch)
            truncation.announce(self.path, self._files, wanted)
            truncation.publish_cut(self.tail, self.start_position, wanted, is_open=True)
            self._forget_sealed(1 << 62)
            self._first_times.clear()
            truncation.apply(self.path, self._files, wanted, self._checkpoint)
        self.tail.note_truncation()  # again: a reader may have read the table while files were replaced

    def _restart(self, segment: Segment, position: int, entry: int, last_time: int) -> None:
        """Append from `position` on, in the segment that was cut there. All records before it are synced."""
        self._activate(segment, position - segment.base, entry, last_time)
        self._commits.restart(position)
        self._set_synced(position, entry)
        self._publish(is_open=True)

    # ---- background tasks: each returns the seconds until it has to run again --------------------------------

    def run_background_tasks(self) -> None:
        """Run the background tasks that are due in the calling thread: retention, preparing segments, syncing."""
        self._housekeeper.step(self)

    def _note_sealed(self, segment: Segment) -> None:
        """Note that a segment is full, and wake the tasks that sync it and prepare another one.

        Called on the append path, which does not wait for them.
        """
        self._has_rolled = True
        self._sealed.append((time.monotonic(), segment))
        self._housekeeper.wake_preparing()
        if self.config.durability != "appended" or self._housekeeper.is_shared:
            self._housekeeper.wake_syncing()

    def _forget_sealed(self, base: int) -> None:
        """Drop the segments up to and including the one at `base` from the list of segments to sync."""
        with contextlib.suppress(IndexError):
            while self._sealed[0][1].base <= base:
                self._sealed.popleft()

    def _retain(self) -> float:
        """Remove segments by age and size until none has expired, and prepare new segments from their files.

        A recycled file saves the creation of a new one.
        """
        while removed := self._take_out_expired():
            self._retire(removed, refill=not self._is_dormant)
        table = self._segment_table()
        if not self._has_retention or len(table) < 2:
            return WHEN_WOKEN  # by the next full segment
        return self._retention_pause(table[1][0])

    def _retention_pause(self, second: int) -> float:
        """Return the seconds until retention runs again. second: base of the second segment."""
        keep_ms, next_time = self.config.retention_ms, self._first_times.get(second)
        if keep_ms is None or next_time is None or not self._is_dormant:
            return _RETENTION_S
        left_us = next_time + keep_ms * 1000 - self._clock.now_us()
        return max(_RETENTION_S, min(left_us / 1e6, _IDLE_RETENTION_S))

    @property
    def _has_retention(self) -> bool:
        return self.config.retention_bytes is not None or self.config.retention_ms is not None

    def _take_out_expired(self) -> list[Removed]:
        if not self._has_retention:
            return []
        while not self._lock.acquire(timeout=_LOCK_S):  # another thread holds it while it syncs
            if self._pool.ready <= self.config.spare_segments // 2:
                return []  # `_prepare` runs first: appends need a prepared segment
        try:
            if not self._expired(1 << 62):
                return []
            with log_cursor.retention_held(self.path, 0.0):
                return self._take_out(self._expired(self._held_by_cursors()))
        except LockedError:  # a cursor is being created, perhaps in a segment that has expired
            return []
        finally:
            self._lock.release()

    def _held_by_cursors(self) -> int:
        """Return the position from which on the cursors of this log hold its records."""
        return log_cursor.held_from(self.path, self.uuid, self._state[1], self.config.cursor_hold_bytes)

    def _expired(self, held: int) -> int:
        """Return how many segments retention may remove now. held: position from which on cursors hold records."""
        config, table, end, now_us = self.config, self._segment_table(), self._state[1], self._clock.now_us()
        floor = min(held, self.retention_floor, self.tail.visible)  # records that are not visible yet stay
        count = 0
        while count + 1 < len(table):
            last_time = self._first_time(count + 1, now_us) if config.retention_ms is not None else now_us
            if not retention.may_remove(config, table[count][0], table[count + 1][0], last_time, end, now_us, floor):
                break
            count += 1
        return count

    def _first_time(self, row: int, now_us: int) -> int:
        """Return the append time of a segment's first record: at or after that of the last record before it.

        Returns `now_us` if the segment has no record yet: a recycled file still holds records of an earlier segment.
        """
        base = self._segment_table()[row][0]
        if (time_us := self._first_times.get(base)) is not None:
            return time_us
        try:
            _, segment = self.hold_segment(base)
        except ReplogError:
            raise
        except OSError as error:  # too many open files, for example; no sync failed, so the log is not poisoned
            raise DiskError(
                error.errno, f"{self.path}: a segment cannot be opened: {error}; free descriptors, or raise ulimit -n"
            ) from error
        if not segment.sealed and segment.end <= HEADER_BYTES:
            return now_us
        time_us = self._first_times[base] = segment.head_at(HEADER_BYTES)[3]
        return time_us

    def _prepare(self) -> float:
        """Prepare one segment if the pool wants one. Retention runs before the next one, and may free a file for it."""
        if self._is_dormant or (self._runtime is not None and not self._has_rolled):
            return WHEN_WOKEN  # most partitions never fill a segment
        if self._state[1] // self.segment_bytes * self.segment_bytes + self.segment_bytes < self._pool.next_base:
            return _ROLL_S  # the log is rolling; afterwards retention may have a file to recycle
        if self._pool.wanting():
            self._pool.prepare_ahead()
            if self._is_dormant:  # the log became dormant meanwhile
                self._note_use()
        return 0.0 if self._pool.wanting() else WHEN_WOKEN

    def _seal_due(self) -> float:
        """Sync the sealed segments that are due, oldest first, and write their index files; unmap surplus segments."""
        lazily = LAZY_SYNC_S if self.config.durability == "appended" else 0.0
        due = time.monotonic() - lazily
        while self._sealed and self._sealed[0][0] <= due and not self._housekeeper.is_stopping and self.is_usable:
            with self._lock:
                self._sync_sealed(1)
        with self._lock:
            self._unmap_surplus()
        try:
            return max(self._sealed[0][0] + lazily - time.monotonic(), 0.0)
        except IndexError:  # no sealed segment is left
            return WHEN_WOKEN

    def _sync_sealed(self, limit: int | None = None) -> None:
        """Sync sealed segments, the oldest first, and advance the checkpoint. The caller holds the log's lock.

        limit: number of segments to sync at most; None: those that are sealed now, since appends that outpace the disk
        would seal more and more of them.

        Does nothing if the log is poisoned: the kernel marks pages of a failed sync as clean, so the next sync of lost
        data would succeed. Raises PoisonedError if a sync fails.
        """
        left = len(self._sealed) if limit is None else limit
        while self._error is None and self._sealed and left > 0:
            try:
                self._sync_oldest(self._sealed[0][1])
            except OSError as error:  # poison the log under the lock, before another thread syncs the same segment
                raise self._poison("sealing", error) from error
            left -= 1

    def _sync_oldest(self, segment: Segment) -> None:
        index = segment.index
        assert index is not None, "a sealed segment has its index until it is written here"
        if segment.fileno() >= 0:  # recovery has synced and closed the segments that it found sealed
            self._files.sync(segment.fileno())
        end, entry = segment.base + segment.size, segment.entry_after(index.entries)
        try:
            indexes.write(self.path, self._files, segment, index)
        except OSError as error:  # the next lookup builds the index again, so the log goes on
            logger.warning("%s: no index file for the segment at %d: %s", self.path, segment.base, error)
            segment.index = None
        if not self._staged and end > self.tail.synced_end:
            self._set_synced(end, entry)
        self._checkpoint.advance(position=end, entry=entry, clean=False)
        with contextlib.suppress(IndexError):
            self._sealed.popleft()
        segment.close_file()

    def replace_sealed(self, base: int, fresh: Path) -> None:
        """Replace the file of a sealed segment by a synced file with the same header, entries and times, durably.

        A reader that has the old file mapped goes on reading it. A crash leaves the old file or the new one, perhaps
        without its index file; see FORMAT.md, "Order of writes".

        Args:
            base: position of the segment, before the checkpoint.
            fresh: path of the file, `fresh-<base>.seg` in the log's directory.

        Raises:
            TrimmedError: the segment was removed.
            PoisonedError: the disk failed.
            ClosedError: the log was closed.
        """
        with self._lock, self._pool.paused():
            if self._error is not None:
                self._refuse()
            rows = [row for row, (start, _, _) in enumerate(self._segment_table()) if start == base]
            if not rows:
                raise TrimmedError(f"{self.path}: the segment at {base} was removed")
            if any(segment.base == base for _, segment in self._sealed):  # found by recovery, without an index file
                self._sync_sealed()
            old = self._segment_table()[rows[0]][2]
            if old is not None:
                indexes.load_or_build(self.path, old)  # before the index file is removed
            try:
                self._files.remove(names.index_path(self.path, base))
                self._files.sync_directory(self.path)  # else the rename may reach the disk first: a stale index file
                self._files.rename(fresh, names.segment_path(self.path, base))
                self._files.sync_directory(self.path)
            except OSError as error:
                raise self._poison("replacing a segment", error) from error
            self._unmap_if_unpinned(rows[0])

    def release_replaced(self, base: int) -> bool:
        """Release the mapping of a segment that `replace_sealed` replaced, if no reader has it pinned.

        Args:
            base: position of the segment.

        Returns:
            Whether the next reader maps the new file.
        """
        with self._lock:
            for row, (start, _, _) in enumerate(self._segment_table()):
                if start == base:
                    return self._unmap_if_unpinned(row)
            return True

    def _unmap_surplus(self) -> None:
        table = self._segment_table()
        surplus = sum(row[2] is not None for row in table) - MAPPED_MAX
        if surplus <= 0:
            return
        for i, (_, _, segment) in enumerate(table[:-1]):
            if surplus > 0 and segment is not None and segment.pinned == 0 and segment.fileno() < 0:
                self._unmap(i)
                surplus -= 1

    def _sync_at_intervals(self) -> float:
        if self.config.durability != "interval" or self._is_dormant:
            return WHEN_WOKEN
        interval = self.config.sync_interval_ms / 1000
        left = self._last_sync + interval - time.monotonic()
        if left > 0:
            return left
        self._last_sync = time.monotonic()
        if self._state[1] > self.tail.synced_end and self._error is None:
            self._sync()
        return interval

    # ---- state ----------------------------------------------------------------------------------------------

    def stats(self) -> LogStats:
        """Return the state of the log at this moment.

        Raises:
            ClosedError: the log was closed.
        """
        self.check_open()
        _, end, _, last_time = self._state
        table = self._segment_table()
        segments = [row[2] for row in table if row[2] is not None]
        return LogStats(
            path=str(self.path),
            uuid=str(uuid_module.UUID(bytes=self.uuid)),
            durability=self.config.durability,
            start=self.start,
            end=self.end,
            synced_end=self.synced_end,
            start_position=self.start_position,
            end_position=end,
            segments=len(table),
            segment_bytes=self.segment_bytes,
            epoch=self._pool.epoch,
            last_time=last_time,
            ready_segments=self._pool.ready,
            state_bytes=sum(segment.index.memory_bytes for segment in segments if segment.index is not None),
            trouble=self._housekeeper.trouble,
        )

    @property
    def record_batches(self) -> bool:
        """Whether a record of the log may take several entry numbers."""
        return self._pool.version >= COUNTED

    @property
    def is_dormant(self) -> bool:
        """Whether the log has closed its files because it is idle.

        Its next append opens its active segment, or makes one. Always False without a `LogRuntime`.
        """
        return self._is_dormant

    @property
    def is_usable(self) -> bool:
        """Whether the log accepts appends: False after `close`, and after a failed sync has poisoned the log."""
        return self._error is None

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync the log, write a clean checkpoint, and release the directory. Closing twice has no effect.

        Futures that wait fail with ClosedError. A finalizer at the end of the interpreter only syncs the log; the next
        opening verifies the records behind the checkpoint.

        Raises:
            PoisonedError: the last sync failed. The log is closed all the same.
        """
        if isinstance(self._error, ClosedError) or os.getpid() != self._pid:
            return
        if sys.is_finalizing():
            self._sync_alone()
            return
        try:
            if self._error is None:
                self._finish()
        finally:
            self._do_close()

    def _sync_alone(self) -> None:
        """Sync all segments that may not be synced. For a finalizer at the end of the interpreter.

        Takes no lock and waits for no thread: other threads have stopped, and one of them may hold the lock.
        """
        poisoned, self._error = self._error, ClosedError(f"{self.path} was closed")
        if poisoned is not None:
            return
        synced = self.tail.synced_end
        try:
            for base, _, _ in self._segment_table():
                if base + self.segment_bytes > synced:
                    fd = self._files.open(names.segment_path(self.path, base), writable=True)
                    try:
                        self._files.sync(fd)
                    finally:
                        os.close(fd)
        except OSError as error:
            raise PoisonedError(
                f"{self.path}: the sync at the end of the process failed ({error}); what reached the disk is "
                "unknown until reopened"
            ) from error

    def _finish(self) -> None:
        """Stop appends, sync the log, and write a clean checkpoint."""
        with self._lock:
            if self._is_dormant:
                self._is_dormant = False  # neither open nor dormant: appends are refused
            else:
                self._stop_appends()
            try:
                self._checkpoint.advance(position=self.tail.synced_end, entry=self.tail.synced_entry, clean=True)
            except OSError as error:
                raise self._poison("close", error) from error

    def _stop_appends(self) -> None:
        self._enter()
        try:
            if self._staged:
                self._commits.flush()
            else:
                self._sync()
            self._set_open(False)
        finally:
            self._leave()

    def _do_close(self) -> None:
        self._set_open(False)
        self._error = ClosedError(f"{self.path} was closed")
        self._commits.stop()
        self._housekeeper.stop()
        if self._runtime is not None:
            self._runtime.open_logs.remove(self._housekeeper)
        self._watcher.stop(self._error)
        self._end_room()
        try:
            with self._lock:
                self._pool.close()
                self._checkpoint.close()
                with contextlib.suppress(OSError, ReplogError):  # a page that stays open is that of a killed writer
                    self._map_tail()
                self._publish(is_open=False)
                self._set_segments([])
                self._forget_sealed(1 << 62)
                self._forget_active()
                self._closed_segment = None
        finally:
            self._writer_lock.release()
            self._submitted.fail(self._error)

    def _after_fork(self) -> None:
        """Refuse all calls in a forked child, and drop the child's share of the writer's lock."""
        self._parents = ForkedError(f"{self.path} was opened by process {self._pid}; open it again in this one")
        self._set_open(False)
        self._set_segments([])
        self._writer_lock.release()

    def __del__(self) -> None:
        if getattr(self, "_error", self) is None and os.getpid() == self._pid and not self._whole_collected:
            handles.warn_of_leak(f"log {self.path}", self, self._opened_at)
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CommitLog holds a lock and mapped files and cannot be pickled; open the path again")

    def __repr__(self) -> str:
        state = "closed" if self._error or self._parents else f"entries {self.start} to {self.end}"
        return f"<CommitLog {str(self.path)!r} {state}>"
