"""Repairing the copy of an entry: a good one is read, and given to the bookie whose copy is bad. A state machine."""

from __future__ import annotations

from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import ReplogError, UnreadableError
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


class EntryRepair:
    """Give one entry to one bookie of its ensemble; ends with `Finished(None)` or `Finished(error=...)`.

    The bad copy's bookie is asked for the good one last. The add carries RECOVERY: a fenced ledger takes no others
    (PR #4163 lost that).
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes, entry: int, bookie: str) -> None:
        self._metadata, self._key, self._entry, self._bookie = metadata, key, entry, bookie
        self._reading = LedgerReadOp(metadata, key, entry, entry + 1, rank={bookie: 1})

    def start(self) -> list[Effect]:
        return self._passed_on(self._reading.start())

    def woken(self, about: object) -> list[Effect]:
        return self._passed_on(self._reading.woken(about))

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if send.request.kind == RequestKind.READ:
            return self._passed_on(self._reading.replied(send, reply))
        if reply.status != ReplyStatus.OK:
            return [Finished(error=self._refused(ReplyStatus(reply.status).name))]
        return [Finished()]

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if send.request.kind == RequestKind.READ:
            return self._passed_on(self._reading.failed(send, error))
        return [Finished(error=self._refused(str(error)))]

    def _passed_on(self, effects: list[Effect]) -> list[Effect]:
        """What the reading wants; when it has the entry, the add."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Finished) and effect.error is None:
                out.append(self._add(bytes(effect.result[0].raw)))
            elif not isinstance(effect, BadCopy):  # known: that is why we are here
                out.append(effect)
        return out

    def _add(self, record: bytes) -> Send:
        ledger, entry = self._metadata.ledger, self._entry
        return Send(
            self._bookie, Request(RequestKind.ADD, ledger, entry, entry, self._key, Flag.RECOVERY, records=record)
        )

    def _refused(self, why: str) -> ReplogError:
        return UnreadableError(self._metadata.ledger, f"entry {self._entry} was not repaired on {self._bookie}: {why}")
