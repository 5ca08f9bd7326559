"""Long polls: requests that wait until the LAC of a ledger advances."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from pyreplog._native.bookie.fast_add import LongPollsBase
from pyreplog.bookie.protocol import Reply

K = TypeVar("K", bound=Hashable)

Respond = Callable[[Reply], object]


class LongPoll(NamedTuple):
    """A request that is answered when the LAC of its ledger is above `above`, or at `deadline_us`.

    number: distinguishes polls.
    """

    deadline_us: int
    number: int
    ledger: int
    above: int
    respond: Respond
    client: Hashable


class LongPolls(LongPollsBase):
    """Holds at most `limit` polls. Not thread-safe. Adding or ending a poll takes O(log n)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._waiting: dict[int, dict[int, LongPoll]] = {}  # by ledger, then by number
        self._clients: dict[Hashable, dict[int, LongPoll]] = {}  # by client, then by number, the oldest first
        self._deadlines: list[LongPoll] = []  # a heap; polls that ended early stay until their time or the next purge

    @property
    def has_room(self) -> bool:
        return self.count < self._limit

    def make_room(self, client: Hashable) -> LongPoll | None:
        """End the oldest poll of the client that has most polls, and return it; None: no client has more polls than
        `client`.

        So one client cannot use up the limit for all others.
        """
        greediest = max(self._clients.values(), key=len)
        if len(greediest) <= len(self._clients.get(client, ())):
            return None
        return self._end([next(iter(greediest.values()))])[0]

    def add(self, ledger: int, above: int, deadline_us: int, respond: Respond, client: Hashable = None) -> None:
        """Add a poll. Call it only if `has_room`."""
        self._number += 1
        poll = LongPoll(deadline_us, self._number, ledger, above, respond, client)
        self._waiting.setdefault(ledger, {})[poll.number] = poll
        self._clients.setdefault(client, {})[poll.number] = poll
        heappush(self._deadlines, poll)
        self.count += 1

    def leave(self, client: Hashable) -> None:
        """End all polls of a client."""
        self._end(list(self._clients.get(client, {}).values()))

    def awaits(self, ledger: int) -> bool:
        """Return whether a poll waits for this ledger."""
        return ledger in self._waiting

    def reached(self, ledger: int, lac: int) -> list[LongPoll]:
        """Remove and return the polls of a ledger that waited for the LAC `lac`."""
        if ledger not in self._waiting:
            return []
        return self._end([poll for poll in self._waiting[ledger].values() if poll.above < lac])

    def wake(self, ledger: int) -> list[LongPoll]:
        """Remove and return all polls of a ledger."""
        return self._end(list(self._waiting.get(ledger, {}).values()))

    def wake_all(self) -> list[LongPoll]:
        """Remove and return all polls."""
        return self._end([poll for polls in self._waiting.values() for poll in polls.values()])

    def expired(self, now_us: int) -> list[LongPoll]:
        """Remove and return the polls whose deadline has passed."""
        overdue = []
        while self._deadlines and self._deadlines[0].deadline_us <= now_us:
            poll = heappop(self._deadlines)
            if self._waits(poll):
                overdue.append(poll)
        return self._end(overdue)

    def next_deadline_us(self) -> int | None:
        """Return the time at which to call `expired` next, monotonic microseconds; None: there is no poll."""
        while self._deadlines and not self._waits(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0].deadline_us if self._deadlines else None

    def _waits(self, poll: LongPoll) -> bool:
        return poll.number in self._waiting.get(poll.ledger, {})

    def _end(self, polls: list[LongPoll]) -> list[LongPoll]:
        for poll in polls:
            _remove(self._waiting, poll.ledger, poll.number)
            _remove(self._clients, poll.client, poll.number)
        self.count -= len(polls)
        if len(self._deadlines) > 2 * self.count + 16:
            self._deadlines = sorted(poll for poll in self._deadlines if self._waits(poll))
        return polls


def _remove(table: dict[K, dict[int, LongPoll]], key: K, number: int) -> None:
    polls = table[key]
    del polls[number]
    if not polls:
        del table[key]
