"""The background thread of a CommitLog: prepare segments ahead, sync and index sealed ones, apply retention.

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

from pyreplog._native.segment import HEADER_BYTES, Segment
from pyreplog._native.sparse import SparseIndex
from pyreplog.errors import DiskError, ReplogError
from pyreplog.log import indexes, retention

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

LAZY_SYNC_S = 2.0
"""A sealed segment of an `appended` log is synced when it is this old: opening after a crash then has little to verify,
while a log that is trimmed quickly never pays for syncing what it drops."""

MAPPED_MAX = 1024
"""Sealed segments that stay mapped; beyond, the oldest that nobody reads are unmapped."""

_IDLE_S = 0.5


class Housekeeper:
    """Duties of one log, done by one thread that sleeps until there is something to do."""

    def __init__(self, log: CommitLog) -> None:
        self._log = weakref.ref(log)
        self._config = log.config
        self._wake = threading.Event()
        self._stopping = False
        self._sealed: deque[tuple[float, Segment]] = deque()  # not synced yet, ascending
        self._last_sync = time.monotonic()
        self._thread = threading.Thread(
            target=_run, args=(self._log, self._wake), name=f"pyreplog-{log.path.name}", daemon=True
        )

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def note_sealed(self, segment: Segment) -> None:
        """A segment is full; called on the append path, so it only takes note."""
        self._sealed.append((time.monotonic(), segment))
        self._wake.set()

    def forget(self, base: int) -> None:
        """Segments up to and including the one at `base` left the log."""
        with contextlib.suppress(IndexError):
            while self._sealed[0][1].base <= base:
                self._sealed.popleft()

    # ---- duties ---------------------------------------------------------------------------------------------

    def step(self, log: CommitLog) -> float:
        """Do what is due; seconds until something may be due again."""
        self._prepare(log)
        self._seal(log)
        self._prepare(log)
        if self._config.durability == "interval":
            return self._sync_interval(log)
        return _IDLE_S

    def _prepare(self, log: CommitLog) -> None:
        try:
            self._retain(log)
            while log._pool.wanting() and not self._stopping:
                for segment in log._pool.prepare(log._pool.ready + 1):
                    log._pool.populate(segment)
                self._retain(log)  # before the next one: what it frees need not be made
        except DiskError as error:
            logger.warning("%s: cannot prepare a segment: %s", log.path, error)

    def _retain(self, log: CommitLog) -> None:
        if self._config.retention_bytes is None and self._config.retention_ms is None:
            return
        with log._lock:
            table, end, now_us = log._segment_table(), log._state[1], log._clock.now_us()
            count = 0
            while count + 1 < len(table):
                last_time = _first_time(log, count + 1, now_us) if self._config.retention_ms is not None else now_us
                if not retention.may_go(
                    self._config, table[count][0], table[count + 1][0], last_time, end, now_us, log.retention_floor
                ):
                    break
                count += 1
            retention.remove_front(log, count)

    def _seal(self, log: CommitLog) -> None:
        """Write the index of segments that are full, and sync those that are due, oldest first."""
        due = time.monotonic() - (LAZY_SYNC_S if self._config.durability == "appended" else 0.0)
        while self._sealed and self._sealed[0][0] <= due and not self._stopping and log._error is None:
            with log._lock:
                self.sync_sealed(1)
        with log._lock:
            self._unmap_surplus(log)

    def sync_sealed(self, limit: int = 1 << 30) -> None:
        """Sync sealed segments, the oldest first, and move the checkpoint behind them. Under the log's lock.

        Not once the log is poisoned: the pages that a failed sync lost count as clean, so the next sync succeeds.
        """
        log = self._log()
        while log is not None and log._error is None and self._sealed and limit > 0:
            segment = self._sealed[0][1]
            index = segment.index
            assert index is not None, "a sealed segment has its index until it is written here"
            log._files.sync(segment.fileno())
            end, entry = segment.base + segment.size, segment.first_entry + index.entries
            _write_index(log, segment, index)
            if self._config.durability != "synced" and end > log.tail.synced_end:
                log._set_synced(end, entry)
            log._checkpoint.advance(position=end, entry=entry, clean=False)
            with contextlib.suppress(IndexError):
                self._sealed.popleft()
            segment.close_file()
            limit -= 1

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
        interval = self._config.sync_interval_ms / 1000
        left = self._last_sync + interval - time.monotonic()
        if left > 0:
            return min(left, _IDLE_S)
        self._last_sync = time.monotonic()
        if log._state[1] > log.tail.synced_end and log._error is None:
            with contextlib.suppress(ReplogError):  # poisoned: the log says so to its callers
                log.sync()
        return min(interval, _IDLE_S)


def _first_time(log: CommitLog, row: int, now_us: int) -> int:
    """Append time of a segment's first record: not before the last one of the segment in front of it. `now_us` when it
    has no record yet: what lies there is of an earlier life."""
    _, segment = log._hold(log._segment_table()[row][0])
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


def _run(reference: weakref.ref[CommitLog], wake: threading.Event) -> None:
    """The thread: it does not keep the log alive, so that a leaked log can say so."""
    pause = 0.0
    while True:
        wake.wait(pause)
        wake.clear()
        log = reference()
        if log is None or log._housekeeper._stopping or log._error is not None:
            return  # poisoned, too: a sync that succeeds after one that failed proves nothing
        try:
            pause = log._housekeeper.step(log)
        except OSError as error:
            log._poison("housekeeping", error)
            return
        except ReplogError as error:
            logger.error("%s: housekeeping stopped: %s", log.path, error)
            return
        del log
