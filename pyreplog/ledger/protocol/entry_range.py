"""A few entries in a row whose fate recovery wants to know: what the bookies that would hold them say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyreplog._native.ledgerlog.entries import parse_entries
from pyreplog._native.quorum.stripe import members
from pyreplog.errors import InvalidRecordsError
from pyreplog.ledger.ledgermetadata import LedgerMetadata

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class EntryRange:
    """Entries [start, end). found: one intact copy of each that somebody has. nbytes: of those.

    absent: how many bookies say that they do not have an entry. places: of the ensemble, who would hold some.
    """

    def __init__(self, metadata: LedgerMetadata, start: int, end: int) -> None:
        self._metadata = metadata
        self.start, self.end = start, end
        self.found: dict[int, bytes] = {}
        self.nbytes = 0
        self.absent: Counter[int] = Counter()
        self._unheard: Counter[int] = Counter()  # how many of an entry's bookies have not said anything yet
        self.places: list[int] = []
        for place in range(metadata.ensemble_size):
            mine = self._members(place, start, end)
            if mine:
                self.places.append(place)
                self._unheard.update(mine)

    def _members(self, place: int, start: int, end: int) -> list[int]:
        """Entries of [start, end) that lie at a place of the ensemble."""
        meta = self._metadata
        return members(place, start, end, meta.ensemble_size, meta.write_quorum).tolist() if start < end else []

    def take(self, place: int, start: int, end: int, records: bytes | memoryview, last_asked: int) -> int | None:
        """A bookie says what it has of entries [start, end); `records` go up to entry `last_asked`, perhaps.
        Returns the entry whose copy is damaged, if one is: it is no answer at all for what lies behind the last good
        one."""
        held: dict[int, bytes] = {}
        try:
            batch = parse_entries(records, ledger=self._metadata.ledger, first=start, last=last_asked)
            held = {record.entry: bytes(record.raw) for record in batch if record.entry < end}
            whole = batch.next_position == len(records)
        except InvalidRecordsError:
            whole = False
        for entry, raw in held.items():
            if entry not in self.found:
                self.found[entry] = raw
                self.nbytes += len(raw)
        self.hear(place, start, end, held if whole else None)
        return None if whole else max(held, default=start - 1) + 1

    def hear(self, place: int, start: int, end: int, held: dict[int, bytes] | None) -> None:
        """A bookie has answered for entries [start, end); held: what it has, None: it cannot tell."""
        for entry in self._members(place, start, end):
            self._unheard[entry] -= 1
            if held is not None and entry not in held:
                self.absent[entry] += 1

    def is_heard(self, entry: int) -> bool:
        """Whether all of its bookies have answered."""
        return self._unheard[entry] == 0

    def cut(self, end: int) -> None:
        """It ends before this entry; those from it on are for another range."""
        for entry in [entry for entry in self.found if entry >= end]:
            self.nbytes -= len(self.found.pop(entry))
        self.end = end


def totals(raw: ReadableBuffer, ledger: int, entry: int) -> tuple[int, int]:
    """(bytes, messages) of a ledger up to an encoded entry."""
    record = parse_entries(raw, ledger=ledger, first=entry, last=entry)[0]
    return record.ledger_bytes, record.ledger_messages
