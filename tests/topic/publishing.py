"""A publisher with fake ledgers: the test gives outcomes, makes room and fires timers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyreplog._native.topic.messages import Message, MessageBatch, decode_messages
from pyreplog.clock import ManualClock
from pyreplog.future import AppendFuture
from pyreplog.origins.gate import OriginGates
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers
from tests.topic.entries import records_of

WAIT_S = 30.0
ENTRY_BYTES_MAX = 1 << 20

T = TypeVar("T")


class Ledgers:
    """A sink of batches. holds: `confirm` and `fail` give the outcomes; otherwise batches are confirmed at once."""

    def __init__(self, *, holds: bool = True) -> None:
        self.holds = holds
        self.entries: list[bytes] = []  # stored entries
        self.counts: list[int] = []
        self.submitted: list[list[int]] = []  # the counts of each call
        self.raises: Exception | None = None
        self.closed_with: Exception | None = None
        self.is_full = False
        self.on_room: Callable[[], object] = lambda: None
        self.came = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._held: deque[PublishBatch] = deque()

    def check_open(self) -> None:
        if self.closed_with is not None:
            raise self.closed_with

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        for batch in batches:
            self._submit(batch)

    def _submit(self, batch: PublishBatch) -> None:
        if self.raises is not None:
            raise self.raises
        assert len(batch.entries) == len(batch.counts) and batch.entries
        with self._lock:
            self.submitted.append(list(batch.counts))
            self._held.append(batch)
        self.came.release()
        if not self.holds:
            self.confirm()

    def confirm(self, calls: int = 1) -> None:
        for _ in range(calls):
            with self._lock:
                batch = self._held.popleft()
                first = sum(self.counts)
                self.entries += batch.entries
                self.counts += batch.counts
            batch.offsets = range(first, first + sum(batch.counts))
            batch.settle()

    def fail(self, error: Exception, stored: int = 0) -> None:
        """Fail the oldest batch. stored: how many of its first entries are stored all the same."""
        with self._lock:
            batch = self._held.popleft()
            self.entries += batch.entries[:stored]
            self.counts += batch.counts[:stored]
        batch.cut(stored, sum(map(len, batch.entries[:stored])))
        batch.is_end_known = True
        batch.settle(error)

    @property
    def held(self) -> int:
        return len(self._held)

    def pending(self) -> tuple[int, int]:
        return (1 << 40, 0) if self.is_full else (0, 0)

    def drain(self) -> None:
        self.is_full = False
        self.on_room()

    # ---- what is stored -------------------------------------------------------------------------------------

    def stored(self, offset: int = 0) -> MessageBatch:
        """Return the stored messages from the entry on that begins with this offset."""
        first = next(at for at in range(len(self.counts) + 1) if sum(self.counts[:at]) == offset)
        records = records_of(
            self.entries[first:],
            self.counts[first:],
            first=first,
            size=sum(map(len, self.entries[:first])),
            messages=offset,
        )
        return decode_messages(records, offset=0, entries=0, size=0, decompress=decompress)

    def messages(self) -> list[Message]:
        return list(self.stored()) if self.entries else []

    def values(self) -> list[bytes]:
        return [message.value for message in self.messages()]


class Timers:
    """A runtime whose timers the test fires. waits: released by each caller that waits."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []
        self.waits = threading.Semaphore(0)

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        self.waits.release()
        return future.result(WAIT_S)

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        self.set.append((seconds, call))

    def fire(self) -> None:
        timers, self.set = self.set, []
        for _, call in timers:
            call()


class Bench:
    """A publisher with its ledgers, timers and clock."""

    def __init__(
        self,
        *,
        holds: bool = True,
        producers: Producers | None = None,
        gates: OriginGates | None = None,
        end: int = 0,
        window_bytes: int = 1 << 20,
        **settings: Any,
    ) -> None:
        self.ledgers, self.timers, self.clock = Ledgers(holds=holds), Timers(), ManualClock(1_700_000_000_000_000)
        self.producers = producers
        self.publisher = Publisher(
            "news",
            self.ledgers,
            self.timers,
            self.clock,
            TopicConfig(**settings),
            entry_bytes_max=ENTRY_BYTES_MAX,
            producers=producers,
            gates=gates,
            end=end,
            window_bytes=window_bytes,
        )
        self.submit, self.submit_batch = self.publisher.submit, self.publisher.submit_batch
