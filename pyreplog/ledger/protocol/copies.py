"""Looking at the copies that a ledger has: how many of each entry, and which ones a bookie lacks. State machines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, UnauthorizedError, UnreadableError
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished
from pyreplog.ledger.protocol.terminal_errors import error_text

COUNTED_MAX = 1 << 28
"""A ledger with more entries is not counted at once: one byte is kept for each."""


class _Rest(NamedTuple):
    """What is still to be read of a fragment on one bookie: entries below `end`."""

    end: int


class CopyCount:
    """Ends with `Finished(counts)`: a uint8 array, how many intact copies of each entry are where they belong.

    A bookie that does not answer, or says that it does not know, counts for none from there on. Errors:
    InvalidArgumentError, the metadata say that there are more than COUNTED_MAX.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes) -> None:
        if metadata.last_entry >= COUNTED_MAX:
            raise InvalidArgumentError(
                f"ledger {metadata.ledger}: copies of {COUNTED_MAX} entries are counted at most, it has "
                f"{metadata.last_entry + 1}"
            )
        self.metadata, self._key = metadata, key
        self._counts = np.zeros(metadata.last_entry + 1, np.uint8)
        self._reading = 0

    def start(self) -> list[Effect]:
        sends: list[Effect] = []
        for fragment in self.metadata.fragments:
            end = self.metadata.fragment_end(fragment)
            rest = _Rest(self.metadata.last_entry + 1 if end is None else end)
            if fragment.first < rest.end:
                sends += (self._read(bookie, fragment.first, rest) for bookie in fragment.ensemble)
        self._reading = len(sends)
        return sends or [Finished(self._counts)]

    def _read(self, bookie: str, first: int, rest: _Rest) -> Send:
        request = Request(RequestKind.READ, self.metadata.ledger, first, rest.end - 1, self._key, limit=READ_BYTES_MAX)
        return Send(bookie, request, rest)

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        first, rest = send.request.first, send.about
        if reply.status != ReplyStatus.OK or not first <= reply.last < rest.end:
            return self._ended()
        if len(reply.body):
            try:
                batch = parse_entries(reply.body, ledger=self.metadata.ledger, first=first, last=reply.last)
            except InvalidRecordsError:
                return [BadCopy(send.bookie, first), *self._ended()]
            self._counts[batch.entry] += 1
            if batch.next_position < len(reply.body):
                return self._ended()  # damaged
        return [self._read(send.bookie, reply.last + 1, rest)] if reply.last + 1 < rest.end else self._ended()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._ended()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _ended(self) -> list[Effect]:
        self._reading -= 1
        return [] if self._reading else [Finished(self._counts)]


class CopyCheck:
    """Which entries of a stripe a bookie has no intact copy of: `Finished(list[int])`, or `Finished(error=...)` when it
    does not answer."""

    def __init__(self, metadata: LedgerMetadata, key: bytes, bookie: str, stripe: range) -> None:
        self.metadata, self._key, self._bookie, self._stripe = metadata, key, bookie, stripe
        self._missing: list[int] = []

    def start(self) -> list[Effect]:
        return self._from(self._stripe.start)

    def _from(self, first: int) -> list[Effect]:
        if first >= self._stripe.stop:
            return [Finished(self._missing)]
        last, step = self._stripe[-1], self._stripe.step
        request = Request(
            RequestKind.READ, self.metadata.ledger, first, last, self._key, limit=READ_BYTES_MAX, step=step
        )
        return [Send(self._bookie, request)]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        first, step, ledger = send.request.first, self._stripe.step, self.metadata.ledger
        held: set[int]
        if reply.status in (ReplyStatus.LIMBO, ReplyStatus.UNKNOWN):  # lost, or damaged: it speaks of the first entry
            self._missing.append(first)
            return self._from(first + step)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            return [Finished(error=UnauthorizedError(ledger, f"{send.bookie} refuses its password"))]
        if reply.status != ReplyStatus.OK or reply.last < first:
            return self._gave_up(error_text(reply))
        asked = range(first, min(reply.last, self._stripe[-1]) + 1, step)
        try:
            batch = parse_entries(reply.body, ledger=ledger, first=first, last=asked[-1])
        except InvalidRecordsError:
            held, asked = set(), asked[:1]
        else:
            held = set(batch.entry.tolist())
            if batch.next_position < len(reply.body):  # damage; what lies behind it is looked at next
                asked = range(first, max(held) + step + 1, step)
        self._missing += [entry for entry in asked if entry not in held]
        return self._from(asked[-1] + step)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._gave_up(str(error))

    def _gave_up(self, why: str) -> list[Effect]:
        told = f"{self._bookie} does not say what it has: {why}"
        return [Finished(error=UnreadableError(self.metadata.ledger, told))]

    def woken(self, about: object) -> list[Effect]:
        return []
