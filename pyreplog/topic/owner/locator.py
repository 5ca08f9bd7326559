"""Finds the entries of acknowledged messages that were never delivered here, so that the cursor can note them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import ClosedError, ReplogError, TopicFencedError
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_result, settle_all
from pyreplog.topic.model.dispatch.effects import Locate
from pyreplog.topic.model.dispatch.offsets import Offsets
from pyreplog.topic.owner.managed.managedledger import ManagedLedger

logger = logging.getLogger(__name__)

BYTES_FIRST, BYTES_MAX = 64 << 10, 4 << 20
"""Bytes of entries that are read at once while the offsets lie close together; otherwise one entry is read."""


class LocatedEntries(NamedTuple):
    """Located entries, and the messages in them to acknowledge, as ascending ranges of offsets.

    era: see `Locator.add`.
    """

    consumer: int
    era: int
    batch: MessageBatch
    starts: Offsets
    ends: Offsets


class Locator:
    """Locates entries in passes, each in the order of the offsets; requests that come meanwhile are in the next pass.

    Its steps are events of the caller's queue; nothing waits. on_located: called with entries as they are read. label:
    for log lines.
    """

    def __init__(
        self, label: str, managed: ManagedLedger, events: EventQueue, on_located: Callable[[LocatedEntries], object]
    ) -> None:
        self._label, self._managed, self._events, self._on_located = label, managed, events, on_located
        self._queue: dict[tuple[int, int], list[Locate]] = {}  # by consumer and era
        self._is_busy = False
        self._behind = self._span = 0  # end and number of messages of the last read
        self._bytes = 1
        self._settled: list[AppendFuture[None]] = []

    def add(self, locate: Locate, era: int) -> None:
        """Locate the entries of these messages. era: of the cursor."""
        self._queue.setdefault((locate.consumer, era), []).append(locate)
        if not self._is_busy:
            self._is_busy = True
            self._next_pass()

    def settled(self) -> AppendFuture[None]:
        """Return a future that is done when all earlier requests have been handled."""
        future: AppendFuture[None] = AppendFuture()
        self._events.post(lambda: self._settled.append(future) if self._is_busy else set_result(future, None))
        return future

    def _next_pass(self) -> None:
        if not self._queue:
            self._is_busy = False
            settled, self._settled = self._settled, []
            settle_all([(future, None) for future in settled])
            return
        (consumer, era), requests = self._queue.popitem()
        starts, ends = joined(requests)
        self._go_on(consumer, era, starts, ends)

    def _go_on(self, consumer: int, era: int, starts: Offsets, ends: Offsets) -> None:
        """Read the first of the remaining entries."""
        if not len(starts):
            self._events.post(self._next_pass)  # behind the events of the last step
            return
        start = int(starts[0])
        is_near = 0 <= start - self._behind <= self._span
        self._bytes = min(max(8 * self._bytes, BYTES_FIRST), BYTES_MAX) if is_near else 1

        def came(read: AppendFuture[MessageBatch]) -> None:
            self._events.post(lambda: self._came(read, consumer, era, starts, ends))

        try:
            self._read(start, int(ends[-1])).add_done_callback(came)
        except ReplogError as error:
            self._not_found(error, consumer, era, starts, ends)

    def _read(self, start: int, end: int) -> AppendFuture[MessageBatch]:
        return self._managed.read(start, bytes_max=self._bytes, end=end)

    def _came(self, read: AppendFuture[MessageBatch], consumer: int, era: int, starts: Offsets, ends: Offsets) -> None:
        error = read.exception()
        if error is not None:
            self._not_found(error, consumer, era, starts, ends)
            return
        batch = read.result()
        self._behind, self._span = batch.end, len(batch)
        count = int(np.searchsorted(starts, batch.end))
        if batch.end <= starts[0]:
            self._not_found(OSError("nothing was read"), consumer, era, starts, ends)
            return
        self._on_located(LocatedEntries(consumer, era, batch, starts[:count], np.minimum(ends[:count], batch.end)))
        done = int(np.searchsorted(ends, batch.end, "right"))
        starts, ends = starts[done:], ends[done:]
        self._go_on(consumer, era, np.maximum(starts, batch.end), ends)

    def _not_found(self, error: BaseException, consumer: int, era: int, starts: Offsets, ends: Offsets) -> None:
        """Skip the first range, whose messages are delivered again; other ranges may be in another ledger."""
        logger.info("%s: message %d is not acknowledged, its entry was not found: %s", self._label, starts[0], error)
        left = len(starts) if isinstance(error, TopicFencedError | ClosedError) else 1
        self._go_on(consumer, era, starts[left:], ends[left:])


def joined(requests: list[Locate]) -> tuple[Offsets, Offsets]:
    """Return the ranges of all requests, ascending; overlapping and adjacent ones are joined."""
    starts = np.concatenate([locate.starts for locate in requests])
    ends = np.concatenate([locate.ends for locate in requests])
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_new = np.append(True, starts[1:] > reach[:-1])
    return starts[is_new], reach[np.append(is_new[1:], True)]


def offsets_in(starts: Offsets, ends: Offsets) -> Offsets:
    """Return the offsets of all ranges, one by one."""
    counts = ends - starts
    firsts = starts - (np.cumsum(counts) - counts)
    offsets: Offsets = np.arange(counts.sum(), dtype=np.int64) + np.repeat(firsts, counts)
    return offsets
