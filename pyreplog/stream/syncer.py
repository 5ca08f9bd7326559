"""Syncs a log repeatedly, in a thread, while it grows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyreplog.errors import ReplogError

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog


class Syncer:
    """Syncs a log in a thread of its own whenever it has grown.

    Calls `on_synced` after each sync. Calls `on_failed` if a sync fails, and ends.
    """

    def __init__(
        self, log: CommitLog, on_synced: Callable[[], object], on_failed: Callable[[ReplogError], object]
    ) -> None:
        self._log, self._on_synced, self._on_failed = log, on_synced, on_failed
        self._wake = threading.Event()
        self._stopping = False
        threading.Thread(target=self._run, name="pyreplog-replica-sync", daemon=True).start()

    def grew(self) -> None:
        """Ask for a sync, because the log has grown."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; does not wait for a sync that is running."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._log.sync()
            except ReplogError as error:
                if not self._stopping:
                    self._on_failed(error)
                return
            self._on_synced()
