"""The background threads of a CommitLog. One prepares segments ahead and applies retention, the other syncs and indexes
sealed segments and syncs at intervals: neither waits for the other's disk.

Nothing here is on the append path; an append only finds a prepared segment, or has to prepare one itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import DiskError, ReplogError
from pyreplog.log import indexes, retention
from pyreplog.log.duty import Duty

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog
    from pyreplog.log.segments import Removed

logger = logging.getLogger(__name__)

LAZY_SYNC_S = 2.0
"""A sealed segment of an `appended` log is synced when it is this old: opening after a crash then has little to verify,
while a log that is trimmed quickly never pays for syncing what it drops."""

MAPPED_MAX = 1024
"""Sealed segments that stay mapped; beyond, the oldest that nobody reads are unmapped."""

_IDLE_S = 0.5
_LOCK_S = 0.01
_ROLL_S = 0.001


class Housekeeper:
    """Duties of one log, done by two threads that sleep until there is something to do."""

    def __init__(self, log: CommitLog) -> None:
        self._log = weakref.ref(log)
        self._config = log.config
        self._stopping = False
        self._sealed: deque[tuple[float, Segment]] = deque()  # not synced yet, ascending
        self._last_sync = time.monotonic()
        preparing = [Duty("retention", self._retain), Duty("preparing a segment", self._prepare)]
        syncing = [Duty("syncing sealed segments", self._seal), Duty("syncing at intervals", self._sync_interval)]
        self._duties = preparing + syncing
        self._wake_preparing, self._wake_syncing = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=_run, args=(self._log, wake, duties), name=f"pyreplog-{name}", daemon=True)
            for name, wake, duties in (
                (f"prepare-{log.path.name}", self._wake_preparing, preparing),
                (f"sync-{log.path.name}", self._wake_syncing, syncing),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake_preparing.set()
        self._wake_syncing.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def note_sealed(self, segment: Segment) -> None:
        """A segment is full; called on the append path, so it only takes note."""
        self._sealed.append((time.monotonic(), segment))
        self._wake_preparing.set()
        if self._config.durability != "appended":
            self._wake_syncing.set()

    @property
    def trouble(self) -> str:
        """What goes wrong at present, and is tried again; "" when all is well."""
        return "; ".join(duty.trouble for duty in self._duties if duty.trouble)

    def step(self, log: CommitLog) -> None:
        """Do now all that the threads would do, in the calling thread."""
        retain, prepare, *syncing = self._duties
        pause = 0.0
        while pause == 0.0:
            retain.attempt(log)
            pause = prepare.attempt(log)
        for duty in syncing:
            duty.attempt(log)

    def forget(self, base: int) -> None:
        """Segments up to and including the one at `base` left the log."""
        with contextlib.suppress(IndexError):
            while self._sealed[0][1].base <= base:
                self._sealed.popleft()

    # ---- duties: each returns in how many seconds it may be due again ----------------------------------------

    def _retain(self, log: CommitLog) -> float:
        """Remove what is too old or too much, and prepare its files again, until there is no more of it: what is freed
        need not be made."""
        while removed := self._take_out(log):
            retention.retire(log, removed, refill=True)
        return _IDLE_S

    def _take_out(self, log: CommitLog) -> list[Removed]:
        if self._config.retention_bytes is None and self._config.retention_ms is None:
            return []
        while not log._lock.acquire(timeout=_LOCK_S):  # somebody syncs
            if log._pool.ready <= self._config.spare_segments // 2:
                return []  # an append must not find none ready
        try:
            return retention.take_out(log, self._expired(log))
        finally:
            log._lock.release()

    def _expired(self, log: CommitLog) -> int:
        """How many segments retention removes now."""
        table, end, now_us = log._segment_table(), log._state[1], log._clock.now_us()
        floor = min(log.retention_floor, log.tail.visible)  # what nobody could read yet stays
        count = 0
        while count + 1 < len(table):
            last_time = _first_time(log, count + 1, now_us) if self._config.retention_ms is not None else now_us
            if not retention.may_go(self._config, table[count][0], table[count + 1][0], last_time, end, now_us, floor):
                break
            count += 1
        return count

    def _prepare(self, log: CommitLog) -> float:
        """At most one segment; retention comes before the next."""
        if log._state[1] // log._segment_bytes * log._segment_bytes + log._segment_bytes < log._pool.next_base:
            return _ROLL_S  # a segment is being begun: then retention may have one to give
        if log._pool.wanting():
            log._pool.prepare_ahead()
        return 0.0 if log._pool.wanting() else _IDLE_S

    def _seal(self, log: CommitLog) -> float:
        """Write the index of segments that are full, and sync those that are due, oldest first."""
        due = time.monotonic() - (LAZY_SYNC_S if self._config.durability == "appended" else 0.0)
        while self._sealed and self._sealed[0][0] <= due and not self._stopping and log._error is None:
            with log._lock:
                self.sync_sealed(1)
        with log._lock:
            self._unmap_surplus(log)
        return _IDLE_S

    def sync_sealed(self, limit: int = 1 << 30) -> None:
        """Sync sealed segments, the oldest first, and move the checkpoint behind them. Under the log's lock.

        PoisonedError when that fails; and nothing is done once the log is poisoned: the pages that a failed sync lost
        count as clean, so the next sync succeeds.
        """
        log = self._log()
        while log is not None and log._error is None and self._sealed and limit > 0:
            try:
                self._sync_oldest(log, self._sealed[0][1])
            except OSError as error:  # before the lock is given up: the next one must not take it half done
                raise log._poison("sealing", error) from error
            limit -= 1

    def _sync_oldest(self, log: CommitLog, segment: Segment) -> None:
        index = segment.index
        assert index is not None, "a sealed segment has its index until it is written here"
        if segment.fileno() >= 0:  # else recovery has synced it
            log._files.sync(segment.fileno())
        end, entry = segment.base + segment.size, segment.entry_after(index.entries)
        _write_index(log, segment, index)
        if not log._staged and end > log.tail.synced_end:
            log._set_synced(end, entry)
        log._checkpoint.advance(position=end, entry=entry, clean=False)
        with contextlib.suppress(IndexError):
            self._sealed.popleft()
        segment.close_file()

    def _unmap_surplus(self, log: CommitLog) -> None:
        table = log._segment_table()
        surplus = sum(row[2] is not None for row in table) - MAPPED_MAX
        if surplus <= 0:
            return
        for i, (_, _, segment) in enumerate(table[:-1]):
            if surplus > 0 and segment is not None and segment.pinned == 0 and segment.fileno() < 0:
                log._unmap(i)
                surplus -= 1

    def _sync_interval(self, log: CommitLog) -> float:
        if self._config.durability != "interval":
            return _IDLE_S
        interval = self._config.sync_interval_ms / 1000
        left = self._last_sync + interval - time.monotonic()
        if left > 0:
            return min(left, _IDLE_S)
        self._last_sync = time.monotonic()
        if log._state[1] > log.tail.synced_end and log._error is None:
            log.sync()
        return min(interval, _IDLE_S)


def _first_time(log: CommitLog, row: int, now_us: int) -> int:
    """Append time of a segment's first record: not before the last one of the segment in front of it. `now_us` when it
    has no record yet: what lies there is of an earlier life."""
    try:
        _, segment = log._hold(log._segment_table()[row][0])
    except ReplogError:
        raise
    except OSError as error:  # too many open files, for one: no sync failed
        raise DiskError(error.errno, f"a segment cannot be opened: {error}") from error
    if not segment.sealed and segment.end <= HEADER_BYTES:
        return now_us
    return segment.head_at(HEADER_BYTES)[3]


def _write_index(log: CommitLog, segment: Segment, index: SparseIndex) -> None:
    """An index that cannot be written is made again when it is asked for: no reason to stop the log."""
    try:
        indexes.write(log.path, log._files, segment, index)
    except OSError as error:
        logger.warning("%s: no index file for the segment at %d: %s", log.path, segment.base, error)
        segment.index = None


def _run(reference: weakref.ref[CommitLog], wake: threading.Event, duties: list[Duty]) -> None:
    """A thread: it does not keep the log alive, so that a leaked log can say so."""
    pause = 0.0
    while True:
        wake.wait(pause)
        wake.clear()
        log = reference()
        if log is None or log._housekeeper._stopping or log._error is not None:
            return  # poisoned, too: a sync that succeeds after one that failed proves nothing
        try:
            pause = min(duty.put_off() or duty.attempt(log) for duty in duties)
        except ReplogError:
            return  # closed or poisoned meanwhile; its callers are told
        except OSError as error:
            log._poison("housekeeping", error)
            return
        del log
