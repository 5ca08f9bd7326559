"""Group commit of a bookie: who waits for the next sync, and what is not durable before it."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.bookie.fast_add import FastAdd
from pyreplog._native.bookie.ledger_state_base import Uncommitted
from pyreplog.bookie.long_polls import Respond
from pyreplog.bookie.protocol import Reply, Request


def discard_reply(reply: Reply) -> None:
    """Waits for a commit."""


class PendingReply(NamedTuple):
    """To be answered after the next commit: with `reply`, or with what `request` is answered then."""

    respond: Respond
    reply: Reply
    request: Request | None


class CommitGroup(Uncommitted):
    """Who waits: a PendingReply, or a FastAdd, which knows itself whom to tell."""

    waiting: list[PendingReply | FastAdd]

    def wait(self, respond: Respond, reply: Reply, request: Request | None = None) -> None:
        """Answer after the next commit. What is kept holds no bytes of the caller's."""
        self.waiting.append(PendingReply(respond, reply, request))
