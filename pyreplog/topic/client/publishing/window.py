"""Limits the messages of a topic without an outcome; callers wait for room."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyreplog.future import AppendFuture, set_result, settle_all

_RECORD_BYTES = 80
"""Most bytes of an entry in a ledger in addition to its value."""


class Window:
    """Counts bytes and messages without an outcome.

    Any thread; calls of `enter` and `leave` hold a lock of the caller, or `lock`.

    beyond: returns (bytes, entries) that the sink holds, including entries with an outcome that lack copies; bytes and
    entries have limits of their own. entries_max: of these entries.
    """

    def __init__(
        self,
        bytes_max: int,
        messages_max: int,
        *,
        entries_max: int = 1 << 62,
        beyond: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._bytes_max, self._messages_max, self._entries_max = bytes_max, messages_max, entries_max
        self._beyond = beyond
        self.lock = threading.Lock()
        self._waiting: list[AppendFuture[None]] = []
        self.is_over = False
        """No messages are accepted any more."""
        self.is_held = False
        """A quota holds publishers, so there is no room. After setting it to False call `give_room`."""
        self.bytes = self.messages = 0
        self._sure_bytes = self._sure_messages = 0  # may enter before the sink has to be asked again

    def enter(self, size: int, messages: int) -> None:
        self.bytes += size
        self.messages += messages
        self._sure_bytes -= size + _RECORD_BYTES * messages
        self._sure_messages -= messages

    def leave(self, size: int, messages: int) -> None:
        self.bytes -= size
        self.messages -= messages

    @property
    def waiting(self) -> int:
        """Number of callers that wait for room."""
        return len(self._waiting)

    def has_room(self, windows: float = 1.0) -> bool:
        """Return whether less than so many windows are full, or no messages are accepted any more.

        Callers that cannot wait, and ask for more than one window, are not held by a quota.
        """
        if self.is_over:
            return True
        if self.is_held and windows <= 1:
            return False
        if windows >= 1 and self._sure_bytes > 0 and self._sure_messages > 0:
            return True
        bytes_max = windows * self._bytes_max
        if self.bytes >= bytes_max or self.messages >= windows * self._messages_max:
            return False
        if self._beyond is None:
            return True
        held, entries = self._beyond()
        self._sure_bytes = self._bytes_max - max(held, self.bytes)
        self._sure_messages = min(self._messages_max - self.messages, self._entries_max - entries)
        return held < bytes_max and entries < windows * self._entries_max

    def room(self) -> AppendFuture[None]:
        """Return a future that is done as soon as there is room, or no messages are accepted any more."""
        future: AppendFuture[None] = AppendFuture()
        if self.has_room():
            set_result(future, None)
            return future
        with self.lock:
            self._waiting.append(future)
        self.give_room()
        return future

    def give_room(self) -> None:
        """Wake waiting callers, after messages have left, if half a window is free.

        With less than that all of them would be woken for one batch.
        """
        if self._waiting and self.has_room(0.5):
            with self.lock:
                waiting, self._waiting = self._waiting, []
            settle_all([(future, None) for future in waiting])

    def end(self) -> None:
        """Accept no more messages, so that no caller has to wait."""
        self.is_over = True
        self.give_room()
