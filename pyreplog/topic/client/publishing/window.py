"""How much of a topic may be on its way, and who waits for room."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyreplog.future import AppendFuture, settle_all

_RECORD_BYTES = 80
"""What an entry takes in a ledger beside its bytes, at most."""


class Window:
    """Bytes and entries that were submitted and have no outcome yet. Any thread, but `enter` and `leave` want a
    lock of the caller's, or `lock`.

    beyond: (bytes, entries) that ledgers hold besides, as they do not have all their copies; each is bounded by itself.
    """

    def __init__(self, bytes_max: int, entries_max: int, beyond: Callable[[], tuple[int, int]] | None = None) -> None:
        self._bytes_max, self._entries_max, self._beyond = bytes_max, entries_max, beyond
        self.lock = threading.Lock()
        self._waiting: list[AppendFuture[None]] = []
        self._is_over = False
        self.bytes = self.entries = 0
        self._sure_bytes = self._sure_entries = 0  # so much may enter before ledgers have to be asked again

    def enter(self, size: int, entries: int) -> None:
        self.bytes += size
        self.entries += entries
        self._sure_bytes -= size + _RECORD_BYTES * entries
        self._sure_entries -= entries

    def leave(self, size: int, entries: int) -> None:
        self.bytes -= size
        self.entries -= entries

    def has_room(self, windows: float = 1.0) -> bool:
        """Whether less than so many windows are full, or nothing is taken any more."""
        if self._is_over or (windows >= 1 and self._sure_bytes > 0 and self._sure_entries > 0):
            return True
        bytes_max, entries_max = windows * self._bytes_max, windows * self._entries_max
        if self.bytes >= bytes_max or self.entries >= entries_max:
            return False
        if self._beyond is None:
            return True
        held, entries = self._beyond()
        self._sure_bytes = self._bytes_max - max(held, self.bytes)
        self._sure_entries = self._entries_max - max(entries, self.entries)
        return held < bytes_max and entries < entries_max

    def room(self) -> AppendFuture[None]:
        """Done as soon as there is room, or nothing is taken any more."""
        future: AppendFuture[None] = AppendFuture()
        if self.has_room():
            future.complete(None)
            return future
        with self.lock:
            self._waiting.append(future)
        self.give_room()
        return future

    def give_room(self) -> None:
        """Something has left. Half a window is given, once there was none: else everybody is woken for one batch."""
        if self._waiting and self.has_room(0.5):
            with self.lock:
                waiting, self._waiting = self._waiting, []
            settle_all([(future, None) for future in waiting])

    def end(self) -> None:
        """Nothing is taken any more: nobody has to wait."""
        self._is_over = True
        self.give_room()
