"""A turn that threads and coroutines take one after the other, in the order they come."""

from __future__ import annotations

import threading
from collections import deque

from pyreplog.ack import Ack


class Turn:
    """Whoever `enter`s has it once the Ack is done, and must `leave`; who does not wait any more must `give_up`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[Ack[None]] = deque()

    def enter(self) -> Ack[None]:
        ack: Ack[None] = Ack()
        with self._lock:
            if self._taken:
                self._waiting.append(ack)
                return ack
            self._taken = True
        ack.complete(None)
        return ack

    def leave(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._taken = False
                    return
                ack = self._waiting.popleft()
            if ack.complete(None):
                return

    def give_up(self, ack: Ack[None]) -> None:
        """It may have had its turn meanwhile."""
        if not ack.fail(TimeoutError("nobody waits for it any more")):
            self.leave()
