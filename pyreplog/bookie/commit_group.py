"""Group commit of a bookie: the replies that wait for the next sync, and the ledgers that it makes durable."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.bookie.fast_add import FastAdd
from pyreplog._native.bookie.ledger_state_base import Uncommitted
from pyreplog.bookie.long_polls import Respond
from pyreplog.bookie.protocol import Reply, Request


def discard_reply(reply: Reply) -> None:
    """Do nothing with a reply; for a commit that no client waits for."""


class PendingReply(NamedTuple):
    """A reply that waits for the next commit: `reply`, or, if `request` is set, the reply to it at that time."""

    respond: Respond
    reply: Reply
    request: Request | None


class CommitGroup(Uncommitted):
    """Collects the replies that wait for the next commit, and FastAdds, each of which has its own receiver."""

    waiting: list[PendingReply | FastAdd]

    def wait(self, respond: Respond, reply: Reply, request: Request | None = None) -> None:
        """Answer after the next commit. The request and the reply must not refer to buffers of the caller."""
        self.waiting.append(PendingReply(respond, reply, request))
