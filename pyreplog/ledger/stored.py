"""Ledgers as the metadata store has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyreplog.errors import InvalidMetadataError, NoSuchLedgerError
from pyreplog.ledger.ledgermetadata import LEDGERS, LedgerMetadata, State, metadata_key
from pyreplog.metadata.store import MetadataStore


class Stored(NamedTuple):
    """A ledger's metadata, and their version."""

    metadata: LedgerMetadata
    version: int


def find_ledger(store: MetadataStore, ledger: int) -> Stored | None:
    """What there is of a ledger; None: it does not exist. Errors: InvalidMetadataError; those of the store."""
    there = store.get(metadata_key(ledger)) if ledger >= 0 else None
    if there is None:
        return None
    metadata = LedgerMetadata.decode(there.value)
    if metadata.ledger != ledger:
        raise InvalidMetadataError(f"metadata of ledger {ledger}: they say that they are of ledger {metadata.ledger}")
    return Stored(metadata, there.version)


def load_ledger(store: MetadataStore, ledger: int) -> Stored:
    """As find_ledger; NoSuchLedgerError: it does not exist."""
    found = find_ledger(store, ledger)
    if found is None:
        raise NoSuchLedgerError(ledger, "there is none of that id, or it was deleted")
    return found


def list_ledgers(store: MetadataStore) -> list[int]:
    """Ids of all ledgers, ascending. Errors: InvalidMetadataError; those of the store."""
    names = store.list(LEDGERS)
    odd = [name for name in names if not name.isdecimal()]
    if odd:
        raise InvalidMetadataError(f"{LEDGERS}: expected ids of ledgers, found {odd[0]!r}")
    return [int(name) for name in names]


def open_ledgers(store: MetadataStore, bookie: str) -> Iterator[int]:
    """Ledgers that are not closed, and of which this bookie may hold entries whose fate is not decided."""
    for ledger in list_ledgers(store):
        found = find_ledger(store, ledger)
        if found is None:
            continue
        if found.metadata.state is not State.CLOSED and bookie in found.metadata.last_fragment.ensemble:
            yield ledger
