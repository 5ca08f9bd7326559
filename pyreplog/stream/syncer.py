"""Syncer: syncs a log repeatedly while it grows, in its own thread or in those of a runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog.errors import ReplogError
from pyreplog.log.runtime import WHEN_WOKEN, LogRuntime, SharedTask

if TYPE_CHECKING:
    from pyreplog.log.commit_log import CommitLog


class Syncer:
    """Syncs a log whenever it has grown.

    Args:
        log: the log.
        on_synced: called after each sync.
        on_failed: called with the error if a sync fails; no sync follows.
        runtime: its threads sync; None: the object has its own thread.
    """

    def __init__(
        self, log: CommitLog, on_synced: Callable[[], object], on_failed: Callable[[ReplogError], object],
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        self._log, self._on_synced, self._on_failed = log, on_synced, on_failed
        self._wake = threading.Event()
        self._is_stopped = False
        self._task: SharedTask | None = None
        if runtime is not None:
            self._task = runtime.syncing.add(self._sync_once)
        else:
            threading.Thread(target=self._run, name="pyreplog-replica-sync", daemon=True).start()

    def grew(self) -> None:
        """Ask for a sync, because the log has grown."""
        if self._task is not None:
            self._task.wake()
        else:
            self._wake.set()

    def stop(self) -> None:
        """Stop syncing; does not wait for a running sync."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._sync():
                return

    def _sync_once(self) -> float:
        self._sync()
        return WHEN_WOKEN

    def _sync(self) -> bool:
        """Sync the log. Return whether the thread continues."""
        if self._is_stopped:
            return False
        try:
            self._log.sync()
        except ReplogError as error:
            if not self._is_stopped:
                self._is_stopped = True
                self._on_failed(error)
            return False
        self._on_synced()
        return True
