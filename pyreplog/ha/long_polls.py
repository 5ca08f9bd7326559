"""Reads that wait for the commit point of a node: long polls of clients that follow the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyreplog.net.connection import Connection
from pyreplog.net.reactor import Reactor
from pyreplog.net.timers import Timer

POLLS_MAX = 4096
"""Of all connections; one more is answered at once."""


@dataclass
class _Poll:
    """entry: number of the first entry that it waits for. answer: called once, by the driver."""

    connection: Connection
    entry: int
    answer: Callable[[], object]
    timer: Timer | None = None


class CommitLongPolls:
    """Polls of a node. All calls by the reactor's driver, but for `wake`.

    waiting: whether there are polls; the thread that moves the commit point looks at it, and calls `wake`.
    """

    def __init__(self, reactor: Reactor) -> None:
        self.waiting = False
        self._reactor = reactor
        self._polls: list[_Poll] = []
        self._is_waking = False
        self._end: Callable[[], int] = lambda: 0

    def serve(self, end: Callable[[], int]) -> None:
        """`end` gives the number of the first entry that is not committed. It may raise: then all are answered."""
        self._end = end

    def add(self, connection: Connection, entry: int, wait_s: float, answer: Callable[[], object]) -> None:
        """Call `answer` when the entry is committed, or in `wait_s` seconds."""
        if len(self._polls) >= POLLS_MAX:
            answer()
            return
        poll = _Poll(connection, entry, answer)
        self._polls.append(poll)
        self.waiting = True
        poll.timer = self._reactor.call_later(wait_s, lambda: self._settle([poll]))
        self._look()  # the commit point may have moved before `waiting` was set

    def wake(self) -> None:
        """The commit point has moved, or the log is another one. Any thread."""
        if not self._is_waking:
            self._is_waking = True
            self._reactor.call_soon(self._look)

    def _look(self) -> None:
        self._is_waking = False
        try:
            end = self._end()
        except Exception:  # the log is being closed: the next request is told so
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
        """The connection has ended."""
        for poll in [poll for poll in self._polls if poll.connection is connection]:
            self._polls.remove(poll)
            if poll.timer is not None:
                poll.timer.cancel()
        self.waiting = bool(self._polls)
