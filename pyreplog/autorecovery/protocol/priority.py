"""Counts the remaining copies of a ledger: ledgers with the fewest are copied first."""

from __future__ import annotations

from collections.abc import Set

from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata


def copies_left(metadata: LedgerMetadata, fragment: Fragment, gone: Set[str]) -> int:
    """Return the number of copies of the entry of a fragment that has the fewest on bookies that are not gone.

    Entry e is stored on the members e, e + 1, … e + Qw - 1 (mod E), so there are only E different write sets.
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    present = [bookie not in gone for bookie in fragment.ensemble]
    return min(sum(present[(first + k) % size] for k in range(quorum)) for first in range(size))


def fewest_copies(metadata: LedgerMetadata, gone: Set[str]) -> int:
    """Return the number of copies of the entry of a ledger that has the fewest on bookies that are not gone."""
    return min(copies_left(metadata, fragment, gone) for fragment in metadata.fragments)
