"""The copies that are left of a ledger: ledgers with the fewest are copied first."""

from __future__ import annotations

from collections.abc import Set

from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata


def copies_left(metadata: LedgerMetadata, fragment: Fragment, gone: Set[str]) -> int:
    """Return how many copies the worst entry of a fragment has on bookies that are not gone.

    Entry e lies on the members e, e + 1, … e + Qw - 1 (mod E), so that only E sets of members occur.
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    present = [bookie not in gone for bookie in fragment.ensemble]
    return min(sum(present[(first + k) % size] for k in range(quorum)) for first in range(size))


def fewest_copies(metadata: LedgerMetadata, gone: Set[str]) -> int:
    """Return how many copies the worst entry of a ledger has on bookies that are not gone."""
    return min(copies_left(metadata, fragment, gone) for fragment in metadata.fragments)
