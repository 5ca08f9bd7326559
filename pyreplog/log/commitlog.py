"""CommitLog: the writer's handle of a log."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyreplog import handles
from pyreplog._native.log.appender import Appender
from pyreplog._native.log.landing import show_up_to
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.ack import Ack
from pyreplog.clock import Clock, SystemClock
from pyreplog.config import LogConfig
from pyreplog.errors import ClosedError, ForkedError, NotALogError, PoisonedError, ReplogError
from pyreplog.log import indexes, names, publication, recovery, retention, startup, truncation
from pyreplog.log.access import Access, as_int
from pyreplog.log.checkpoint import CheckpointFile
from pyreplog.log.commit import GroupCommit
from pyreplog.log.files import Files, RealFiles, opening_told
from pyreplog.log.housekeeper import Housekeeper
from pyreplog.log.lock import WriterLock
from pyreplog.log.segments import SegmentPool
from pyreplog.log.stats import LogStats
from pyreplog.log.watcher import Watcher
from pyreplog.purgatory import Purgatory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


class CommitLog(Access, Appender):
    """A log opened for appending; made by `pyreplog.open`.

    One writer per log, in one process; within it any thread may call anything, and asyncio code awaits what `submit`
    returns. Close it, or use `with`.
    """

    def __init__(
        self, path: Path, config: LogConfig, *, create: bool, clock: Clock | None, files: Files | None,
        gated: bool = False, mirror: bool = False, retention_floor: int = 1 << 62,
    ) -> None:  # fmt: skip
        self.path, self.config, self._gated, self._mirror = path, config, gated, mirror
        self.retention_floor = retention_floor
        """Nothing at or after this position is removed by retention, from opening on; later layers lower it."""
        self._files = files if files is not None else RealFiles()
        self._error: ReplogError | None = ClosedError(f"{path} was not opened")
        self._lock = threading.RLock()  # the table of segments, the checkpoint, and all that changes them
        self._pid = os.getpid()
        self._clock: Clock = clock if clock is not None else SystemClock()
        with opening_told(path):
            startup.prepare_directory(path, self._files, create=create, mirror=mirror, grouped=gated)
            self._writer_lock = WriterLock(path)
            try:
                self._open(create, clock)
            except BaseException:
                self._writer_lock.release()
                raise
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
        self._segment_bytes = started.checkpoint.segment_bytes
        self._checkpoint = CheckpointFile(self.path, self._files, started.checkpoint)
        self._pool = SegmentPool(
            self.path, self._files, uuid=self.uuid, size=self._segment_bytes, zeroed=synced,
            populate=not (synced or self._mirror), spares=self.config.spare_segments,
        )  # fmt: skip
        self._use_tail(startup.open_tail(self.path, self._files, started), trusted=True)
        self._begin(started.found)
        self._set_open(True)
        self._commits = GroupCommit(self, self._checkpoint.last.position)
        self._watcher = Watcher(self.tail, self._purgatory, self._sleep)
        self._housekeeper = Housekeeper(self)
        for segment in started.found.opened:  # their index files may never have been written
            if segment.sealed:
                self._housekeeper.note_sealed(segment)

    def _begin(self, found: recovery.Recovered) -> None:
        """Set the table, take or continue the active segment, and tell readers."""
        self._check_kind(found)
        self.cut_records = found.cut_records  # intact ones in the torn tail that opening cut
        last = self._checkpoint.last
        opened = {segment.base: segment for segment in found.opened}
        self._set_segments([(file.base, file.first_entry, opened.get(file.base)) for file in found.files])
        epoch = max([last.epoch, *(file.epoch for file in found.files)]) + found.cut
        next_base = found.files[-1].base + self._segment_bytes if found.files else last.start
        self._pool.place(next_base, epoch)
        self._continue(found)
        _, end, entry, _ = self._state
        self._checkpoint.restart(position=end, entry=entry, epoch=epoch)
        self._set_synced(end, entry)
        publication.publish(self, is_open=True)

    def _continue(self, found: recovery.Recovered) -> None:
        """Take or continue the active segment."""
        if found.sealed:
            self._begin_segment(self._take(found.entry), found.entry, found.last_time)
            self._files.sync(self._state[0].fileno())
        else:
            active = found.opened[-1]
            self._files.allocate(active.fileno(), Path(active.path), active.size)
            self._activate(active, active.end, found.entry, found.last_time)

    def _check_kind(self, found: recovery.Recovered) -> None:
        if any(file.first_entry < 0 for file in found.files):
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

    def _check_open(self) -> None:
        if isinstance(self._error, ClosedError) or os.getpid() != self._pid:
            self._refuse()

    def _reserve(self, segments: int) -> None:
        """Have so many segments ready, so that a batch never stops half way for lack of space."""
        self._pool.prepare(segments)

    def _rebuild(self) -> None:
        """The table of the writer is always right."""

    def _make_room(self, stride: int) -> None:
        segment, end, entry, last_time = self._state
        if self._staged:
            self._commits.flush()
            if end - segment.base + stride <= segment.size - 32:
                self._widen_stage(stride)
                return
        self._roll(segment, entry, last_time)
        if self._staged:
            self._widen_stage(stride)

    def _roll(self, segment: Segment, entry: int, last_time: int) -> None:
        """Seal the active segment and go on in the next one. The caller is inside the append path."""
        taken = self._take(entry)  # a disk that fails, or is full, leaves the log as it was
        self._seal()
        if self._staged:
            self._commits.write_blank(segment, self._take_blank())
        self._housekeeper.note_sealed(segment)
        self._begin_segment(taken, entry, last_time)

    def _await_synced(self, position: int) -> None:
        self._commits.wait(position)

    def _open_segment(self, base: int) -> Segment:
        path = names.segment_path(self.path, base)
        segment = Segment(self._files.open(path, writable=True), str(path), writable=True)
        segment.advance(HEADER_BYTES, True)
        segment.close_file()
        return segment

    def _load_index(self, segment: Segment, entry: int) -> None:
        with self._lock:
            indexes.cover(self.path, segment, entry)

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
        self._submitted.fail(poisoned)
        logger.error("%s", poisoned)
        return poisoned

    # ---- appending ------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[int | None] | None = None,
    ) -> Ack[range]:
        """As append_batch, without waiting; the Ack gives the range of entry numbers."""
        made, position = self._batch(values, keys, event_times, None)
        return self._commits.acknowledge(made, position if position is not None else 0)

    def _request_commit(self) -> None:
        self._commits.request()

    # ---- durability -----------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make all appended so far durable; returns the first entry number not covered. PoisonedError when it fails."""
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
                self._housekeeper.sync_sealed()
                if self.tail.synced_end < position:
                    self._files.sync(segment.fileno())
            except OSError as error:
                raise self._poison("sync", error) from error
            if position > self.tail.synced_end:
                self._set_synced(position, entry)
        return entry

    @property
    def _staged_end(self) -> int:
        return self._state[1]

    def show_up_to(self, position: int, entry: int) -> None:
        """Move the commit point of a log that was opened with one (`gated`): readers see all before `position`, where
        entry number `entry` begins, as far as the log goes. Never back. Any thread."""
        show_up_to(self, position, entry)

    @property
    def end(self) -> int:
        """Number of the first entry that readers may not read: one more than the last visible one."""
        if self._parents is not None:
            raise self._parents
        return self.tail.visible_entry

    @property
    def synced_end(self) -> int:
        """Number of the first entry not known to be on disk."""
        self._check_process()
        return self.tail.synced_entry

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _reached(self, entry: int, timeout: float | None) -> bool:
        """Whether `entry` becomes visible within `timeout` seconds; the sleep is the watcher thread's."""
        return await self._watcher.reached(entry, timeout)

    # ---- removing -------------------------------------------------------------------------------------------

    def trim(self, entry: int) -> int:
        """Remove whole segments whose entries all lie before `entry`; returns the number of the first entry left.

        Never the active segment, nothing at or above `retention_floor`. Readers that hold a segment keep it.
        """
        self._check_open()
        as_int("entry", entry)
        with self._lock:
            table = self._segment_table()
            count = 0
            while count + 1 < len(table) and table[count + 1][1] <= entry:
                if table[count + 1][0] > self.retention_floor:
                    break
                count += 1
            retention.remove_front(self, count)
        return self.start

    def truncate(self, entry: int) -> int:
        """Cut the log so that its next entry gets number `entry`; returns that number.

        Durable and crash-safe: after a crash the log has either end. Cut entries never come back; readers that have
        them mapped keep their bytes, followers beyond get TruncatedError. Errors: OutOfRangeError, TrimmedError.
        """
        self._check_open()
        as_int("entry", entry)
        self.sync()  # the cut end will count as synced: so must all before it
        with self._lock:
            self._enter()
            try:
                if self._staged:
                    self._commits.flush()
                self._housekeeper.sync_sealed()
                if entry != self._state[2]:
                    truncation.cut(self, entry)
            except OSError as error:  # half done: what is mapped and what is on disk may differ
                raise self._poison("truncation", error) from error
            finally:
                self._leave()
        return entry

    def _restart(self, segment: Segment, position: int, entry: int, last_time: int) -> None:
        """Go on at `position` in a segment that was cut there, all before it synced."""
        self._activate(segment, position - segment.base, entry, last_time)
        self._commits.restart(position)
        self._set_synced(position, entry)
        publication.publish(self, is_open=True)

    # ---- state ----------------------------------------------------------------------------------------------

    def stats(self) -> LogStats:
        """Where the log stands now."""
        self._check_open()
        return LogStats.of(self)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, put down a clean checkpoint and let go. Waiters get ClosedError. Closing twice is fine.

        In a finalizer that runs when the interpreter ends, the log is synced and nothing more: no other thread goes on
        then, and the next opening verifies what lies behind the checkpoint.
        Errors: PoisonedError when the last sync fails; the log is closed all the same.
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
            self._let_go()

    def _sync_alone(self) -> None:
        """Takes no lock and waits for no thread: one that is gone may hold it, or have been about to answer."""
        poisoned, self._error = self._error, ClosedError(f"{self.path} was closed")
        if poisoned is not None:
            return
        synced = self.tail.synced_end
        try:
            for base, _, _ in self._segment_table():
                if base + self._segment_bytes > synced:
                    fd = self._files.open(names.segment_path(self.path, base), writable=True)
                    try:
                        self._files.sync(fd)
                    finally:
                        os.close(fd)
        except OSError as error:
            raise PoisonedError(f"{self.path}: the sync at the end of the process failed: {error}") from error

    def _finish(self) -> None:
        """Let nobody append any more, and sync all that was."""
        with self._lock:
            self._enter()
            try:
                if self._staged:
                    self._commits.flush()
                else:
                    self.sync()
                self._set_open(False)
            finally:
                self._leave()
            try:
                self._checkpoint.advance(position=self.tail.synced_end, entry=self.tail.synced_entry, clean=True)
            except OSError as error:
                raise self._poison("close", error) from error

    def _let_go(self) -> None:
        self._set_open(False)
        self._error = ClosedError(f"{self.path} was closed")
        self._commits.stop()
        self._housekeeper.stop()
        self._watcher.stop(self._error)
        try:
            with self._lock:
                self._pool.close()
                self._checkpoint.close()
                publication.publish(self, is_open=False)
                self._set_segments([])
                self._housekeeper.forget(1 << 62)
                self._forget_active()
        finally:
            self._writer_lock.release()
            self._submitted.fail(self._error)

    def _forked(self) -> None:
        """In a forked child: refuse everything, and keep the child from holding the parent's lock."""
        self._parents = ForkedError(f"{self.path} was opened by process {self._pid}; open it again in this one")
        self._set_open(False)
        self._set_segments([])
        self._writer_lock.release()

    def __del__(self) -> None:
        if getattr(self, "_error", self) is None and os.getpid() == self._pid:
            handles.warn_of_leak(f"log {self.path}", self, self._opened_at)
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CommitLog holds a lock and mapped files and cannot be pickled; open the path again")

    def __repr__(self) -> str:
        state = "closed" if self._error or self._parents else f"entries {self.start} to {self.end}"
        return f"<CommitLog {str(self.path)!r} {state}>"
