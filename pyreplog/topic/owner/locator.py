"""Locator: finds the entries of acknowledged messages that were never delivered here, so that the cursor notes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import ClosedError, ReplogError, TopicFencedError
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, settle_all
from pyreplog.ledger.driver import TimerLike
from pyreplog.topic.model.dispatch.effects import Locate
from pyreplog.topic.model.dispatch.offsets import Offsets
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)

BYTES_FIRST, BYTES_MAX = 64 << 10, 4 << 20
"""Bytes of entries that are read at once while the offsets lie close together; otherwise one entry is read."""

RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10.0
"""Seconds before entries that could not be read are located again; doubled each time."""


class LocatedEntries(NamedTuple):
    """Located entries, and the messages in them to acknowledge, as ascending ranges of offsets.

    era: see `Locator.add`.
    """

    consumer: int
    era: int
    batch: MessageBatch
    starts: Offsets
    ends: Offsets


class UnreadRange(NamedTuple):
    """A range of offsets whose entries could not be read. consumer, era: see `Locator.add`."""

    consumer: int
    era: int
    start: int
    end: int


class _Pass(NamedTuple):
    """Ranges of offsets that are still to be located, ascending."""

    consumer: int
    era: int
    starts: Offsets
    ends: Offsets


class Locator:
    """Locates entries in passes, each in the order of the offsets; requests that come meanwhile are in the next pass.

    Its steps are events of the caller's queue; nothing waits. Entries that cannot be read while the metadata store or
    bookies do not answer are located again later, so that a flush confirms no acknowledgement that was dropped.

    Args:
        label: for log lines.
        managed: the messages of the topic.
        events: the caller's queue.
        wake_after: calls something after some seconds; None: it never will.
        on_located: called with entries as they are read.
        on_retry: called later with each range whose entries could not be read. It calls `add` in an event if they still
            have to be located.
    """

    def __init__(
        self,
        label: str,
        managed: ManagedLedger,
        events: EventQueue,
        wake_after: Callable[[float, Callable[[], None]], TimerLike | None],
        *,
        on_located: Callable[[LocatedEntries], object],
        on_retry: Callable[[UnreadRange], object],
    ) -> None:
        self._label, self._managed, self._events, self._wake_after = label, managed, events, wake_after
        self._on_located, self._on_retry = on_located, on_retry
        self._queue: dict[tuple[int, int], list[Locate]] = {}  # by consumer and era
        self._is_busy = False
        self._behind = self._span = 0  # end and number of messages of the last read
        self._bytes = 1
        self._settled: list[AppendFuture[None]] = []
        self._unread: list[UnreadRange] = []
        self._retry_s = RETRY_FIRST_S
        self._timer: TimerLike | None = None
        self._is_stopped = False
        self._ended: ReplogError | None = None  # why nothing can be located any more

    def add(self, locate: Locate, era: int) -> None:
        """Locate the entries of these messages. era: of the cursor."""
        self._queue.setdefault((locate.consumer, era), []).append(locate)
        if not self._is_busy:
            self._is_busy = True
            self._next_pass()

    def settled(self) -> AppendFuture[None]:
        """Return a future that is done when all earlier requests have been handled.

        It fails with the TopicFencedError or ClosedError after which nothing can be located.
        """
        future: AppendFuture[None] = AppendFuture()

        def settled() -> None:
            self._settled.append(future)
            if not self._is_busy and not self._unread:
                self._settle()

        self._events.post(settled)
        return future

    def stop(self) -> None:
        """Locate nothing again, because the subscription has ended."""

        def stop() -> None:
            self._is_stopped = True
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            self._unread.clear()
            if not self._is_busy:
                self._settle()

        self._events.post(stop)

    def _settle(self) -> None:
        settled, self._settled = self._settled, []
        settle_all([(future, self._ended) for future in settled])

    def _next_pass(self) -> None:
        if self._queue:
            (consumer, era), requests = self._queue.popitem()
            self._read_next(_Pass(consumer, era, *joined(requests)))
            return
        self._is_busy = False
        if self._unread:
            self._retry_later()
        else:
            self._settle()

    def _retry_later(self) -> None:
        if self._timer is not None:
            return
        self._timer = self._wake_after(self._retry_s, lambda: self._events.post(self._retry))
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        if self._timer is None:
            self._ended = ClosedError(
                f"{self._label}: acknowledged messages were not located before the cluster was closed"
            )
            self._unread.clear()
            self._settle()

    def _retry(self) -> None:
        self._timer = None
        count = len(self._unread)
        for unread in self._unread:
            self._on_retry(unread)
        self._events.post(partial(self._retried, count))  # after the events that add the ranges again

    def _retried(self, count: int) -> None:
        del self._unread[:count]
        if not self._is_busy:  # nothing was added
            self._next_pass()

    def _read_next(self, left: _Pass) -> None:
        """Read the first of the remaining entries."""
        if not len(left.starts):
            self._events.post(self._next_pass)  # after the events of the last step
            return
        start = int(left.starts[0])
        is_near = 0 <= start - self._behind <= self._span
        self._bytes = min(max(8 * self._bytes, BYTES_FIRST), BYTES_MAX) if is_near else 1

        try:
            read = self._read(start, int(left.ends[-1]))
        except ReplogError as error:
            self._skip_first(error, left)
        else:
            read.add_done_callback(lambda _: self._events.post(lambda: self._entries_read(read, left)))

    def _read(self, start: int, end: int) -> AppendFuture[MessageBatch]:
        return self._managed.read(start, bytes_max=self._bytes, end=end)

    def _entries_read(self, read: AppendFuture[MessageBatch], left: _Pass) -> None:
        error = read.exception()
        if error is not None:
            self._skip_first(error, left)
            return
        consumer, era, starts, ends = left
        batch, self._retry_s = read.result(), RETRY_FIRST_S
        self._behind, self._span = batch.end, len(batch)
        count = int(np.searchsorted(starts, batch.end))
        if batch.end <= starts[0]:
            self._skip_first(OSError("nothing was read"), left)
            return
        self._on_located(LocatedEntries(consumer, era, batch, starts[:count], np.minimum(ends[:count], batch.end)))
        done = int(np.searchsorted(ends, batch.end, "right"))
        starts, ends = starts[done:], ends[done:]
        self._read_next(_Pass(consumer, era, np.maximum(starts, batch.end), ends))

    def _skip_first(self, error: BaseException, left: _Pass) -> None:
        """Skip the first range, until later if the error goes away; other ranges may be in another ledger."""
        consumer, era, starts, ends = left
        goes_away = isinstance(error, ReplogError) and error.retriable and not self._is_stopped
        if isinstance(error, TopicFencedError | ClosedError):
            self._ended = error
        elif goes_away:
            self._unread.append(UnreadRange(consumer, era, int(starts[0]), int(ends[0])))
        outcome = "not acknowledged yet" if goes_away else "not acknowledged"
        logger.info("%s: message %d is %s, its entry was not found: %s", self._label, starts[0], outcome, error)
        skipped = len(starts) if isinstance(error, TopicFencedError | ClosedError) else 1
        self._read_next(_Pass(consumer, era, starts[skipped:], ends[skipped:]))


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
