"""Fetches of consumers that wait for bytes."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.protocol.fetch_min_bytes import FetchedPart, wake_positions
from pyreplog.partition.requests import FetchIsolation, FetchPartitionData
from pyreplog.partition.role import ReplicaRole
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory, PurgatoryEntry

FetchResponses = dict[TopicPartition, FetchPartitionData]


class WatchedPart(NamedTuple):
    """One partition of a fetch that waits.

    Attributes:
        role: in which it was read.
        start: position from which on it was read.
        max_bytes: what of it counts at most.
    """

    role: ReplicaRole
    start: int
    max_bytes: int


class DelayedFetch:
    """A fetch that waits until its partitions have `min_bytes` together.

    It is looked at when one of them has got its share (`wake_positions`), not at each append; when the replica's role
    changes, or when its time is over, which is no error. Then all is read anew: what was read before it waited is out
    of date, and so is the list of aborted transactions.

    Args:
        parts: its partitions.
        isolation: up to where it reads.
        min_bytes: for which it waits.
        read: reads all partitions again.
        future: is given what was read.
    """

    __slots__ = (
        "_deadline", "_entries", "_future", "_is_changed", "_is_done", "_is_looking", "_isolation", "_lock",
        "_min_bytes", "_must_answer", "_parts", "_purgatory", "_read",
    )  # fmt: skip

    def __init__(
        self, parts: Sequence[WatchedPart], isolation: FetchIsolation, min_bytes: int,
        read: Callable[[], FetchResponses], future: AppendFuture[FetchResponses], purgatory: Purgatory,
    ) -> None:  # fmt: skip
        self._parts, self._isolation, self._min_bytes = parts, isolation, min_bytes
        self._read, self._future, self._purgatory = read, future, purgatory
        self._lock = allocate_lock()
        self._entries: list[PurgatoryEntry] = []  # for bytes
        self._deadline: PurgatoryEntry | None = None
        self._is_changed = self._is_looking = self._is_done = self._must_answer = False

    def watch(self, deadline_us: int) -> None:
        """Wait, without locks."""
        self._deadline = self._purgatory.complete_at(deadline_us, self._wait(self._answer_now))
        self._look()

    def _wait(self, wake: Callable[[AppendFuture[None]], object]) -> AppendFuture[None]:
        wait = AppendFuture[None](None)
        wait.add_done_callback(wake)
        return wait

    def _answer_now(self, _: AppendFuture[None]) -> None:
        self._must_answer = True
        self._look()

    def _look_again(self, _: AppendFuture[None]) -> None:
        self._look()

    def _look(self) -> None:
        """One thread at a time looks; others leave it word that something changed."""
        with self._lock:
            self._is_changed = True
            if self._is_looking or self._is_done:
                return
            self._is_looking = True
        while True:
            self._is_changed = False
            if self._is_satisfied() or self._watch_marks():
                self._complete()
                return
            with self._lock:
                if not self._is_changed:
                    self._is_looking = False
                    return

    def _thresholds(self) -> list[int | None] | None:
        """Positions at which to look again; None: it can be answered."""
        if self._must_answer or any(part.role.is_over for part in self._parts):
            return None
        isolation = self._isolation
        parts = [FetchedPart(part.start, part.role.positions[isolation], part.max_bytes) for part in self._parts]
        return wake_positions(parts, self._min_bytes)

    def _is_satisfied(self) -> bool:
        return self._thresholds() is None

    def _watch_marks(self) -> bool:
        """Watch; return whether it can be answered after all (check-watch-check)."""
        thresholds = self._thresholds()
        if thresholds is None:
            return True
        self._cancel(self._entries)
        self._entries = []
        for part, threshold in zip(self._parts, thresholds, strict=True):
            if threshold is not None:
                key = part.role.keys[self._isolation]
                self._entries.append(self._purgatory.watch(key, threshold, self._wait(self._look_again)))
                if part.role.positions[self._isolation] >= threshold:  # it moved before that: others need less now
                    self._is_changed = True
        return self._is_satisfied()

    def _cancel(self, entries: list[PurgatoryEntry]) -> None:
        for entry in entries:
            self._purgatory.cancel(entry)

    def _complete(self) -> None:
        self._is_done = True
        self._cancel(self._entries)
        if self._deadline is not None:
            self._purgatory.cancel(self._deadline)
        set_result(self._future, self._read())
