"""Syncs a log repeatedly while it grows, in a thread of its own or those of a runtime."""

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

    Calls `on_synced` after each sync. Calls `on_failed` if a sync fails, and ends. runtime: whose threads sync; None: a
    thread of its own.
    """

    def __init__(
        self, log: CommitLog, on_synced: Callable[[], object], on_failed: Callable[[ReplogError], object],
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        self._log, self._on_synced, self._on_failed = log, on_synced, on_failed
        self._wake = threading.Event()
        self._stopping = False
        self._task: SharedTask | None = None
        if runtime is not None:
            self._task = runtime.syncing.add(self._turn)
        else:
            threading.Thread(target=self._run, name="pyreplog-replica-sync", daemon=True).start()

    def grew(self) -> None:
        """Ask for a sync, because the log has grown."""
        if self._task is not None:
            self._task.wake()
        else:
            self._wake.set()

    def stop(self) -> None:
        """Sync no more; does not wait for a sync that is running."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._sync():
                return

    def _turn(self) -> float:
        self._sync()
        return WHEN_WOKEN

    def _sync(self) -> bool:
        """Return whether it goes on."""
        if self._stopping:
            return False
        try:
            self._log.sync()
        except ReplogError as error:
            if not self._stopping:
                self._stopping = True
                self._on_failed(error)
            return False
        self._on_synced()
        return True
