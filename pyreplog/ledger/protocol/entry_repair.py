"""Repairs the copy of an entry: reads an intact copy, and sends it to the bookie whose copy is bad."""

from __future__ import annotations

from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import ReplogError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp


class EntryRepair:
    """Writes the copy of one entry to one bookie of its ensemble. A state machine.

    Ends with `Finished(None)` or `Finished(error=...)`. The bookie with the bad copy is asked for an intact one last.
    The ADD carries the flag RECOVERY, because a fenced ledger takes no other (BookKeeper PR #4163 lost that).
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes, entry: int, bookie: str) -> None:
        self._metadata, self._key, self._entry, self._bookie = metadata, key, entry, bookie
        self._reading = LedgerReadOp(metadata, key, entry, entry + 1, rank={bookie: 1})

    def start(self) -> list[Effect]:
        return self._effects_of_read(self._reading.start())

    def woken(self, about: object) -> list[Effect]:
        return self._effects_of_read(self._reading.woken(about))

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if send.request.kind == RequestKind.READ:
            return self._effects_of_read(self._reading.replied(send, reply))
        if reply.status != ReplyStatus.OK:
            return [Finished(error=self._refused(ReplyStatus(reply.status).name))]
        return [Finished()]

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        if send.request.kind == RequestKind.READ:
            return self._effects_of_read(self._reading.failed(send, error))
        return [Finished(error=self._refused(str(error)))]

    def _effects_of_read(self, effects: list[Effect]) -> list[Effect]:
        """Return the effects of the read; when it has the entry, return the ADD in place of `Finished`."""
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Finished) and effect.error is None:
                passed.append(self._add(bytes(effect.result[0].raw)))
            elif not isinstance(effect, BadCopy):  # this copy is being repaired, and need not be noted
                passed.append(effect)
        return passed

    def _add(self, record: bytes) -> Send:
        ledger, entry = self._metadata.ledger, self._entry
        return Send(
            self._bookie, Request(RequestKind.ADD, ledger, entry, entry, self._key, Flag.RECOVERY, records=record)
        )

    def _refused(self, reason: str) -> ReplogError:
        return UnreadableError(
            self._metadata.ledger, f"entry {self._entry} was not repaired on {self._bookie}: {reason}"
        )
