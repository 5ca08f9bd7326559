"""Ledgers as the metadata store has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from pyreplog.bookie.ledger_list import ClosedLedgerHoldings
from pyreplog.bookie.protocol import ID_MAX
from pyreplog.errors import (
    InvalidMetadataError,
    KeyExistsError,
    MetadataLayoutError,
    NoSuchKeyError,
    NoSuchLedgerError,
    ReplogError,
    VersionConflictError,
    WrongTypeError,
)
from pyreplog.ledger.ledger_metadata import ID_DIGITS, LEDGERS, LedgerMetadata, State, is_flat, is_shard, metadata_key
from pyreplog.ledger.repair_notes import Garbled, note_repair
from pyreplog.metadata.store import MetadataStore, Versioned

logger = logging.getLogger(__name__)

NEXT_LEDGER = "/next-ledger"

_NOTES_MAX = 64
"""Copies of one open ledger that are noted at a time; a scrub, or the repair after its end, finds the others."""


class VersionedMetadata(NamedTuple):
    """A ledger's metadata, and their version."""

    metadata: LedgerMetadata
    version: int


def find_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata | None:
    """What there is of a ledger; None: it does not exist. Errors: InvalidMetadataError; those of the store."""
    stored = store.get(metadata_key(ledger)) if ledger >= 0 else None
    return None if stored is None else _decoded(ledger, stored)


def _decoded(ledger: int, stored: Versioned) -> VersionedMetadata:
    metadata = LedgerMetadata.decode(stored.value)
    if metadata.ledger != ledger:
        raise InvalidMetadataError(f"metadata of ledger {ledger}: they say that they are of ledger {metadata.ledger}")
    return VersionedMetadata(metadata, stored.version)


def load_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata:
    """As find_ledger; NoSuchLedgerError: it does not exist."""
    stored = find_ledger(store, ledger)
    if stored is None:
        raise NoSuchLedgerError(ledger, "it does not exist, or was deleted")
    return stored


def list_ledgers(store: MetadataStore) -> list[int]:
    """Ids of all ledgers, ascending. Keys that are none are left out: see `survey`. Errors: as `shards`."""
    return [ledger for shard in shards(store) for ledger in ids_of(store, shard)]


def shards(store: MetadataStore) -> list[str]:
    """Names of the folders that ledgers are in, ascending by the ids of these.

    Raises:
        MetadataLayoutError: ledgers are there that an older build made, or that were not migrated.
        ReplogError: the store's errors.
    """
    return [name for name in _names(store) if is_shard(name)]


def _names(store: MetadataStore) -> list[str]:
    """Names below LEDGERS. Raises MetadataLayoutError."""
    names = store.list(LEDGERS)
    flat = sum(map(is_flat, names))
    if flat:
        raise MetadataLayoutError(f"the metadata store has {flat} ledgers in an older layout, beside those in shards")
    return names


def ids_of(store: MetadataStore, shard: str) -> list[int]:
    """Ids of the ledgers in a shard, ascending. Errors: those of the store."""
    return sorted(int(name) for name in store.list(f"{LEDGERS}/{shard}") if _is_id(shard, name))


def _is_id(shard: str, name: str) -> bool:
    return name.isascii() and name.isdecimal() and metadata_key(int(name)) == f"{LEDGERS}/{shard}/{name}"


def stored_ledgers(store: MetadataStore) -> Iterator[tuple[int, VersionedMetadata | InvalidMetadataError]]:
    """The metadata of all ledgers, ascending, or why they make no sense; a shard at a time, read in one go.

    A ledger that is made or deleted meanwhile is among them, or not. Errors: as `shards`.
    """
    for shard in shards(store):
        for ledger, stored in load_many(store, ids_of(store, shard)):
            if stored is not None:
                yield ledger, stored


