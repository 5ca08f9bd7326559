"""Asks the bookies of a ledger for its LAC, the last add confirmed, without fencing the ledger.

(BookKeeper: ReadLastConfirmedOp, TryReadLastConfirmedOp, ReadLastConfirmedAndEntryOp.)
"""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import coverage
from pyreplog.bookie.protocol import KEY_BYTES, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import UnauthorizedError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect, Finished


class _Place(NamedTuple):
    place: int


class LacQuery:
    """Finds the LAC of an open ledger. A state machine.

    Ends with `Finished(lac)`. This LAC is at least the one that bookies knew when the query began, and never above the
    LAC of the writer.

    Args:
        metadata: metadata of the ledger.
        key: key of the ledger.
        known: a LAC that the caller knows.
        wait_ms: 0: ask once. Otherwise the bookies answer when they know a LAC above `known`, or after so many
            milliseconds, and the first higher LAC ends the query.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes, known: int = -1, *, wait_ms: int = 0) -> None:
        self.metadata, self._key = metadata, key
        self._known, self._wait_ms = known, wait_ms
        self._lac = max(known, metadata.last_fragment.first - 1)  # a fragment begins at LAC + 1 at the latest
        self._unknown = set(range(metadata.ensemble_size))
        self._answers = 0
        self._finished = False

    def start(self) -> list[Effect]:
        kind = RequestKind.WAIT_LAC if self._wait_ms else RequestKind.LAST
        request = Request(kind, self.metadata.ledger, 0, max(self._known, -1), self._key, limit=self._wait_ms)
        ensemble = self.metadata.last_fragment.ensemble
        return [Send(bookie, request, _Place(place)) for place, bookie in enumerate(ensemble)]

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._next()

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if reply.status == ReplyStatus.UNAUTHORIZED:
            return self._finish(
                error=UnauthorizedError(self.metadata.ledger, f"bookie {send.bookie} refuses the password")
            )
        if reply.status == ReplyStatus.OK:
            self._unknown.discard(send.about.place)
            self._lac = max(self._lac, reply.lac)
        return self._next()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _next(self) -> list[Effect]:
        meta = self.metadata
        self._answers += 1
        if self._wait_ms and self._lac > self._known:
            return self._finish()
        if coverage(meta.ensemble_size, meta.write_quorum, meta.ack_quorum, self._unknown):
            return self._finish()
        if self._answers == meta.ensemble_size:
            return self._finish(error=UnreadableError(meta.ledger, "too few of its bookies answer with a LAC"))
        return []

    def _finish(self, error: Exception | None = None) -> list[Effect]:
        if self._finished:
            return []
        self._finished = True
        return [Finished(None if error else self._lac, error)]


class LedgerEnds:
    """Finds the highest LAC and the highest entry that the bookies of a ledger know. A state machine.

    Ends with `Finished((LAC, highest entry))`, of the bookies that answer. A bookie that has the ledger in limbo may
    have known more.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes = bytes(KEY_BYTES)) -> None:
        self.metadata, self._key = metadata, key
        self._lac = self._last = metadata.last_fragment.first - 1
        self._waiting = metadata.ensemble_size

    def start(self) -> list[Effect]:
        request = Request(RequestKind.LAST, self.metadata.ledger, key=self._key)
        ensemble = self.metadata.last_fragment.ensemble
        return [Send(bookie, request, _Place(place)) for place, bookie in enumerate(ensemble)]

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._next()

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if reply.status in (ReplyStatus.OK, ReplyStatus.LIMBO):
            self._lac, self._last = max(self._lac, reply.lac), max(self._last, reply.last)
        return self._next()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _next(self) -> list[Effect]:
        self._waiting -= 1
        return [Finished((self._lac, max(self._last, self._lac)))] if self._waiting == 0 else []
