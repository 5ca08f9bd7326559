"""The effect that the state machines of this package return beside those of `ledger.protocol.effects`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from pyreplog._native.quorum.quorum import write_set
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect


@dataclass(frozen=True, slots=True)
class NoteLost:
    """List entries as lost, durably. The events are `noted()` or `store_unknown()`.

    entries: ascending. bookie: the one whose place is given to another. others: bookies which count as lost, too, and
    the entries among these of which they may have had the last copies; when one of them returns, it is asked.
    """

    entries: tuple[int, ...]
    bookie: str
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def by_bookie(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Each bookie that may have had last copies, and the entries."""
        return ((self.bookie, self.entries), *self.others)


ReplicationEffect: TypeAlias = Effect | NoteLost


def lost_entries(metadata: LedgerMetadata, entries: Sequence[int], bookie: str, lost: Set[str]) -> NoteLost:
    """Return the effect that lists entries of a ledger.

    Args:
        metadata: of the ledger; every member that they name for the entries denied them, or is among `lost`.
        entries: ascending.
        bookie: id of the member whose place is given to another, or that lacks the entries.
        lost: ids of bookies that were not asked, because their copies count as gone.
    """
    others: dict[str, list[int]] = {}
    for entry in entries:
        ensemble = metadata.fragment_of(entry).ensemble
        for place in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
            if ensemble[place] in lost and ensemble[place] != bookie:
                others.setdefault(ensemble[place], []).append(entry)
    return NoteLost(tuple(entries), bookie, tuple((other, tuple(theirs)) for other, theirs in sorted(others.items())))
