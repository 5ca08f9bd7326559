"""CommitLongPolls: reads of clients that wait for the commit point of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyreplog.net.connection import Connection
from pyreplog.net.reactor import Reactor
from pyreplog.net.timers import Timer

POLLS_MAX = 4096
"""Most polls of all connections; a further one is answered at once."""


@dataclass
class _Poll:
    """A waiting read. entry: the first entry that it waits for. answer: called once, by the reactor's driver."""

    connection: Connection
    entry: int
    answer: Callable[[], object]
    timer: Timer | None = None


class CommitLongPolls:
    """The waiting reads of a node. All methods but `wake` are called by the reactor's driver.

    Attributes:
        waiting: whether a read waits; the thread that moves the commit point checks it before it calls `wake`.
    """

    def __init__(self, reactor: Reactor) -> None:
        self.waiting = False
        self._reactor = reactor
        self._polls: list[_Poll] = []
        self._is_waking = False
        self._end: Callable[[], int] = lambda: 0

    def serve(self, end: Callable[[], int]) -> None:
        """Set the function that returns the first entry that is not committed. If it raises, all reads are answered."""
        self._end = end

    def add(self, connection: Connection, entry: int, wait_s: float, answer: Callable[[], object]) -> None:
        """Call `answer` when the entry is committed, or after `wait_s` seconds."""
        if len(self._polls) >= POLLS_MAX:
            answer()
            return
        poll = _Poll(connection, entry, answer)
        self._polls.append(poll)
        self.waiting = True
        poll.timer = self._reactor.call_later(wait_s, lambda: self._settle([poll]))
        self._answer_due()  # the commit point may have moved before `waiting` was set

    def wake(self) -> None:
        """Answer due reads, after the commit point has moved or the log was replaced. Any thread may call it."""
        if not self._is_waking:
            self._is_waking = True
            self._reactor.call_soon(self._answer_due)

    def _answer_due(self) -> None:
        self._is_waking = False
        try:
            end = self._end()
        except Exception:  # the log is being closed: the reads get its error
            end = 1 << 62
        self._settle([poll for poll in self._polls if poll.entry < end])

    def _settle(self, due: list[_Poll]) -> None:
        for poll in due:
            if poll in self._polls:
                self._polls.remove(poll)
                if poll.timer is not None:
                    poll.timer.cancel()
                poll.answer()
        self.waiting = bool(self._polls)

    def leave(self, connection: Connection) -> None:
        """Forget the reads of a closed connection."""
        for poll in [poll for poll in self._polls if poll.connection is connection]:
            self._polls.remove(poll)
            if poll.timer is not None:
                poll.timer.cancel()
        self.waiting = bool(self._polls)
