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
from pyreplog.log.files import Files, RealFiles, disk_error, opening_told
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
"""A sealed segment of an `appended` log is synced when it is this old: opening after a crash then has little to verify,
while a log that is trimmed quickly never pays for syncing what it drops."""

MAPPED_MAX = 1024
"""Sealed segments that stay mapped; beyond, the oldest that nobody reads are unmapped."""

WINDOW_BYTES = 4 << 20
"""Half of what waits in memory for a sync, at most: an event loop appends on while there is less."""

_ROOM_BYTES = 64 << 10
"""Room that `room()` gives at the end of a segment: shorter entries that follow it never begin one in an event loop."""

_BLANK_BYTES = 32
"""Size of the record that ends a segment."""

_BLOCK_BYTES = 4096
"""What is behind the end of a dormant log is given back to the file system from a multiple of it on."""

_RETENTION_S = 5.0
"""How often the threads of a runtime look for what retention removes, beside each time a segment is full. The age of
segments, cursors that move and the floor that is lowered wake nobody."""

_IDLE_RETENTION_S = 60.0
"""The same for an idle log none of whose segments is old enough; not until one is, since the clock may be set."""

_LOCK_S = 0.01
_ROLL_S = 0.001


class ClosedSegment(NamedTuple):
    """The active segment of a dormant log: how its header must be, its index, and where the next record goes."""

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
        cut_records: intact records in the torn tail that opening the log cut.

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
        """record_batches: let records take several entry numbers (`append_record_batches`). Segments from here on say
        so, and the log stays one that may hold such records; earlier builds cannot open it any more. runtime: whose
        threads the log uses; it then has no file for entries before the first one is appended, and none open while it
        is idle. None: it has threads of its own."""
        self._runtime = runtime
        self._is_dormant = False  # it is open, and its next append has to open or make a file first
        self._closed_segment: ClosedSegment | None = None  # of a dormant log; None: it has no active segment
        self._used_at, self._used_end = 0.0, -1  # when files were needed last, and the end then; see `_close_idle`
        self._is_tail_behind = False  # readers of other processes do not know yet what changed while it was dormant
        self._first_times = dict[int, int]()  # by base, of segments that retention has looked at
        self._first = 0, 0  # position and entry number where a log without segments begins
        self._has_rolled = False  # since it was opened or dormant: then segments are prepared ahead of need
        self.path, self.config, self._gated, self._mirror = path, config, gated, mirror
        self._version = COUNTED if record_batches else 1  # of the format of segments to come, at least
        self.retention_floor = retention_floor
        """Nothing at or after this position is removed by retention, from opening on; later layers lower it."""
        self._files = files if files is not None else RealFiles()
        self._error: ReplogError | None = ClosedError(f"{path} was not opened")
        self._lock = threading.RLock()  # the table of segments, the checkpoint, and all that changes them
        self._room_lock = threading.Lock()
        self._wanted_room, self._room_waiters = 0, list[AppendFuture[None]]()  # under the lock; see `_want_room`
        self._room_error: DiskError | None = None  # why the room that was wanted last could not be made
        self._pid = os.getpid()
        self._clock: Clock = clock if clock is not None else SystemClock()
        with opening_told(path):
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
        self._sealed: deque[tuple[float, Segment]] = deque()  # when it was sealed, and not synced yet; ascending
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
        if self._version > 1 and not self._is_dormant:  # else the first batch sees to it
            self._enter()
            try:
                self._begin_counted()
            finally:
                self._leave()

    def _close_at_opening(self, runtime: LogRuntime) -> None:
        """Have no file open before the first append: a broker may open more logs than it may have files."""
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
            if not self._sealed:  # they have indexes that are in no file yet
                self._unmap_unpinned()

    def _begin(self, recovered: recovery.RecoveryResult) -> None:
        """Set the table, take or continue the active segment, and tell readers."""
        self._check_kind(recovered)
        self.cut_records = recovered.cut_records  # intact ones in the torn tail that opening cut
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
        """Take or continue the active segment."""
        if self._runtime is not None and not recovered.files:
            self._first = self._checkpoint.last.start, recovered.entry
            stand_at(self, *self._first)
            self._is_dormant = True
        elif recovered.sealed:
            self._begin_synced(recovered.entry, recovered.last_time)
        else:
            active = recovered.opened[-1]
            if self._runtime is None:  # else it is closed again, and allocated when it is needed
                self._files.allocate(active.fileno(), Path(active.path), active.size)
            self._activate(active, active.end, recovered.entry, recovered.last_time)

    def _begin_synced(self, entry: int, last_time: int) -> None:
        self._begin_segment(self._take(entry), entry, last_time)
        self._files.sync(self._state[0].fileno())

    def _check_kind(self, recovered: recovery.RecoveryResult) -> None:
        if any(file.first_entry < 0 for file in recovered.files):
            raise NotALogError(f"{self.path} holds the entries of many ledgers; open it as a LedgerLog")

    def _take(self, entry: int) -> Segment:
        """The next segment, to begin with entry number `entry`."""
        return self._pool.take(entry)

    def _begin_segment(self, segment: Segment, first_entry: int, last_time: int) -> None:
        segment.index = SparseIndex(segment.size)
        self._push_segment(segment)
        self._activate(segment, HEADER_BYTES, first_entry, last_time)

    # ---- what the native side asks for ----------------------------------------------------------------------

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
            with self._lock:  # it was a moment ago, and another thread was quicker; or it is being closed
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
        """End dormancy: have the file that the next append writes to. Nothing happened when it raises DiskError."""
        with self._lock:
            if not self._is_dormant or self._error is not None:  # another thread was quicker
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
            self._set_open(True)  # before: who finds it neither open nor dormant is refused
            self._is_dormant = False
            if self._runtime is not None:
                self._runtime.open_logs.add(self._housekeeper)

    def _begin_first(self) -> None:
        """Begin the segment that the next append goes into."""
        _, _, entry, last_time = self._state
        self._begin_synced(entry, last_time)
        _, end, entry, _ = self._state
        self._set_synced(end, entry)
        self._publish(is_open=True)

    def _reopen_active(self, closed: ClosedSegment) -> None:
        """Go on in the active segment of a dormant log. Nothing happened when it raises."""
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
        """Map the active segment of a dormant log, without a descriptor. The caller holds the log's lock."""
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
        """Map the tail page of a dormant log. It stays mapped until the log has been idle again, see `_note_use`."""
        if not self.tail.is_mapped:
            with startup.open_tail_file(self.path, self._files) as file:
                try:
                    self.tail.map(file)
                except ValueError as error:
                    raise CorruptionError(
                        self.path / names.TAIL, 0, "the page that was unmapped while the log was idle", "another one"
                    ) from error
            self._is_tail_behind = False

    def _tell_readers(self) -> None:
        """Have readers of other processes see a change of the tail page of a dormant log; soon, if it cannot be mapped
        now."""
        try:
            self._map_tail()
        except (OSError, ReplogError) as error:
            logger.warning("%s: readers of other processes see a change later: %s", self.path, error)
            self._is_tail_behind = True
        self._note_use()

    def _note_use(self) -> None:
        """Files of a log with a runtime are open or mapped from now on: see to it that they are closed again."""
        self._used_at = time.monotonic()
        self._housekeeper.wake_syncing()

    def _close_idle(self) -> float:
        """Close the files of a log that is idle, and unmap segments that nobody reads any more."""
        if self._runtime is None:
            return WHEN_WOKEN
        idle_s, end = self._runtime.idle_s, self._state[1]
        if end != self._used_end:
            self._used_at, self._used_end = time.monotonic(), end
        left = self._used_at + idle_s - time.monotonic()
        if left > 0 and not self._housekeeper.is_asked_to_close:
            return left
        self._housekeeper.is_asked_to_close = False
        self._used_at = time.monotonic()  # when it does not succeed
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
                with opening_told(self.path):
                    self._map_tail()
            is_unmapped = self.tail.unmap()
            return idle_s if pinned or self._sealed or not is_unmapped else WHEN_WOKEN

    def _close_files(self) -> None:
        """Make a log dormant that nobody appends to. What it waits for, it waits for before it keeps appends out."""
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
                self._give_back(active, self._closed_segment.offset)

    def _may_close(self) -> bool:
        """Whether all that was appended is on disk, so that the active segment may be closed. The caller is inside."""
        if self._error is not None and not isinstance(self._error, ClosedError):
            return False
        return not self.staged_bytes and self.tail.synced_end >= self._state[1]

    def _close_active(self) -> None:
        """Become dormant: note what the next append has to know, and let go of the active segment. The caller is
        inside."""
        segment, end, _, _ = self._state
        self._is_dormant = True  # before it is not open: see `_reopen`
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

    def _give_back(self, segment: Segment, end: int) -> None:
        """Of a dormant log, give the room back that was allocated behind offset `end`, and close the file."""
        start = -(-end // _BLOCK_BYTES) * _BLOCK_BYTES
        if start < segment.size:
            with contextlib.suppress(OSError):  # not every file system can
                self._files.punch(segment.fileno(), start, segment.size)
        segment.close_file()

    def _reserve(self, segments: int) -> None:
        """Have so many segments ready, so that a batch never stops half way for lack of space."""
        self._pool.prepare(segments)

    def _rebuild(self) -> None:
        """The table of the writer is always right."""

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
        """Have an active segment whose records may take several entry numbers: the log begins to hold them, or was cut
        into a segment of before. Raises RecordBatchesError if the log was not opened for them."""
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
        """Raise WindowFullError if an event loop calls: the thread inside waits for the disk, or is about to."""
        if _get_running_loop() is not None:
            raise WindowFullError(f"{self.path}: room is being made; await room() before submit()")

    def _check_room(self, size: int, segments: int) -> None:
        """Raise WindowFullError if the caller is an event loop, and would wait for the disk. It is inside.

        size: bytes of the records. segments: how many they begin.
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
        if error is not None:  # room could not be made
            raise error
        raise WindowFullError(f"{self.path}: {size} bytes wait for the disk; await room() before submit()")

    def _want_room(self, wanted: int, future: AppendFuture[None] | None) -> None:
        """Have a thread of the log make room, and then complete the future.

        wanted: in a synced log bytes that fit, in others how many segments are ready.
        """
        with self._room_lock:
            self._wanted_room = max(self._wanted_room, wanted)
            if future is not None:
                self._room_waiters.append(future)
        self._housekeeper.wake_preparing()

    def _make_wanted_room(self) -> float:
        """Do what event loops may not wait for: begin the next segment, or have it ready."""
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
                if self._is_dormant:  # since a moment ago
                    self._note_use()
            else:
                self._enter()
                try:
                    if self._free_bytes < wanted:
                        self._make_room(wanted)
                finally:
                    self._leave()
        except DiskError as error:
            self._room_error = error  # for the next submit
        finally:
            settle_all([(future, None) for future in waiters])
        return WHEN_WOKEN

    def _end_room(self) -> None:
        """Complete what waits for room, because the log takes no more entries."""
        with self._room_lock:
            waiters, self._room_waiters = self._room_waiters, []
        settle_all([(future, None) for future in waiters])

    def _roll(self, segment: Segment, entry: int, last_time: int) -> None:
        """Seal the active segment and go on in the next one. The caller is inside the append path."""
        taken = self._take(entry)  # a disk that fails, or is full, leaves the log as it was
        self._seal()
        if self._staged:
            self._commits.write_blank(segment, self._take_blank())
        self._note_sealed(segment)
        self._begin_segment(taken, entry, last_time)

    def wait_synced(self, position: int) -> None:
        """Return when all before `position` is on disk, in a synced log. PoisonedError when the sync failed."""
        self._commits.wait(position)

    def when_synced(self, result: T, position: int) -> AppendFuture[T]:
        """An AppendFuture that gives `result` when all before `position` has the log's durability."""
        return self._commits.acknowledge(result, position)

    def _open_segment(self, base: int) -> Segment:
        if self._is_dormant:
            self._note_use()
        if self._runtime is not None and base + self.segment_bytes > self._state[1]:  # as an open log's never is
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
        """Give a sealed segment its index, which tells where its records end. CorruptionError when it is damaged."""
        with self._lock:
            indexes.load_or_build(self.path, segment)

    def _visible(self) -> int:
        return self.tail.visible

    def _poison(self, stage: str, error: OSError) -> PoisonedError:
        """A sync failed: nothing is appended or reported as synced until the log is opened again."""
        poisoned = PoisonedError(
            f"{self.path}: {stage} failed ({error}); what reached the disk is unknown until reopened"
        )
        poisoned.__cause__ = error
        self._error = self._error or poisoned
        self._set_open(False)
        if self._runtime is not None:
            self._runtime.open_logs.remove(self._housekeeper)  # nothing of it is tried any more
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
        """Sync the log: all that was appended before the call is durable when it returns.

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
        """Sync the log, also in an event loop that closes or truncates it."""
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

    sync_async = in_thread(sync)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every entry submitted so far has an outcome, which its own future has.

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
        """Move the commit point of a log that was opened with one (`gated`): readers see all before `position`, where
        entry number `entry` begins, as far as the log goes. Never back. Any thread."""
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
        """Write all words of the tail page at once: at open, truncation and close. Each append moves its own."""
        _, end, entry, _ = self._state
        tail = self.tail
        if self._staged:
            end, entry = tail.synced_end, tail.synced_entry
        visible = end, entry
        if (
            self._gated
        ):  # where readers stopped before; at least the first record, for a page that shows nothing is not believed
            first = self.start_position + HEADER_BYTES, self.start
            visible = min(visible, max((tail.visible, tail.visible_entry), first))
        tail.publish(
            start=self.start_position, end=end, end_entry=entry, synced_end=tail.synced_end,
            synced_entry=tail.synced_entry, visible=visible[0], visible_entry=visible[1], is_open=is_open,
        )  # fmt: skip

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _reached(self, entry: int, timeout: float | None) -> bool:
        """Whether `entry` becomes visible within `timeout` seconds; the sleep is the watcher thread's."""
        return await self._watcher.reached(entry, timeout)

    # ---- removing -------------------------------------------------------------------------------------------

    def trim(self, entry: int) -> int:
        """Remove whole segments whose entries all lie before an entry.

        The active segment stays, and so does what lies at or behind `retention_floor` or a cursor of the log. Readers
        that hold a segment keep it.

        Args:
            entry: number of the first entry to keep.

        Returns:
            The number of the first entry that is left.

        Raises:
            WrongTypeError: `entry` is not an int.
            CorruptionError: the file of a cursor is damaged.
            LockedError: another process has been making a cursor for seconds.
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
        """Keep the log from making, renaming or removing files for the length of a `with` block.

        For tests, and for operators who copy the directory of an open log. A backup (`pyreplog.log.backup`) does not
        need it. Retention, trimming, truncation, and an append that needs another segment wait for the end of the
        block; other appends go on.
        """
        with self._lock, self._pool.paused():
            yield

    def lower_retention_floor(self, position: int) -> None:
        """Keep all from `position` on, and return when no retention is at work that knew another floor."""
        with self._lock:
            self.retention_floor = position

    def _remove_front(self, count: int) -> None:
        """Take `count` segments out of the table and then off the disk. The caller holds the log's lock.

        PoisonedError when the disk fails in between.
        """
        self._retire(self._take_out(count))

    def _take_out(self, count: int) -> list[Removed]:
        """Take `count` segments out of the table, for `_retire`. The caller holds the log's lock.

        The checkpoint says so before any file goes: recovery then neither misses them nor takes up those that are left.
        """
        if not count:
            return []
        if self._error is not None:  # a truncation that failed half way may still need what would go
            raise self._error
        table = self._segment_table()
        bases, (start, first_entry, _) = [row[0] for row in table[:count]], table[count]
        if self._is_dormant:
            self._note_use()
            with opening_told(self.path):
                self._checkpoint.open()
        try:
            self._checkpoint.trim(start=start, entry=max(first_entry, 0))
        except OSError as error:
            raise self._poison("trim", error) from error
        dropped = self._drop_segments(count)
        self.tail.start = self.start_position
        if not self.tail.is_mapped:
            self._tell_readers()
        self._forget_sealed(bases[-1])
        for base in bases:
            self._first_times.pop(base, None)
        return list(zip(bases, dropped, strict=True))

    def _retire(self, removed: list[Removed], *, refill: bool = False) -> None:
        """Take segments that left the table off the disk, the first one first; refill: and prepare their files again.

        Empties the list, so that nothing holds a segment that may be recycled. DiskError when none could be prepared.
        """
        try:
            self._pool.retire(removed, refill=refill)
        except DiskError:
            raise
        except OSError as error:
            raise self._poison("trim", error) from error

    def truncate(self, entry: int) -> int:
        """Cut the end of the log, so that its next entry gets a given number. A record batch goes as a whole.

        Durable and crash-safe: after a crash the log has its old end or its new end. Entries that were cut never come
        back. Readers that hold their bytes keep them; followers that are beyond the cut get TruncatedError.

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
        self._sync()  # the cut end will count as synced: so must all before it
        with self._lock:
            self._enter()
            try:
                if self._staged:
                    self._commits.flush()
                self._sync_sealed()
                if entry != self._state[2]:
                    entry = self._cut_to(entry)
            except OSError as error:  # half done: what is mapped and what is on disk may differ
                raise self._poison("truncation", error) from error
            finally:
                self._leave()
        return entry

    def _cut_to(self, entry: int) -> int:
        """Return the number that the next entry gets. The caller is inside the append path, holds the lock, and has
        synced all before `entry`."""
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
        """All steps of a truncation; the table of segments is the caller's to set."""
        with self._pool.quiet():
            self._pool.place(-(-wanted.position // self.segment_bytes) * self.segment_bytes, wanted.epoch)
            truncation.announce(self.path, self._files, wanted)
            truncation.tell(self.tail, self.start_position, wanted, is_open=True)
            self._forget_sealed(1 << 62)
            self._first_times.clear()
            truncation.apply(self.path, self._files, wanted, self._checkpoint)
        self.tail.note_truncation()  # again: a reader may have looked while files were replaced

    def _restart(self, segment: Segment, position: int, entry: int, last_time: int) -> None:
        """Go on at `position` in a segment that was cut there, all before it synced."""
        self._activate(segment, position - segment.base, entry, last_time)
        self._commits.restart(position)
        self._set_synced(position, entry)
        self._publish(is_open=True)

    # ---- in the background: each task returns in how many seconds it may be due again ------------------------

    def run_background_tasks(self) -> None:
        """Do in the calling thread all that the threads would do now: retention, preparing segments, syncing."""
        self._housekeeper.step(self)

    def _note_sealed(self, segment: Segment) -> None:
        """A segment is full; called on the append path, so it only takes note."""
        self._has_rolled = True
        self._sealed.append((time.monotonic(), segment))
        self._housekeeper.wake_preparing()
        if self.config.durability != "appended" or self._housekeeper.is_shared:
            self._housekeeper.wake_syncing()

    def _forget_sealed(self, base: int) -> None:
        """Segments up to and including the one at `base` left the log."""
        with contextlib.suppress(IndexError):
            while self._sealed[0][1].base <= base:
                self._sealed.popleft()

    def _retain(self) -> float:
        """Remove what is too old or too much, and prepare its files again, until there is no more of it: what is freed
        need not be made."""
        while removed := self._take_out_expired():
            self._retire(removed, refill=not self._is_dormant)
        table = self._segment_table()
        if not self._has_retention or len(table) < 2:
            return WHEN_WOKEN  # a full segment wakes it
        return self._retention_pause(table[1][0])

    def _retention_pause(self, second: int) -> float:
        """Seconds until retention may find something to remove. second: base of the second segment."""
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
        while not self._lock.acquire(timeout=_LOCK_S):  # another thread syncs
            if self._pool.ready <= self.config.spare_segments // 2:
                return []  # an append must not find none ready
        try:
            if not self._expired(1 << 62):
                return []
            with log_cursor.retention_held(self.path, 0.0):
                return self._take_out(self._expired(self._held_by_cursors()))
        except LockedError:  # a cursor is being made: it may be of what would go
            return []
        finally:
            self._lock.release()

    def _held_by_cursors(self) -> int:
        """Position from which on the cursors of this log hold its records."""
        return log_cursor.held_from(self.path, self.uuid, self._state[1], self.config.cursor_hold_bytes)

    def _expired(self, held: int) -> int:
        """How many segments retention removes now. held: nothing at or after this position."""
        config, table, end, now_us = self.config, self._segment_table(), self._state[1], self._clock.now_us()
        floor = min(held, self.retention_floor, self.tail.visible)  # what nobody could read yet stays
        count = 0
        while count + 1 < len(table):
            last_time = self._first_time(count + 1, now_us) if config.retention_ms is not None else now_us
            if not retention.may_remove(config, table[count][0], table[count + 1][0], last_time, end, now_us, floor):
                break
            count += 1
        return count

    def _first_time(self, row: int, now_us: int) -> int:
        """Append time of a segment's first record: not before the last one of the segment in front of it. `now_us` when
        it has no record yet: what lies there is of an earlier life."""
        base = self._segment_table()[row][0]
        if (time_us := self._first_times.get(base)) is not None:
            return time_us
        try:
            _, segment = self.hold_segment(base)
        except ReplogError:
            raise
        except OSError as error:  # too many open files, for one: no sync failed
            raise DiskError(
                error.errno, f"{self.path}: a segment cannot be opened: {error}; free descriptors, or raise ulimit -n"
            ) from error
        if not segment.sealed and segment.end <= HEADER_BYTES:
            return now_us
        time_us = self._first_times[base] = segment.head_at(HEADER_BYTES)[3]
        return time_us

    def _prepare(self) -> float:
        """At most one segment; retention comes before the next."""
        if self._is_dormant or (self._runtime is not None and not self._has_rolled):
            return WHEN_WOKEN  # most partitions never fill a segment
        if self._state[1] // self.segment_bytes * self.segment_bytes + self.segment_bytes < self._pool.next_base:
            return _ROLL_S  # a segment is being begun: then retention may have one to give
        if self._pool.wanting():
            self._pool.prepare_ahead()
            if self._is_dormant:  # since a moment ago
                self._note_use()
        return 0.0 if self._pool.wanting() else WHEN_WOKEN

    def _seal_due(self) -> float:
        """Write the index of segments that are full, and sync those that are due, oldest first."""
        lazily = LAZY_SYNC_S if self.config.durability == "appended" else 0.0
        due = time.monotonic() - lazily
        while self._sealed and self._sealed[0][0] <= due and not self._housekeeper.is_stopping and self.is_usable:
            with self._lock:
                self._sync_sealed(1)
        with self._lock:
            self._unmap_surplus()
        try:
            return max(self._sealed[0][0] + lazily - time.monotonic(), 0.0)
        except IndexError:  # none is left
            return WHEN_WOKEN

    def _sync_sealed(self, limit: int | None = None) -> None:
        """Sync sealed segments, the oldest first, and move the checkpoint behind them. Under the log's lock.

        limit: how many at most; None: those that are sealed now. Appends that are quicker than the disk seal more.

        PoisonedError when that fails; and nothing is done once the log is poisoned: the pages that a failed sync lost
        count as clean, so the next sync succeeds.
        """
        left = len(self._sealed) if limit is None else limit
        while self._error is None and self._sealed and left > 0:
            try:
                self._sync_oldest(self._sealed[0][1])
            except OSError as error:  # before the lock is given up: the next one must not take it half done
                raise self._poison("sealing", error) from error
            left -= 1

    def _sync_oldest(self, segment: Segment) -> None:
        index = segment.index
        assert index is not None, "a sealed segment has its index until it is written here"
        if segment.fileno() >= 0:  # else recovery has synced it
            self._files.sync(segment.fileno())
        end, entry = segment.base + segment.size, segment.entry_after(index.entries)
        try:
            indexes.write(self.path, self._files, segment, index)
        except OSError as error:  # it is made again when it is asked for: no reason to stop the log
            logger.warning("%s: no index file for the segment at %d: %s", self.path, segment.base, error)
            segment.index = None
        if not self._staged and end > self.tail.synced_end:
            self._set_synced(end, entry)
        self._checkpoint.advance(position=end, entry=entry, clean=False)
        with contextlib.suppress(IndexError):
            self._sealed.popleft()
        segment.close_file()

    def replace_sealed(self, base: int, fresh: Path) -> None:
        """Put a synced file in the place of a sealed segment that has the same header, entries and times, durably.

        Who has the old one mapped goes on reading it. A crash leaves the one or the other, perhaps without its index
        file; see FORMAT.md, "Order of writes".

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
            if any(segment.base == base for _, segment in self._sealed):  # recovery has found it: it has no index file
                self._sync_sealed()
            old = self._segment_table()[rows[0]][2]
            if old is not None:
                indexes.load_or_build(self.path, old)  # the file of the index is about to go
            try:
                self._files.remove(names.index_path(self.path, base))
                self._files.sync_directory(self.path)  # else a disk may rename first: an index of what is there no more
                self._files.rename(fresh, names.segment_path(self.path, base))
                self._files.sync_directory(self.path)
            except OSError as error:
                raise self._poison("replacing a segment", error) from error
            self._unmap_if_unpinned(rows[0])

    def let_go_replaced(self, base: int) -> bool:
        """Release the mapping of a segment that `replace_sealed` replaced, when nobody reads it any more.

        Args:
            base: position of the segment.

        Returns:
            Whether the next reader gets the new file.
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
        """Whether records of the log may take several entry numbers."""
        return self._pool.version >= COUNTED

    @property
    def is_dormant(self) -> bool:
        """Whether no file of the log is open, because it is idle.

        Its next append opens its segment, or makes one. Always False without a `LogRuntime`.
        """
        return self._is_dormant

    @property
    def is_usable(self) -> bool:
        """Whether the log accepts appends: False when it was closed, or when a failed sync has poisoned it."""
        return self._error is None

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync the log, write a clean checkpoint, and release the directory. Closing twice has no effect.

        Futures that wait fail with ClosedError. In a finalizer that runs when the interpreter ends, the log is synced
        and nothing more is done; the next opening verifies what lies behind the checkpoint.

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
        """Takes no lock and waits for no thread: one that is gone may hold it, or have been about to answer."""
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
        """Let nobody append any more, and sync all that was."""
        with self._lock:
            if self._is_dormant:
                self._is_dormant = False  # nobody wakes it any more
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
                with contextlib.suppress(OSError, ReplogError):  # else readers take the writer for killed
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
        """In a forked child: refuse everything, and keep the child from holding the parent's lock."""
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
