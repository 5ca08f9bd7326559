"""How many messages a consumer asks for: as many as may wait in it. Pure; threads: the consumer's lock."""

from __future__ import annotations

FIRST = 1024
"""So many at first, then twice as many each time, up to the whole queue: what one consumer has no other gets."""

BYTES_MAX = 64 << 20
"""Of values that wait, about."""

_WEIGHT = 8  # of what is known of sizes, against one delivery


class Permits:
    """queue: messages that may wait at most."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        self._most = self._asked = min(queue, FIRST)
        self._size = 0.0  # bytes of a message, about

    @property
    def first(self) -> int:
        """What to ask for at the beginning."""
        return min(self._queue, FIRST)

    def came(self, messages: int, size: int) -> None:
        """So many were delivered, their values of so many bytes."""
        if messages:
            self._size += (size / messages - self._size) / (_WEIGHT if self._size else 1)

    def taken(self, messages: int) -> int:
        """So many wait no more; how many to ask for anew, half a queue at a time. 0: none yet."""
        self._asked -= messages
        if 2 * self._asked > self._most:
            return 0
        fits = int(BYTES_MAX / self._size) if self._size else self._queue
        self._most = max(min(2 * self._most, self._queue, fits), 1)
        more = max(self._most - self._asked, 0)
        self._asked += more
        return more