def load_many(
    store: MetadataStore, ledgers: Sequence[int]
) -> Iterator[tuple[int, VersionedMetadata | InvalidMetadataError | None]]:
    """Load the metadata of several ledgers, read in one go.

    Args:
        store: metadata store.
        ledgers: their ids.

    Returns:
        For each ledger its id, and its metadata, or why they cannot be read, or None if it does not exist.

    Raises:
        ReplogError: errors of the store.
    """
    for ledger, stored in zip(ledgers, store.get_many([metadata_key(ledger) for ledger in ledgers]), strict=True):
        try:
            yield ledger, None if stored is None else _decoded(ledger, stored)
        except InvalidMetadataError as error:
            yield ledger, error


def survey(store: MetadataStore) -> tuple[list[LedgerMetadata], list[Garbled]]:
    """All ledgers, by their ids; and the keys among theirs that make no sense. Errors: as `shards`."""
    ledgers: list[LedgerMetadata] = []
    garbled: list[Garbled] = []
    for ledger, stored in stored_ledgers(store):
        if isinstance(stored, InvalidMetadataError):
            garbled.append(Garbled(metadata_key(ledger), str(stored)))
        else:
            ledgers.append(stored.metadata)
    return ledgers, garbled + [Garbled(f"{LEDGERS}/{name}", "expected the id of a ledger") for name in _strange(store)]


def _strange(store: MetadataStore) -> Iterator[str]:
    """Names below LEDGERS that are neither shards nor ledgers in their shards."""
    for name in _names(store):
        if not is_shard(name):
            yield name
            continue
        for inner in store.list(f"{LEDGERS}/{name}"):
            if not _is_id(name, inner):
                yield f"{name}/{inner}"


def delete_garbled(store: MetadataStore, name: str) -> None:
    """Delete a key among those of ledgers, whatever it says. Errors: NoSuchKeyError; WrongTypeError; those of
    the store."""
    if not isinstance(name, str):
        raise WrongTypeError(f"name: expected a str, found {type(name).__name__}")
    if name.isascii() and name.isdecimal() and len(name) <= ID_DIGITS and int(name) <= ID_MAX:
        key = metadata_key(int(name))
    else:
        strange = [key for key in _strange(store) if key.rpartition("/")[2] == name]
        key = f"{LEDGERS}/{strange[0] if strange else name}"
    _delete(store, key)


def _delete(store: MetadataStore, key: str) -> None:
    while True:
        stored = store.get(key)
        if stored is None:
            raise NoSuchKeyError(f"{key}: there is no such key")
        try:
            return store.delete(key, stored.version)
        except VersionConflictError:
            continue


def remove_empty_shard(store: MetadataStore, ledger: int) -> None:
    """Remove the shard of a ledger that was deleted, if it was the last one. Errors are left to the next who tries."""
    shard = metadata_key(ledger).rpartition("/")[0]
    with suppress(ReplogError):
        stored = store.get(shard)
        if stored is not None and not store.list(shard):
            store.delete(shard, stored.version)


def next_id(store: MetadataStore) -> int:
    """An id that no ledger has, or ever had. Errors: InvalidMetadataError; those of the store."""
    while True:
        stored = store.get(NEXT_LEDGER)
        try:
            if stored is None:
                store.create(NEXT_LEDGER, b"1")
                return 0
            number = _number(stored.value)
            store.put(NEXT_LEDGER, b"%d" % (number + 1), stored.version)
        except (KeyExistsError, VersionConflictError):
            continue
        return number


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > ID_DIGITS or int(value) > ID_MAX:
        raise InvalidMetadataError(f"{NEXT_LEDGER}: expected a number up to {ID_MAX}, found {value[:80]!r}")
    return int(value)


def change_version(store: MetadataStore, ledger: int, version: int) -> bool:
    """Write the metadata of a ledger as they are: a client that compares the older version has to read them again.

    Returns:
        False if the version is another one, or the ledger was deleted: nothing is written.

    Raises:
        ReplogError: errors of the store; OutcomeUnknownError: the version may have been changed.
    """
    key = metadata_key(ledger)
    stored = store.get(key)
    if stored is None or stored.version != version:
        return False
    try:
        store.put(key, stored.value, version)
    except (NoSuchKeyError, VersionConflictError):
        return False
    return True


