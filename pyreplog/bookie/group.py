"""Group commit of a bookie: who waits for the next sync, and what is not durable before it."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.bookie.ledgerstate import NOTHING, LedgerState
from pyreplog.bookie.polls import Respond
from pyreplog.bookie.protocol import Reply, Request

LATER = -2
"""No LAC: the answer comes with the next commit."""


def nobody(reply: Reply) -> None:
    """Waits for a commit."""


class Waiting(NamedTuple):
    """To be answered after the next commit: with `reply`, or with what `request` is answered then."""

    respond: Respond
    reply: Reply
    request: Request | None


class CommitGroup:
    """Two generations: what waits for the next commit, and what the one under way makes durable. Not thread-safe."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self._touched: list[LedgerState] = []  # their `fresh` is not NOTHING
        self._committing: list[LedgerState] = []  # their `committing` may not be

    def touch(self, state: LedgerState, first: int) -> None:
        """What was appended of a ledger, from entry `first` on, becomes durable with the next commit."""
        if state.fresh == NOTHING:
            self._touched.append(state)
        state.fresh = min(state.fresh, first)

    def wait(self, respond: Respond, reply: Reply, request: Request | None = None) -> None:
        """Answer after the next commit. What is kept holds no bytes of the caller's."""
        self.waiting.append(Waiting(respond, reply, request))

    def begin(self) -> list[Waiting]:
        """A commit begins; returns who waits for it, if anybody: otherwise there is none."""
        taken, self.waiting = self.waiting, []
        if taken:
            for state in self._touched:
                state.committing, state.fresh = state.fresh, NOTHING
            self._committing, self._touched = self._touched, []
        return taken

    def end(self) -> None:
        """It has ended."""
        for state in self._committing:
            state.committing = NOTHING
        self._committing = []
