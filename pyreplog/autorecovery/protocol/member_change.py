"""Metadata changes that replace one bookie by another in a fragment that is already written.

The metadata are changed by compare-and-set, after a proof that the target holds all that the source should hold. The
last fragment of a ledger that is not closed is never changed: its writer, or its recovery, would take the change for
that of another writer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State

KEPT_RANGES_MAX = 32
"""Maximum number of ranges that the source of one change may keep. Each adds at most two fragments to the ledger."""


@dataclass(frozen=True)
class MemberChange:
    """Replaces `source` by `target` in the fragment [first, end) of a ledger.

    Attributes:
        ledger: id of the ledger.
        first: first entry of the fragment.
        end: entry behind the last one of the fragment.
        index: place of the source in the ensemble.
        source: id of the replaced bookie.
        target: id of the bookie that replaces it.
        kept: half-open ranges of entries that `source` keeps, ascending and disjoint: `source` is away and may have the
            only copy of them. The fragment is split around them.
    """

    ledger: int
    first: int
    end: int
    index: int
    source: str
    target: str
    kept: tuple[range, ...] = ()

    def __post_init__(self) -> None:
        bounds = [bound for kept in self.kept for bound in (kept.start, kept.stop)]
        if len(self.kept) > KEPT_RANGES_MAX:
            raise InvalidArgumentError(f"kept: expected up to {KEPT_RANGES_MAX} ranges, found {len(self.kept)}")
        if bounds != sorted(set(bounds)) or (bounds and not self.first <= bounds[0] <= bounds[-1] <= self.end):
            raise InvalidArgumentError(
                f"kept: expected ranges apart within [{self.first}, {self.end}), found {self.kept}"
            )

    def applied(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """Return the metadata with this change; None if the metadata changed in a way that invalidates its proof.

        The proof is about a range of entries on one bookie. It remains valid while the fragment has the same bounds and
        the source has its place; other members, other fragments and the state of the ledger may have changed.
        """
        fragment = next((item for item in metadata.fragments if item.first == self.first), None)
        if metadata.ledger != self.ledger or fragment is None or written_end(metadata, fragment) != self.end:
            return None
        if fragment.ensemble[self.index] != self.source or self.target in fragment.ensemble:
            return None
        pieces = [piece for item in metadata.fragments for piece in (self._split(item) if item is fragment else [item])]
        if metadata.state is State.CLOSED:
            pieces = merge_equal(pieces)
        return dataclasses.replace(metadata, fragments=tuple(pieces))

    def _split(self, fragment: Fragment) -> list[Fragment]:
        changed = list(fragment.ensemble)
        changed[self.index] = self.target
        pieces: list[Fragment] = []
        begin = self.first
        for kept in self.kept:
            if begin < kept.start:
                pieces.append(Fragment(begin, tuple(changed)))
            pieces.append(Fragment(kept.start, fragment.ensemble))
            begin = kept.stop
        if begin < self.end:
            pieces.append(Fragment(begin, tuple(changed)))
        return pieces


def written_end(metadata: LedgerMetadata, fragment: Fragment) -> int | None:
    """Return the entry behind the last one of a fragment; None for the last fragment of a ledger that is not closed."""
    end = metadata.fragment_end(fragment)
    if end is None and metadata.state is State.CLOSED:
        return metadata.last_entry + 1
    return end


def drop_empty(metadata: LedgerMetadata, source: str, target: str) -> LedgerMetadata | None:
    """Replace a bookie in a closed, empty ledger, which needs no copying (BookKeeper #3220).

    Returns:
        The changed metadata; None if the ledger is not closed, has entries, does not name `source`, or names `target`.
    """
    if metadata.state is not State.CLOSED or metadata.last_entry >= 0:
        return None
    (fragment,) = metadata.fragments
    if source not in fragment.ensemble or target in fragment.ensemble:
        return None
    ensemble = tuple(target if bookie == source else bookie for bookie in fragment.ensemble)
    return dataclasses.replace(metadata, fragments=(Fragment(0, ensemble),))


def merge_equal(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Join adjacent fragments with equal ensembles.

    The members of an entry depend only on its number and the ensemble.
    """
    merged: list[Fragment] = []
    for fragment in fragments:
        if not merged or merged[-1].ensemble != fragment.ensemble:
            merged.append(fragment)
    return merged


def kept_ranges(stripes: Iterable[range], missing: Iterable[int]) -> tuple[range, ...]:
    """Return the ranges that the source keeps: within its stripes, each range holds missing entries only.

    Args:
        stripes: the entries of the fragment that the source should hold, as returned by `LedgerMetadata.holdings`.
        missing: those of which no responding bookie has a copy.
    """
    absent = set(missing)
    ranges: list[range] = []
    is_open = False
    for entry in sorted(entry for stripe in stripes for entry in stripe):
        if entry not in absent:
            is_open = False
        elif is_open:
            ranges[-1] = range(ranges[-1].start, entry + 1)
        else:
            ranges.append(range(entry, entry + 1))
            is_open = True
    return tuple(ranges)
