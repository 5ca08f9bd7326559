"""FairLock: a lock for threads and coroutines that is granted in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque

from pyreplog.future import AppendFuture, set_exception, set_result


class FairLock:
    """A lock whose `enter` returns a future that is done once the caller has the lock.

    The caller then has to call `leave`; a caller that stops waiting has to call `give_up`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[AppendFuture[None]] = deque()

    def try_enter(self) -> bool:
        """Take the lock if it is free; return whether the caller has it now."""
        with self._lock:
            if self._taken:
                return False
            self._taken = True
            return True

    def enter(self) -> AppendFuture[None]:
        """Request the lock; return a future that is done when the caller has it."""
        future: AppendFuture[None] = AppendFuture()
        with self._lock:
            if self._taken:
                self._waiting.append(future)
                return future
            self._taken = True
        set_result(future, None)
        return future

    def leave(self) -> None:
        """Release the lock."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._taken = False
                    return
                future = self._waiting.popleft()
            if set_result(future, None):
                return

    def give_up(self, future: AppendFuture[None]) -> None:
        """Withdraw a request of `enter`, and release the lock if it was granted meanwhile."""
        if not set_exception(future, TimeoutError("the caller does not wait for it any more")):
            self.leave()
