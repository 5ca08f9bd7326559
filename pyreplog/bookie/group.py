"""Group commit of a bookie: who waits for the next sync, and what is not durable before it."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.bookie.ledgerstate import Uncommitted
from pyreplog._native.bookie.plainadd import PlainAdd
from pyreplog.bookie.polls import Respond
from pyreplog.bookie.protocol import Reply, Request


def nobody(reply: Reply) -> None:
    """Waits for a commit."""


class Waiting(NamedTuple):
    """To be answered after the next commit: with `reply`, or with what `request` is answered then."""

    respond: Respond
    reply: Reply
    request: Request | None


class CommitGroup(Uncommitted):
    """Who waits: a Waiting, or a PlainAdd, which knows itself whom to tell."""

    waiting: list[Waiting | PlainAdd]

    def wait(self, respond: Respond, reply: Reply, request: Request | None = None) -> None:
        """Answer after the next commit. What is kept holds no bytes of the caller's."""
        self.waiting.append(Waiting(respond, reply, request))
