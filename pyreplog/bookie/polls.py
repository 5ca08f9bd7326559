"""Long polls: who waits for a ledger's LAC to move on."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from pyreplog.bookie.protocol import Reply

Respond = Callable[[Reply], object]


class Poll(NamedTuple):
    """Answered when the ledger's LAC is above `above`, or at `deadline_us`. `number` makes it one of its kind."""

    deadline_us: int
    number: int
    ledger: int
    above: int
    respond: Respond


class Polls:
    """At most `limit` polls at a time. Not thread-safe. Adding and ending one costs O(log n)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._waiting: dict[int, dict[int, Poll]] = {}  # ledger, number
        self._deadlines: list[Poll] = []  # a heap; those that ended early stay until their time or the next purge
        self.count = 0

    def add(self, ledger: int, above: int, deadline_us: int, respond: Respond) -> bool:
        """False: too many wait."""
        if self.count >= self._limit:
            return False
        self._number += 1
        poll = Poll(deadline_us, self._number, ledger, above, respond)
        self._waiting.setdefault(ledger, {})[poll.number] = poll
        heappush(self._deadlines, poll)
        self.count += 1
        return True

    def awaits(self, ledger: int) -> bool:
        """Whether somebody waits for this ledger."""
        return ledger in self._waiting

    def reached(self, ledger: int, lac: int) -> list[Poll]:
        """Those of a ledger whose LAC is now `lac` that need wait no longer."""
        if ledger not in self._waiting:
            return []
        return self._end([poll for poll in self._waiting[ledger].values() if poll.above < lac])

    def wake(self, ledger: int) -> list[Poll]:
        """All of a ledger."""
        return self._end(list(self._waiting.get(ledger, {}).values()))

    def wake_all(self) -> list[Poll]:
        """All there are."""
        return self._end([poll for polls in self._waiting.values() for poll in polls.values()])

    def expired(self, now_us: int) -> list[Poll]:
        """Those whose time is up."""
        due = []
        while self._deadlines and self._deadlines[0].deadline_us <= now_us:
            poll = heappop(self._deadlines)
            if self._waits(poll):
                due.append(poll)
        return self._end(due)

    def next_deadline_us(self) -> int | None:
        """When `expired` should be asked next."""
        while self._deadlines and not self._waits(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0].deadline_us if self._deadlines else None

    def _waits(self, poll: Poll) -> bool:
        return poll.number in self._waiting.get(poll.ledger, {})

    def _end(self, polls: list[Poll]) -> list[Poll]:
        for poll in polls:
            of_ledger = self._waiting[poll.ledger]
            del of_ledger[poll.number]
            if not of_ledger:
                del self._waiting[poll.ledger]
        self.count -= len(polls)
        if len(self._deadlines) > 2 * self.count + 16:
            self._deadlines = sorted(poll for poll in self._deadlines if self._waits(poll))
        return polls
