"""LogSyncer: syncs the logs of topics with `requires_sync`, in a few threads."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

from pyreplog.handles import Handle

logger = logging.getLogger(__name__)

THREADS_MAX = 8
"""Most syncs at a time. A disk accepts several at once, and completes them together."""
_IDLE_S = 10.0
"""Seconds after which an idle thread ends."""


class SyncedLog(Protocol):
    """A log that a syncer syncs."""

    def sync(self) -> object:
        """Sync all records of the log."""
        ...


class LogSyncer(Handle):
    """Syncs logs on request. Threads start on demand, at most `THREADS_MAX`. Any thread may use it.

    A log is synced by one thread at a time. All records that are appended during a sync are synced by the next one.

    Args:
        threads_max: most syncs at a time.
    """

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._changed = threading.Condition()  # guards the fields below
        self._waiting: deque[SyncedLog] = deque()
        self._known: dict[SyncedLog, bool] = {}  # waiting or running logs -> whether another sync has to follow
        self._running: set[SyncedLog] = set()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        super().__init__("log syncer")

    def request(self, log: SyncedLog) -> None:
        """Sync all present records of a log soon. Does not block; has no effect after `close`."""
        with self._changed:
            if self._error is not None:
                return
            if log in self._known:
                self._known[log] = log in self._running
                return
            self._known[log] = False
            self._waiting.append(log)
            if self._idle:
                self._changed.notify()
            elif len(self._threads) < self._threads_max:
                thread = threading.Thread(target=self._run, name="pyreplog-syncer", daemon=True)
                self._threads.add(thread)
                thread.start()

    def _run(self) -> None:
        while (log := self._next()) is not None:
            try:
                log.sync()
            except Exception:  # the other logs continue
                logger.exception("a sync failed")
            with self._changed:
                self._running.discard(log)
                if self._known.pop(log) and self._error is None:
                    self._known[log] = False
                    self._waiting.append(log)

    def _next(self) -> SyncedLog | None:
        """Return the next log to sync; None: this thread ends."""
        with self._changed:
            while not self._waiting and self._error is None:
                self._idle += 1
                is_woken = self._changed.wait(_IDLE_S)
                self._idle -= 1
                if not is_woken and not self._waiting:
                    break
            if not self._waiting or self._error is not None:
                self._threads.discard(threading.current_thread())
                return None
            log = self._waiting.popleft()
            self._running.add(log)
            return log

    def _do_close(self) -> None:
        """Wait for running syncs; drop waiting ones."""
        with self._changed:
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
