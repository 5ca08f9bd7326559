"""ReceiveBudget: bounds the memory of requests that have not arrived whole, of all connections of a listener."""

from __future__ import annotations

from collections.abc import Callable

SMALL_BYTES = 16 << 10
"""Memory of an incomplete request that a connection may always have, so that small requests are always received."""


class ReceiveBudget:
    """Bounds the memory of incomplete requests (Kafka: `queued.max.request.bytes`).

    A connection asks before its memory grows beyond `SMALL_BYTES`. One that is refused waits, in the order of the
    refusals, until others have received their requests or are closed. The connection that waits first may exceed the
    budget once nobody else does, so that requests that together fill the budget do not wait for each other forever: the
    memory is that of the budget, of one request, and of `SMALL_BYTES` of each connection.

    It is used by one thread.

    Args:
        max_bytes: the budget, bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[object, int] = {}  # bytes above SMALL_BYTES by connection
        self._waiting: dict[object, Callable[[], None]] = {}  # by connection, the first one first
        self._exceeding: object | None = None
        self.used_bytes = 0
        """Bytes that connections have, without the small ones that each may have."""

    @property
    def waiting(self) -> int:
        """Number of connections that wait for memory."""
        return len(self._waiting)

    def acquire(self, connection: object, size: int, resume: Callable[[], None]) -> bool:
        """Reserve memory for the incomplete request of a connection, in place of what it had reserved.

        Args:
            connection: the connection.
            size: bytes of its memory from now on.
            resume: called when it should ask again, perhaps several times, if it is refused; it must not call this
                object at once.

        Returns:
            Whether it may have the memory.
        """
        wanted = max(size - SMALL_BYTES, 0)
        growth = wanted - self._held.get(connection, 0)
        is_first = not self._waiting or next(iter(self._waiting)) == connection
        if growth > 0 and not (is_first and self.used_bytes + growth <= self._max_bytes):
            if self._exceeding is None and is_first:
                self._exceeding = connection
            if self._exceeding != connection:
                self._waiting.setdefault(connection, resume)
                return False
        self._waiting.pop(connection, None)
        self._set(connection, wanted)
        self._wake()
        return True

    def release(self, connection: object, size: int = 0) -> None:
        """Note that the memory of a connection has shrunk, or that the connection is closed.

        Args:
            connection: the connection.
            size: bytes of its memory from now on; 0: none, and it does not wait.
        """
        if not size:
            self._waiting.pop(connection, None)
        if size <= SMALL_BYTES and self._exceeding == connection:
            self._exceeding = None
        self._set(connection, max(size - SMALL_BYTES, 0))
        self._wake()

    def _set(self, connection: object, wanted: int) -> None:
        self.used_bytes += wanted - self._held.pop(connection, 0)
        if wanted:
            self._held[connection] = wanted

    def _wake(self) -> None:
        """Call the connection that waits first if there is memory, or if nobody exceeds the budget."""
        if self._waiting and (self.used_bytes < self._max_bytes or self._exceeding is None):
            next(iter(self._waiting.values()))()
