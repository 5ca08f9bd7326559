"""A turn that threads and coroutines take one after the other, in the order they come."""

from __future__ import annotations

import threading
from collections import deque

from pyreplog.future import AppendFuture


class FairLock:
    """Whoever `enter`s has it once the AppendFuture is done, and must `leave`; who does not wait any more must
    `give_up`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[AppendFuture[None]] = deque()

    def enter(self) -> AppendFuture[None]:
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            if self._taken:
                self._waiting.append(future)
                return future
            self._taken = True
        future.complete(None)
        return future

    def leave(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._taken = False
                    return
                future = self._waiting.popleft()
            if future.complete(None):
                return

    def give_up(self, future: AppendFuture[None]) -> None:
        """It may have had its turn meanwhile."""
        if not future.fail(TimeoutError("nobody waits for it any more")):
            self.leave()
