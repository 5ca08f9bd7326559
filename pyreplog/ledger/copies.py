"""Counting the copies of each entry of a closed ledger, by reading them all. A state machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyreplog._native.entries import parse_entries
from pyreplog.bookie.protocol import READ_BYTES_MAX, Kind, Reply, Request, Status
from pyreplog.errors import InvalidRecordsError
from pyreplog.ledger.effects import BadCopy, Effect, Finished, Send
from pyreplog.ledger.ledgermetadata import LedgerMetadata


class _Rest(NamedTuple):
    """What is still to be read of a fragment on one bookie: entries up to `last`."""

    last: int


class CopyCount:
    """Ends with `Finished(counts)`: a uint8 array, how many intact copies of each entry are where they belong.

    A bookie that does not answer, or says that it does not know, counts for none from there on.
    """

    def __init__(self, metadata: LedgerMetadata, key: bytes) -> None:
        self.metadata, self._key = metadata, key
        self._counts = np.zeros(metadata.last_entry + 1, np.uint8)
        self._reading = 0

    def start(self) -> list[Effect]:
        sends: list[Effect] = []
        for fragment in self.metadata.fragments:
            end = self.metadata.fragment_end(fragment)
            last = self.metadata.last_entry if end is None else end - 1
            if fragment.first <= last:
                sends += (self._read(bookie, fragment.first, _Rest(last)) for bookie in fragment.ensemble)
        self._reading = len(sends)
        return sends or [Finished(self._counts)]

    def _read(self, bookie: str, first: int, rest: _Rest) -> Send:
        request = Request(Kind.READ, self.metadata.ledger, first, rest.last, self._key, limit=READ_BYTES_MAX)
        return Send(bookie, request, rest)

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        first, rest = send.request.first, send.about
        if reply.status != Status.OK or not first <= reply.last <= rest.last:
            return self._ended()
        if len(reply.body):
            try:
                batch = parse_entries(reply.body, ledger=self.metadata.ledger, first=first, last=reply.last)
            except InvalidRecordsError:
                return [BadCopy(send.bookie, first), *self._ended()]
            self._counts[batch.entry] += 1
        return [self._read(send.bookie, reply.last + 1, rest)] if reply.last < rest.last else self._ended()

    def failed(self, send: Send, error: Exception | None) -> list[Effect]:
        return self._ended()

    def woken(self, about: object) -> list[Effect]:
        return []

    def _ended(self) -> list[Effect]:
        self._reading -= 1
        return [] if self._reading else [Finished(self._counts)]
