"""Shares the bytes in flight to one cluster among topics: deficit round robin (Shreedhar and Varghese, 1995)."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class FairWindow(Generic[K, T]):
    """Queues requests of several topics, and keeps at most `bytes_max` bytes in flight; a larger request goes alone.

    The requests of one key leave in their order. Keys with queued requests get equal shares of the bytes, for small and
    large requests alike.

    Args:
        bytes_max: most bytes in flight.
        quantum: bytes that a key gets in a round.
    """

    def __init__(self, bytes_max: int, quantum: int = 1 << 18) -> None:
        self._bytes_max, self._quantum = bytes_max, quantum
        self._queues: OrderedDict[K, deque[tuple[int, T]]] = OrderedDict()  # the first key has its turn
        self._deficits: dict[K, int] = {}
        self.inflight_bytes = 0
        """Bytes of requests that have left and were not released."""

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return sum(map(len, self._queues.values()))

    def put(self, key: K, size: int, request: T) -> None:
        """Add a request behind the others of its key."""
        if key not in self._queues:
            self._queues[key] = deque()
            self._deficits[key] = 0
        self._queues[key].append((size, request))

    def take(self) -> list[T]:
        """Return the requests that may leave now, in order. `release` follows for each of them."""
        taken: list[T] = []
        while self._queues:
            key, queue = next(iter(self._queues.items()))
            size, request = queue[0]
            if self.inflight_bytes and self.inflight_bytes + size > self._bytes_max:
                break
            if self._deficits[key] < size:
                self._deficits[key] += self._quantum
                self._queues.move_to_end(key)
                continue
            queue.popleft()
            self._deficits[key] -= size
            self.inflight_bytes += size
            taken.append(request)
            if not queue:
                self._forget(key)
        return taken

    def release(self, size: int) -> None:
        """Note that a request that left has an outcome, a result or an error."""
        self.inflight_bytes -= size

    def drop(self, key: K) -> list[T]:
        """Remove the queued requests of a key, and return them."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        self._forget(key)
        return [request for _, request in queue]

    def _forget(self, key: K) -> None:
        """Forget an idle key and its unused share."""
        del self._queues[key], self._deficits[key]
