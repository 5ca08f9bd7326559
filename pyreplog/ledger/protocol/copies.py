"""State machines that check the copies of a ledger: the number of copies of each entry, and the copies that a bookie
lacks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, UnauthorizedError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished
from pyreplog.ledger.protocol.terminal_errors import error_text

COUNTED_MAX = 1 << 28
"""Most entries of a ledger whose copies can be counted: a count takes one byte for each entry."""


class _Remainder(NamedTuple):
    """The entries below `end` that are still to be read of a fragment on one bookie."""

    end: int


class CopyCount:
    """Counts the intact copies of each entry on the bookies that the metadata name. A state machine.

    Ends with `Finished(counts)`, an array of one uint8 per entry. A bookie that does not answer, or answers UNKNOWN,
    counts for none from that entry on. Raises InvalidArgumentError for more than COUNTED_MAX entries.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes) -> None:
        if metadata.last_entry >= COUNTED_MAX:
            raise InvalidArgumentError(
                f"ledger {metadata.ledger}: expected at most {COUNTED_MAX} entries to count copies of, found "
                f"{metadata.last_entry + 1}"
            )
        self.metadata, self._key = metadata, key
        self._counts = np.zeros(metadata.last_entry + 1, np.uint8)
        self._reading = 0

    def start(self) -> list[Effect]:
        sends: list[Effect] = []
        for fragment in self.metadata.fragments:
            end = self.metadata.fragment_end(fragment)
            remainder = _Remainder(self.metadata.last_entry + 1 if end is None else end)
            if fragment.first < remainder.end:
                sends += (self._read(bookie, fragment.first, remainder) for bookie in fragment.ensemble)
        self._reading = len(sends)
        return sends or [Finished(self._counts)]

    def _read(self, bookie: str, first: int, remainder: _Remainder) -> Send:
        request = Request(
            RequestKind.READ, self.metadata.ledger, first, remainder.end - 1, self._key, limit=READ_BYTES_MAX
        )
        return Send(bookie, request, remainder)

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        first, remainder = send.request.first, send.about
        if reply.status != ReplyStatus.OK or not first <= reply.last < remainder.end:
            return self._ended()
        if len(reply.body):
            try:
                batch = parse_entries(reply.body, ledger=self.metadata.ledger, first=first, last=reply.last)
            except InvalidRecordsError:
                return [BadCopy(send.bookie, first), *self._ended()]
            self._counts[batch.entry] += 1
            if batch.next_position < len(reply.body):
                return self._ended()  # a damaged record
        if reply.last + 1 < remainder.end:
            return [self._read(send.bookie, reply.last + 1, remainder)]
        return self._ended()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._ended()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _ended(self) -> list[Effect]:
        self._reading -= 1
        return [] if self._reading else [Finished(self._counts)]


class MissingCopiesCheck:
    """Finds the entries of a stripe of which a bookie has no intact copy. A state machine.

    Ends with `Finished(list[int])`, or with `Finished(error=...)` if the bookie does not answer.
    """

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
        intact: set[int]
        if reply.status in (ReplyStatus.LIMBO, ReplyStatus.UNKNOWN):  # the first entry is lost or damaged
            self._missing.append(first)
            return self._from(first + step)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            return [Finished(error=UnauthorizedError(ledger, f"bookie {send.bookie} refuses the password"))]
        if reply.status != ReplyStatus.OK or reply.last < first:
            return self._gave_up(error_text(reply))
        checked = range(first, min(reply.last, self._stripe[-1]) + 1, step)
        try:
            batch = parse_entries(reply.body, ledger=ledger, first=first, last=checked[-1])
        except InvalidRecordsError:
            intact, checked = set(), checked[:1]
        else:
            intact = set(batch.entry.tolist())
            if batch.next_position < len(reply.body):  # a damaged record; the next request begins behind it
                checked = range(first, max(intact) + step + 1, step)
        self._missing += [entry for entry in checked if entry not in intact]
        return self._from(checked[-1] + step)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._gave_up(str(error))

    def _gave_up(self, reason: str) -> list[Effect]:
        text = f"{self._bookie} does not report which entries it has: {reason}"
        return [Finished(error=UnreadableError(self.metadata.ledger, text))]

    def woken(self, about: object) -> list[Effect]:
        return []
