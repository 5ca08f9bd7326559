"""Topics for tests: small ledgers and entries, receiving an exact number of messages, and three ways to count a
backlog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.clock import Clock
from pyreplog.cluster import Cluster
from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.cursor_log import CursorLog
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.cursor import Backlog
from pyreplog.topic.owner.locator import Locator
from pyreplog.topic.owner.topic import Topic
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

US = 1_700_000_000_000_000
PLAIN: dict[str, Any] = {"ensemble": 1, "durability": "appended", "retention_bytes": None}
KEPT: dict[str, Any] = {"retention_bytes": None}
SMALL: dict[str, Any] = {**PLAIN, **KEPT, "roll_entries": 3, "batch_messages": 4}
"""Ledgers of three entries, and entries of up to four messages; all are kept until `trim`."""


@contextmanager
def open_cluster(folder: Path, *, clock: Clock | None = None, bookies: int = 1, flush_ms: int = 2) -> Iterator[Cluster]:
    with Cluster.embedded(
        folder, bookies=bookies, segment_bytes=1 << 20, collect_interval_ms=3_600_000, clock=clock
    ) as cluster:
        hasten(cluster, flush_ms=flush_ms)
        yield cluster


def hasten(cluster: Cluster, *, flush_ms: int = 2) -> None:
    """Store acknowledgements after a few milliseconds, without a sync."""
    topics = cluster.topics
    topics.cursors.close()
    settings = CursorLogConfig(ensemble=1, durability="appended", flush_ms=flush_ms, retry_ms=1, retry_max_ms=10)
    topics.cursors = CursorLog(cluster, config=settings)


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % at for at in range(start, start + count)]


def fill(topic: Topic, count: int, *, by: int = 2) -> None:
    """Publish so many messages, `by` to an entry, one entry after the other, so that each ledger is full."""
    for at in range(0, count, by):
        topic.publish_batch(values(min(by, count - at), topic.end))


def trim(topic: Topic) -> int:
    """Trim all messages that no subscription needs, also of the open ledger; return the first offset that is left."""
    topic.configure(retention_bytes=0)
    topic.managed.roll().result(PATIENCE_S)
    return topic.trim()


def receive(consumer: Consumer, count: int) -> list[Message]:
    """Receive exactly so many messages."""
    messages: list[Message] = []
    while len(messages) < count:
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None, f"{len(messages)} of {count} came"
        messages.append(message)
    return messages


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.offset for message in messages]


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Record the ranges of entries that are read from now on, as (ledger, first, last)."""
    ranges: list[tuple[int, int, int]] = []

    def noted(kind: type[Ledger] | type[LedgerReader]) -> Callable[..., Any]:
        read = kind.read_range

        def note(ledger: Any, first: int, last: int, **options: Any) -> Any:
            ranges.append((ledger.id, first, last))
            return read(ledger, first, last, **options)

        return note

    for kind in (Ledger, LedgerReader):
        monkeypatch.setattr(kind, "read_range", noted(kind))
    return ranges


class HeldPlaces:
    """Holds back the reads that locate entries, until the test releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = Locator._read
        self._held: list[tuple[Locator, int, int, AppendFuture[MessageBatch]]] = []
        monkeypatch.setattr(Locator, "_read", lambda locator, start, end: self._hold(locator, start, end))

    def _hold(self, locator: Locator, start: int, end: int) -> AppendFuture[MessageBatch]:
        self._held.append((locator, start, end, AppendFuture()))
        return self._held[-1][3]

    @property
    def held(self) -> int:
        """Return how many reads are held back."""
        return len(self._held)

    def release(self, done: Callable[[], bool]) -> int:
        """Release reads, also those that follow from them, until `done`; return how many there were."""
        reads = 0
        while True:
            until(lambda: self._held or done())
            if not self._held:
                return reads
            reads += 1
            locator, start, end, future = self._held.pop(0)
            set_result(future, self._read(locator, start, end).result(PATIENCE_S))


def received(consumer: Consumer, count: int) -> list[int]:
    """Receive messages; return their offsets."""
    return offsets(receive(consumer, count))


def nothing_comes(consumer: Consumer) -> bool:
    """Return whether no message arrives within a moment."""
    return consumer.receive(timeout=0.02) is None


def stored(topic: Topic) -> dict[int, bytes]:
    """Return each stored message by its offset."""
    contents: dict[int, bytes] = {}
    for batch in topic.read():
        contents.update(zip(batch.offset.tolist(), batch.values(), strict=True))
    return contents


def reported_backlog(topic: Topic, name: str) -> Backlog:
    """Return the backlog of the statistics."""
    actual_sub = next(sub for sub in topic.stats().subscriptions if sub.name == name)
    return Backlog(actual_sub.backlog_messages, actual_sub.backlog_entries, actual_sub.backlog_bytes)


def counted_backlog(topic: Topic, name: str) -> tuple[list[int], Backlog]:
    """Count the backlog by reading all messages; return the unacknowledged offsets as well."""
    cursor = topic.subscription(name).cursor
    left: list[int] = []
    entries: dict[int, int] = {}
    for batch in topic.read():
        lacking = ~cursor.mask(batch.offset)
        left += batch.offset[lacking].tolist()
        for entry in batch.entry_index[lacking].tolist():
            entries[int(batch.entry_first[entry])] = int(batch.entry_size[entry])
    return left, Backlog(len(left), len(entries), sum(entries.values()))


def check_backlog(topic: Topic, name: str, expected: Iterable[int]) -> None:
    """Check which offsets are unacknowledged, by the cursor and by the statistics."""
    left, counted = counted_backlog(topic, name)
    assert left == sorted(expected)
    assert reported_backlog(topic, name) == counted


def drain(topic: Topic, name: str, count: int, **settings: Any) -> list[int]:
    """Return the offsets that a new consumer gets, in order; acknowledge none."""
    with topic.subscribe(name, **settings) as consumer:
        messages = received(consumer, count)
        assert nothing_comes(consumer)
    return messages