class StoredLedgers:
    """What bookies ask of the metadata of ledgers; see `bookie.ledger_list`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def key(self, ledger: int) -> str:
        return metadata_key(ledger)

    def listed(self) -> set[int]:
        return set(list_ledgers(self._store))

    def admits(self, ledger: int, key: bytes) -> bool | None:
        stored = find_ledger(self._store, ledger)
        return None if stored is None else stored.metadata.admits(key)

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        stored = find_ledger(self._store, ledger)
        return None if stored is None else stored.metadata.admits_copy(proof)

    def next_id(self) -> int:
        stored = self._store.get(NEXT_LEDGER)
        return 0 if stored is None else _number(stored.value)

    def skip_to(self, number: int) -> None:
        while (stored := self._store.get(NEXT_LEDGER)) is None or _number(stored.value) < number:
            with suppress(KeyExistsError, NoSuchKeyError, VersionConflictError):  # somebody else was quicker
                if stored is None:
                    self._store.create(NEXT_LEDGER, b"%d" % number)
                else:
                    self._store.put(NEXT_LEDGER, b"%d" % number, stored.version)

    def open_with(self, bookie: str, *, unsynced: bool) -> Iterator[int]:
        """Of which this bookie may hold entries whose fate is not decided."""
        for ledger, stored in stored_ledgers(self._store):
            if isinstance(stored, InvalidMetadataError):
                logger.warning("ledger %d counts as open: %s", ledger, stored)
                yield ledger
                continue
            if stored.metadata.state is State.CLOSED or (unsynced and stored.metadata.is_synced):
                continue
            if bookie in stored.metadata.last_fragment.ensemble:
                yield ledger

    def named(self, bookie: str) -> Iterator[tuple[int, list[range] | None]]:
        for ledger, stored in stored_ledgers(self._store):
            if isinstance(stored, InvalidMetadataError):
                logger.warning("ledger %d counts as open: %s", ledger, stored)
                yield ledger, None
            elif bookie in stored.metadata.bookies():
                closed = stored.metadata.state is State.CLOSED
                yield ledger, stored.metadata.holdings(bookie) if closed else None

    def note_bad_copies(self, bookie: str, ledger: int, entries: Sequence[int]) -> None:
        """Of a closed ledger the first entry is enough: its repair checks all copies that the bookie should have."""
        try:
            stored = find_ledger(self._store, ledger)
        except InvalidMetadataError as error:
            logger.error("ledger %d: bad copies on %s cannot be noted: %s", ledger, bookie, error)
            return
        if stored is None:
            return
        metadata = stored.metadata
        needed = (entry for entry in entries if metadata.asks_for(bookie, entry))
        for entry in islice(needed, 1 if metadata.state is State.CLOSED else _NOTES_MAX):
            note_repair(self._store, ledger, bookie, entry)

    def holdings(self, ledger: int, bookie: str) -> list[range] | None:
        stored = find_ledger(self._store, ledger)
        if stored is None or stored.metadata.state is not State.CLOSED:
            return None
        return stored.metadata.holdings(bookie)

    def closed(self, ledgers: Sequence[int], bookie: str) -> list[ClosedLedgerHoldings | None]:
        values = self._store.get_many([metadata_key(ledger) for ledger in ledgers])
        return [
            None if stored is None else _closed(ledger, stored, bookie)
            for ledger, stored in zip(ledgers, values, strict=True)
        ]

    def change_version(self, ledger: int, version: int) -> bool:
        return change_version(self._store, ledger, version)


def _closed(ledger: int, stored: Versioned, bookie: str) -> ClosedLedgerHoldings | None:
    try:
        metadata = _decoded(ledger, stored).metadata
    except InvalidMetadataError as error:
        logger.warning("ledger %d: what bookies have to hold of it is unknown: %s", ledger, error)
        return None
    if metadata.state is not State.CLOSED:
        return None
    return ClosedLedgerHoldings(tuple(metadata.holdings(bookie)), stored.version, frozenset(metadata.bookies()))
