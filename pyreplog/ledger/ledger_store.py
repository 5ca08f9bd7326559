"""Ledgers as the metadata store has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pyreplog.bookie.protocol import ID_MAX
from pyreplog.errors import (
    InvalidMetadataError,
    KeyExistsError,
    NoSuchKeyError,
    NoSuchLedgerError,
    VersionConflictError,
    WrongTypeError,
)
from pyreplog.ledger.ledgermetadata import ID_DIGITS, LEDGERS, LedgerMetadata, State, metadata_key
from pyreplog.ledger.repair_notes import Garbled
from pyreplog.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

NEXT_LEDGER = "/next-ledger"


class VersionedMetadata(NamedTuple):
    """A ledger's metadata, and their version."""

    metadata: LedgerMetadata
    version: int


def find_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata | None:
    """What there is of a ledger; None: it does not exist. Errors: InvalidMetadataError; those of the store."""
    there = store.get(metadata_key(ledger)) if ledger >= 0 else None
    if there is None:
        return None
    metadata = LedgerMetadata.decode(there.value)
    if metadata.ledger != ledger:
        raise InvalidMetadataError(f"metadata of ledger {ledger}: they say that they are of ledger {metadata.ledger}")
    return VersionedMetadata(metadata, there.version)


def load_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata:
    """As find_ledger; NoSuchLedgerError: it does not exist."""
    found = find_ledger(store, ledger)
    if found is None:
        raise NoSuchLedgerError(ledger, "there is none of that id, or it was deleted")
    return found


def list_ledgers(store: MetadataStore) -> list[int]:
    """Ids of all ledgers, ascending. Keys that are none are left out: see `survey`. Errors: those of the store."""
    return sorted(int(name) for name in store.list(LEDGERS) if _is_id(name))


def _is_id(name: str) -> bool:
    return name.isdecimal() and metadata_key(int(name)) == f"{LEDGERS}/{name}"


def survey(store: MetadataStore) -> tuple[list[LedgerMetadata], list[Garbled]]:
    """All ledgers, by their ids; and the keys among theirs that make no sense. Errors: those of the store."""
    found: list[LedgerMetadata] = []
    garbled: list[Garbled] = []
    for name in sorted(store.list(LEDGERS)):
        try:
            if not _is_id(name):
                raise InvalidMetadataError(f"expected the id of a ledger in 19 digits, found {name!r}")
            if (there := find_ledger(store, int(name))) is not None:
                found.append(there.metadata)
        except InvalidMetadataError as error:
            garbled.append(Garbled(f"{LEDGERS}/{name}", str(error)))
    return found, garbled


def delete_garbled(store: MetadataStore, name: str) -> None:
    """Delete a key among those of ledgers, whatever it says. Errors: NoSuchKeyError; WrongTypeError; those of
    the store."""
    if not isinstance(name, str):
        raise WrongTypeError(f"name: expected a str, found {type(name).__name__}")
    key = metadata_key(int(name)) if name.isdecimal() and len(name) < ID_DIGITS else f"{LEDGERS}/{name}"
    while True:
        there = store.get(key)
        if there is None:
            raise NoSuchKeyError(f"{key}: there is no such key")
        try:
            return store.delete(key, there.version)
        except VersionConflictError:
            continue


def next_id(store: MetadataStore) -> int:
    """An id that no ledger has, or ever had. Errors: InvalidMetadataError; those of the store."""
    while True:
        there = store.get(NEXT_LEDGER)
        try:
            if there is None:
                store.create(NEXT_LEDGER, b"1")
                return 0
            number = _number(there.value)
            store.put(NEXT_LEDGER, b"%d" % (number + 1), there.version)
        except (KeyExistsError, VersionConflictError):
            continue
        return number


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > ID_DIGITS or int(value) > ID_MAX:
        raise InvalidMetadataError(f"{NEXT_LEDGER}: expected a number up to {ID_MAX}, found {value[:80]!r}")
    return int(value)


class StoredLedgers:
    """What bookies ask of the metadata of ledgers; see `bookie.ledgerlist`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def key(self, ledger: int) -> str:
        return metadata_key(ledger)

    def admits(self, ledger: int, key: bytes) -> bool | None:
        found = find_ledger(self._store, ledger)
        return None if found is None else found.metadata.admits(key)

    def next_id(self) -> int:
        found = self._store.get(NEXT_LEDGER)
        return 0 if found is None else _number(found.value)

    def skip_to(self, number: int) -> None:
        while (found := self._store.get(NEXT_LEDGER)) is None or _number(found.value) < number:
            with suppress(KeyExistsError, NoSuchKeyError, VersionConflictError):  # somebody else was quicker
                if found is None:
                    self._store.create(NEXT_LEDGER, b"%d" % number)
                else:
                    self._store.put(NEXT_LEDGER, b"%d" % number, found.version)

    def open_with(self, bookie: str, *, unsynced: bool) -> Iterator[int]:
        """Of which this bookie may hold entries whose fate is not decided."""
        for ledger in list_ledgers(self._store):
            try:
                found = find_ledger(self._store, ledger)
            except InvalidMetadataError as error:
                logger.warning("ledger %d counts as open: %s", ledger, error)
                yield ledger
                continue
            if found is None or found.metadata.state is State.CLOSED or (unsynced and found.metadata.is_synced):
                continue
            if bookie in found.metadata.last_fragment.ensemble:
                yield ledger

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        found = find_ledger(self._store, ledger)
        if found is None or found.metadata.state is not State.CLOSED:
            return None
        return found.metadata.holdings(bookie)
