"""Entries of a topic on their way: queued, in a ledger that has not confirmed them, confirmed. Pure.

Whatever becomes of the ledgers, outcomes come in the order of submission: what a ledger kept has its offsets, what it
did not goes to the front of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.topic_position import TopicPosition

GROUP_BYTES = 1 << 20
"""What waits is sent together, up to about so much."""

REFUSALS_MAX = 3
"""So often an entry that bookies refuse is tried, each time in another ledger."""


class Submission:
    """Entries that were submitted together. first: offset of its first message, once a part of it is in a ledger for
    good; the entries are those that are not. held: (bytes, entries) of the whole. refusals: how often bookies refused
    it."""

    __slots__ = ("counts", "entries", "first", "future", "held", "messages", "refusals", "size")

    def __init__(self, entries: Sequence[bytes], counts: Sequence[int]) -> None:
        """InvalidArgumentError: no entries, or not 1 or more messages in each."""
        if not entries or len(entries) != len(counts) or min(counts) < 1:
            raise InvalidArgumentError(
                f"expected entries with 1 or more messages each, found {len(entries)} with counts {list(counts)[:10]}"
            )
        self.entries, self.counts, self.messages = entries, counts, sum(counts)
        self.size = size = sum(map(len, entries))
        self.held = (size, len(entries))
        self.future: AppendFuture[range] = AppendFuture()
        self.first, self.refusals = -1, 0


class PendingAppend(NamedTuple):
    """Submissions in a ledger, and what says when they are confirmed; their first entry there."""

    future: AppendFuture[Any]
    submissions: list[Submission]
    first: int


class AppendPipeline:
    """end: of the topic, as confirmed. entries, size: handed to the ledger that is open."""

    def __init__(self, end: TopicPosition) -> None:
        self.end = end
        self.entries = self.size = self._created_us = 0
        self._queue: deque[Submission] = deque()
        self._queued_bytes = 0
        self._flights: deque[PendingAppend] = deque()

    @property
    def is_queued(self) -> bool:
        """Something waits for a ledger."""
        return bool(self._queue)

    @property
    def is_due(self) -> bool:
        """Something is to be sent now. Nobody waits for company; what comes while a ledger is at others goes together,
        as many small requests cost much more than a few."""
        return bool(self._queue) and (not self._flights or self._queued_bytes >= STAGE_BYTES)

    @property
    def is_flying(self) -> bool:
        """A ledger has something that it did not confirm."""
        return bool(self._flights)

    def add(self, submissions: Sequence[Submission]) -> None:
        self._queue.extend(submissions)
        for one in submissions:
            self._queued_bytes += one.size

    # ---- into a ledger --------------------------------------------------------------------------------------

    def begin_ledger(self, created_us: int) -> None:
        """What is queued goes into a new ledger."""
        self.entries, self.size, self._created_us = 0, 0, created_us

    def is_full(self, config: TopicConfig, now_us: int) -> bool:
        """Whether the next ledger is due. One that is empty serves on, however old it is."""
        if not self.entries:
            return False
        return self.is_old(config, now_us) or self.entries >= config.roll_entries or self.size >= config.roll_bytes

    def is_old(self, config: TopicConfig, now_us: int) -> bool:
        """Whether the open ledger is; or was begun as far ahead, by a clock that was set back since: its append times
        stand still until then."""
        return abs(now_us - self._created_us) >= config.roll_ms * 1000

    def take(self, entries_max: int) -> list[Submission]:
        """The next ones to be sent, at least one: together, while they have about GROUP_BYTES and `entries_max`
        entries. Say what became of them: `flew`, or `put_back`."""
        taken = [self._queue.popleft()]
        size, entries = taken[0].size, len(taken[0].entries)
        while self._queue:
            size, entries = size + self._queue[0].size, entries + len(self._queue[0].entries)
            if size > GROUP_BYTES or entries > entries_max:
                break
            taken.append(self._queue.popleft())
        for one in taken:
            self._queued_bytes -= one.size
        return taken

    def put_back(self, submissions: Sequence[Submission]) -> None:
        self._queue.extendleft(reversed(submissions))
        self._queued_bytes += sum([one.size for one in submissions])

    def flew(self, submissions: list[Submission], future: AppendFuture[Any]) -> None:
        """The open ledger took them."""
        self._flights.append(PendingAppend(future, submissions, self.entries))
        for one in submissions:
            self.entries += len(one.entries)
            self.size += one.size

    # ---- outcomes -------------------------------------------------------------------------------------------

    def land(self) -> tuple[list[Submission], BaseException | None]:
        """Those that were confirmed since, in order, their results noted; and why the next one was not."""
        landed: list[Submission] = []
        while self._flights and self._flights[0].future.done():
            error = self._flights[0].future.exception()
            if error is not None:
                return landed, error
            flight = self._flights.popleft()
            self._confirm(flight.submissions)
            landed += flight.submissions
        return landed, None

    def _confirm(self, submissions: Sequence[Submission]) -> None:
        offset, entries, size = self.end
        for one in submissions:
            first = offset if one.first < 0 else one.first
            offset, entries, size = offset + one.messages, entries + len(one.entries), size + one.size
            one.future.expect(range(first, offset))
        self.end = TopicPosition(offset, entries, size)

    def end_ledger(self, entries: int) -> list[Submission]:
        """The ledger has an end, behind so many entries: those that it kept. The rest is the first of the queue."""
        kept: list[Submission] = []
        rest: list[Submission] = []
        for flight in self._flights:
            room = entries - flight.first
            for one in flight.submissions:
                count = len(one.entries)
                if count <= room:
                    self._confirm([one])
                    kept.append(one)
                else:
                    self._split(one, max(room, 0))
                    rest.append(one)
                room -= count
        self._flights.clear()
        self.put_back(rest)
        return kept

    def _split(self, one: Submission, count: int) -> None:
        """Its first `count` entries are in the ledger for good."""
        if not count:
            return
        if one.first < 0:
            one.first = self.end.offset
        messages, size = sum(one.counts[:count]), sum(map(len, one.entries[:count]))
        self.end = TopicPosition(self.end.offset + messages, self.end.entries + count, self.end.size + size)
        one.entries, one.counts = one.entries[count:], one.counts[count:]
        one.messages -= messages
        one.size -= size

    def drop(self) -> list[Submission]:
        """All that have no outcome, in order: nothing more is done for them."""
        left = [one for flight in self._flights for one in flight.submissions]
        left += self._queue
        self._flights.clear()
        self._queue.clear()
        self._queued_bytes = 0
        return left

    def drop_queued(self) -> list[Submission]:
        """Those that wait: no ledger will have them."""
        left = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return left

    def refuse_first(self) -> list[Submission]:
        """Bookies refuse the first of those that wait; if that is once too often, it waits no longer."""
        if not self._queue:
            return []
        first = self.take(0)
        first[0].refusals += 1
        if first[0].refusals >= REFUSALS_MAX:
            return first
        self.put_back(first)
        return []


def together(submissions: Sequence[Submission]) -> tuple[Sequence[bytes], Sequence[int]]:
    """Their entries, and how many messages each has."""
    if len(submissions) == 1:
        return submissions[0].entries, submissions[0].counts
    entries = [entry for one in submissions for entry in one.entries]
    return entries, [count for one in submissions for count in one.counts]


def held_by(submissions: Sequence[Submission]) -> tuple[int, int]:
    """(bytes, entries) that they have in a window."""
    size = entries = 0
    for one in submissions:
        size, entries = size + one.held[0], entries + one.held[1]
    return size, entries


def outcomes(submissions: Sequence[Submission], error: BaseException | None = None) -> list[Outcome]:
    """For `settle_all`."""
    return [(one.future, error) for one in submissions]
