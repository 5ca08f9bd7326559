"""MemberEnds: asks each member of a ledger's last fragment for its last entry and LAC, without fencing the ledger."""

from __future__ import annotations

from pyreplog._native.machines.effects import Send
from pyreplog.autorecovery.protocol.open_ledger_watch import Ends
from pyreplog.bookie.protocol import KEY_BYTES, Reply, ReplyStatus, Request, RequestKind
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect, Finished, Wake

ANSWER_S = 5.0
"""Seconds to wait for the answers. A bookie in the same process has no time-out of its own."""


class MemberEnds:
    """A state machine that ends with `Finished(dict)`: an `Ends` for each member, or None if it did not answer.

    A bookie that has the ledger in limbo answers as well: its last entry and LAC still advance while a writer appends.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._ends: dict[str, Ends | None] = dict.fromkeys(metadata.last_fragment.ensemble)
        self._awaited = len(self._ends)
        self._is_over = False

    def start(self) -> list[Effect]:
        request = Request(RequestKind.LAST, self._metadata.ledger, key=bytes(KEY_BYTES))
        return [*(Send(bookie, request) for bookie in self._ends), Wake(ANSWER_S, None)]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if reply.status in (ReplyStatus.OK, ReplyStatus.LIMBO):
            self._ends[send.bookie] = Ends(reply.last, reply.lac)
        return self._count_answer()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._count_answer()

    def _count_answer(self) -> list[Effect]:
        self._awaited -= 1
        return [] if self._awaited else self._end()

    def woken(self, about: object) -> list[Effect]:
        return self._end()

    def _end(self) -> list[Effect]:
        if self._is_over:
            return []
        self._is_over = True
        return [Finished(dict(self._ends))]
