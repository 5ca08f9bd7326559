"""Asks each member of a ledger's last fragment how far the ledger goes, without fencing it."""

from __future__ import annotations

from pyreplog._native.machines.effects import Send
from pyreplog.autorecovery.protocol.open_ledger_watch import Ends
from pyreplog.bookie.protocol import KEY_BYTES, Reply, ReplyStatus, Request, RequestKind
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect, Finished, Wake

ANSWER_S = 5.0
"""Seconds for the answers; a bookie in the same process has no time-out of its own."""


class MemberEnds:
    """Ends with `Finished(dict)`: what each member knows, an `Ends`, or None if it does not answer. A state machine.

    A bookie that has the ledger in limbo answers: what it knows goes on if a writer does.
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
        return self._heard()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._heard()

    def _heard(self) -> list[Effect]:
        self._awaited -= 1
        return [] if self._awaited else self._end()

    def woken(self, about: object) -> list[Effect]:
        return self._end()

    def _end(self) -> list[Effect]:
        if self._is_over:
            return []
        self._is_over = True
        return [Finished(dict(self._ends))]
