"""The replies of bookies about a range of entries, from which recovery decides which entries the ledger has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.quorum.stripe import members
from pyreplog.errors import InvalidRecordsError
from pyreplog.ledger.ledger_metadata import LedgerMetadata

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class EntryRange:
    """Entries [start, end), and the replies about them.

    Attributes:
        copies: one intact copy of each entry that a bookie has.
        nbytes: size of these copies.
        absent: number of bookies that answered that they do not have an entry.
        places: the places of the ensemble that store some of these entries.
    """

    def __init__(self, metadata: LedgerMetadata, start: int, end: int) -> None:
        self._metadata = metadata
        self.start, self.end = start, end
        self.copies: dict[int, bytes] = {}
        self.nbytes = 0
        self.absent: Counter[int] = Counter()
        self._missing_responses: Counter[int] = Counter()  # entry -> how many of its bookies have not answered yet
        self.places: list[int] = []
        for place in range(metadata.ensemble_size):
            entries = self._members(place, start, end)
            if entries:
                self.places.append(place)
                self._missing_responses.update(entries)

    def _members(self, place: int, start: int, end: int) -> list[int]:
        """Return the entries of [start, end) that the bookie at a place of the ensemble stores."""
        meta = self._metadata
        return members(place, start, end, meta.ensemble_size, meta.write_quorum).tolist() if start < end else []

    def take(self, place: int, start: int, end: int, records: bytes | memoryview, last_asked: int) -> int | None:
        """Note the records that a bookie has of entries [start, end); `records` may go on up to `last_asked`.

        Returns the entry whose copy is damaged, if any: then the reply does not cover entries behind the last intact
        one.
        """
        records_by_entry: dict[int, bytes] = {}
        try:
            batch = parse_entries(records, ledger=self._metadata.ledger, first=start, last=last_asked)
            records_by_entry = {record.entry: bytes(record.raw) for record in batch if record.entry < end}
            whole = batch.next_position == len(records)
        except InvalidRecordsError:
            whole = False
        for entry, raw in records_by_entry.items():
            if entry not in self.copies:
                self.copies[entry] = raw
                self.nbytes += len(raw)
        self.add_response(place, start, end, records_by_entry if whole else None)
        return None if whole else max(records_by_entry, default=start - 1) + 1

    def add_response(self, place: int, start: int, end: int, held: dict[int, bytes] | None) -> None:
        """Note that a bookie has answered for entries [start, end).

        held: the entries that the bookie has; None: it cannot tell.
        """
        for entry in self._members(place, start, end):
            self._missing_responses[entry] -= 1
            if held is not None and entry not in held:
                self.absent[entry] += 1

    def has_all_responses(self, entry: int) -> bool:
        """Return whether all bookies of an entry have answered for it."""
        return self._missing_responses[entry] == 0

    def cut(self, end: int) -> None:
        """End the range before entry `end`; later entries belong to the next range."""
        for entry in [entry for entry in self.copies if entry >= end]:
            self.nbytes -= len(self.copies.pop(entry))
        self.end = end


def totals(raw: ReadableBuffer, ledger: int, entry: int) -> tuple[int, int]:
    """Return (bytes, messages) of a ledger up to and including an entry, from the entry's encoded form."""
    record = parse_entries(raw, ledger=ledger, first=entry, last=entry)[0]
    return record.ledger_bytes, record.ledger_messages
