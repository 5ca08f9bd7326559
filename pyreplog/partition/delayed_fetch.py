"""DelayedFetch: a fetch of a consumer that waits in the purgatory until its partitions have enough bytes."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.protocol.fetch_min_bytes import FetchedPart, wake_positions
from pyreplog.partition.requests import FetchIsolation, FetchResponses
from pyreplog.partition.role import ReplicaRole
from pyreplog.purgatory import Purgatory, PurgatoryEntry
from pyreplog.stream.log_position import LogPosition


class WatchedPart(NamedTuple):
    """One partition of a waiting fetch.

    Attributes:
        role: role of the replica when it was read.
        start: where the fetch begins.
        max_bytes: most bytes of this partition that count.
    """

    role: ReplicaRole
    start: LogPosition
    max_bytes: int


class DelayedFetch:
    """A fetch that waits until its partitions have `min_bytes` together.

    A partition wakes it when it has its share of the bytes (`wake_positions`), not with each append. A change of the
    replica's role wakes it as well, and so does its deadline, which is no error. Then all partitions are read again,
    because records and aborted transactions that were read before the wait are out of date.

    Args:
        parts: its partitions.
        isolation: up to where it reads.
        min_bytes: number of bytes for which it waits.
        read: reads all partitions again.
        future: future of the responses.
        purgatory: the purgatory in which it waits.
    """

    __slots__ = (
        "_deadline", "_entries", "_future", "_is_changed", "_is_checking", "_is_done", "_is_expired", "_isolation",
        "_lock", "_min_bytes", "_parts", "_purgatory", "_read",
    )  # fmt: skip

    def __init__(
        self, parts: Sequence[WatchedPart], isolation: FetchIsolation, min_bytes: int,
        read: Callable[[], FetchResponses], future: AppendFuture[FetchResponses], purgatory: Purgatory,
    ) -> None:  # fmt: skip
        self._parts, self._isolation, self._min_bytes = parts, isolation, min_bytes
        self._read, self._future, self._purgatory = read, future, purgatory
        self._lock = allocate_lock()
        self._entries: list[PurgatoryEntry] = []  # entries of the watched positions
        self._deadline: PurgatoryEntry | None = None
        self._is_changed = self._is_checking = self._is_done = self._is_expired = False

    def watch(self, deadline_us: int) -> None:
        """Enter the purgatory. The caller holds no lock.

        Args:
            deadline_us: when it is answered at the latest, monotonic microseconds.
        """
        self._deadline = self._purgatory.complete_at(deadline_us, self._future_for(self.expire))
        self._try_complete()

    def _future_for(self, callback: Callable[[AppendFuture[None]], object]) -> AppendFuture[None]:
        future = AppendFuture[None](None)
        future.add_done_callback(callback)
        return future

    def expire(self, _: AppendFuture[None]) -> None:
        """End the wait: the fetch is answered with the records that there are. The caller holds no lock.

        Args:
            _: the future whose callback this is.
        """
        self._is_expired = True
        self._try_complete()

    def _wake(self, _: AppendFuture[None]) -> None:
        self._try_complete()

    def _try_complete(self) -> None:
        """Complete the fetch if it can be answered. One thread at a time checks; other callers make that thread check
        again."""
        with self._lock:
            self._is_changed = True
            if self._is_checking or self._is_done:
                return
            self._is_checking = True
        while True:
            self._is_changed = False
            if not self._watch_positions():
                self._complete()
                return
            with self._lock:
                if not self._is_changed:
                    self._is_checking = False
                    return

    def _wake_positions(self) -> list[int | None] | None:
        """Return the positions at which to check again, as `wake_positions` does; None: it can be answered."""
        if self._is_expired or any(part.role.is_over for part in self._parts):
            return None
        isolation = self._isolation
        parts = [FetchedPart(part.start, part.role.marks[isolation], part.max_bytes) for part in self._parts]
        return wake_positions(parts, self._min_bytes)

    def _watch_positions(self) -> bool:
        """Watch positions; return whether the fetch has to wait. It checks again after it has begun to watch
        (check-watch-check)."""
        thresholds = self._wake_positions()
        if thresholds is None:
            return False
        self._cancel(self._entries)
        self._entries = []
        for part, threshold in zip(self._parts, thresholds, strict=True):
            if threshold is not None:
                key = part.role.keys[self._isolation]
                self._entries.append(self._purgatory.watch(key, threshold, self._future_for(self._wake)))
                if part.role.marks[self._isolation].position >= threshold:  # reached before the watch
                    self._is_changed = True
        return self._wake_positions() is not None

    def _cancel(self, entries: list[PurgatoryEntry]) -> None:
        for entry in entries:
            self._purgatory.cancel(entry)

    def _complete(self) -> None:
        self._is_done = True
        self._cancel(self._entries)
        if self._deadline is not None:
            self._purgatory.cancel(self._deadline)
        set_result(self._future, self._read())
