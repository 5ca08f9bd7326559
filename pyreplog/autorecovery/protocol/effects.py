"""The effects that the state machines of this package return in addition to those of `ledger.protocol.effects`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from pyreplog._native.quorum.quorum import write_set
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect


@dataclass(frozen=True, slots=True)
class NoteLost:
    """Store entries durably in the list of lost entries. The resulting event is `noted()` or `store_unknown()`.

    Attributes:
        entries: numbers of the entries, ascending.
        bookie: id of the bookie that is replaced.
        others: other bookies that count as lost, with those of the entries of which they may have had the last copies.
            When one of them returns, it is asked for these entries.
    """

    entries: tuple[int, ...]
    bookie: str
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def by_bookie(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Each bookie that may have had last copies, with its entries."""
        return ((self.bookie, self.entries), *self.others)


ReplicationEffect: TypeAlias = Effect | NoteLost


def lost_entries(metadata: LedgerMetadata, entries: Sequence[int], bookie: str, lost: Set[str]) -> NoteLost:
    """Return the effect that lists entries of a ledger as lost.

    Args:
        metadata: metadata of the ledger. Every member that they name for the entries has denied them, or is in `lost`.
        entries: numbers of the entries, ascending.
        bookie: id of the member that is replaced, or that lacks the entries.
        lost: ids of bookies that count as lost and therefore were not asked.
    """
    others: dict[str, list[int]] = {}
    for entry in entries:
        ensemble = metadata.fragment_of(entry).ensemble
        for place in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
            if ensemble[place] in lost and ensemble[place] != bookie:
                others.setdefault(ensemble[place], []).append(entry)
    return NoteLost(tuple(entries), bookie, tuple((other, tuple(theirs)) for other, theirs in sorted(others.items())))
