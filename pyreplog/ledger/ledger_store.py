"""Ledgers in the metadata store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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
"""Most copies of an open ledger that are noted at once. A scrub finds the others, or the repair after the ledger is
closed."""


class VersionedMetadata(NamedTuple):
    """A ledger's metadata, and their version."""

    metadata: LedgerMetadata
    version: int


def find_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata | None:
    """Return the metadata of a ledger; None: the ledger does not exist.

    Raises:
        InvalidMetadataError: the metadata are malformed.
        ReplogError: errors of the store.
    """
    stored = store.get(metadata_key(ledger)) if ledger >= 0 else None
    return None if stored is None else _decoded(ledger, stored)


def _decoded(ledger: int, stored: Versioned) -> VersionedMetadata:
    metadata = LedgerMetadata.decode(stored.value)
    if metadata.ledger != ledger:
        raise InvalidMetadataError(f"metadata of ledger {ledger}: they say that they are of ledger {metadata.ledger}")
    return VersionedMetadata(metadata, stored.version)


def load_ledger(store: MetadataStore, ledger: int) -> VersionedMetadata:
    """Return the metadata of a ledger.

    Raises:
        NoSuchLedgerError: the ledger does not exist.
        ReplogError: as `find_ledger`.
    """
    stored = find_ledger(store, ledger)
    if stored is None:
        raise NoSuchLedgerError(ledger, "it does not exist, or was deleted")
    return stored


def list_ledgers(store: MetadataStore) -> list[int]:
    """Return the ids of all ledgers, ascending, without malformed keys: see `survey`. Raises the errors of `shards`."""
    return [ledger for shard in shards(store) for ledger in ids_of(store, shard)]


def shards(store: MetadataStore) -> list[str]:
    """Return the names of all shards, ascending by the ids of their ledgers.

    Raises:
        MetadataLayoutError: the store has ledgers outside of shards, which an older build made or which were not
            migrated.
        ReplogError: errors of the store.
    """
    return [name for name in _names(store) if is_shard(name)]


def _names(store: MetadataStore) -> list[str]:
    """Return the names below LEDGERS. Raises MetadataLayoutError if ledgers of an older layout are among them."""
    names = store.list(LEDGERS)
    flat = sum(map(is_flat, names))
    if flat:
        raise MetadataLayoutError(f"the metadata store has {flat} ledgers in an older layout, beside those in shards")
    return names


def ids_of(store: MetadataStore, shard: str) -> list[int]:
    """Return the ids of the ledgers in a shard, ascending. Raises errors of the store."""
    return sorted(int(name) for name in store.list(f"{LEDGERS}/{shard}") if _is_id(shard, name))


def _is_id(shard: str, name: str) -> bool:
    return name.isascii() and name.isdecimal() and metadata_key(int(name)) == f"{LEDGERS}/{shard}/{name}"


def stored_ledgers(store: MetadataStore) -> Iterator[tuple[int, VersionedMetadata | InvalidMetadataError]]:
    """Yield the id and the metadata of each ledger, ascending; an error in place of malformed metadata.

    A shard is read in one call. A ledger that is created or deleted meanwhile may be among the results. Raises the
    errors of `shards`.
    """
    for shard in shards(store):
        for ledger, stored in load_many(store, ids_of(store, shard)):
            if stored is not None:
                yield ledger, stored


def load_many(
    store: MetadataStore, ledgers: Sequence[int]
) -> Iterator[tuple[int, VersionedMetadata | InvalidMetadataError | None]]:
    """Load the metadata of several ledgers with one call of the store.

    Args:
        store: metadata store.
        ledgers: ids of the ledgers.

    Returns:
        For each ledger its id, and its metadata; an error if they cannot be read, None if the ledger does not exist.

    Raises:
        ReplogError: errors of the store.
    """
    return load_changed(store, dict.fromkeys(ledgers))


def load_changed(
    store: MetadataStore, versions: Mapping[int, int | None]
) -> Iterator[tuple[int, VersionedMetadata | InvalidMetadataError | None]]:
    """Load the metadata of those of several ledgers that have changed, with one call of the store.

    Args:
        store: metadata store.
        versions: version of the metadata that the caller has, by ledger; None: it has none.

    Returns:
        As `load_many`, without the ledgers that have the given version.

    Raises:
        ReplogError: errors of the store.
    """
    keys = [metadata_key(ledger) for ledger in versions]
    for (ledger, version), stored in zip(versions.items(), store.get_many(keys), strict=True):
        if stored is None:
            yield ledger, None
        elif stored.version != version:
            try:
                yield ledger, _decoded(ledger, stored)
            except InvalidMetadataError as error:
                yield ledger, error


def survey(store: MetadataStore) -> tuple[list[LedgerMetadata], list[Garbled]]:
    """Return the metadata of all ledgers, ordered by id, and the malformed keys. Raises the errors of `shards`."""
    ledgers: list[LedgerMetadata] = []
    garbled: list[Garbled] = []
    for ledger, stored in stored_ledgers(store):
        if isinstance(stored, InvalidMetadataError):
            garbled.append(Garbled(metadata_key(ledger), str(stored)))
        else:
            ledgers.append(stored.metadata)
    return ledgers, garbled + [
        Garbled(f"{LEDGERS}/{name}", "expected the id of a ledger") for name in _bad_names(store)
    ]


def _bad_names(store: MetadataStore) -> Iterator[str]:
    """Yield the names below LEDGERS that are neither shards nor ledgers in their shards."""
    for name in _names(store):
        if not is_shard(name):
            yield name
            continue
        for inner in store.list(f"{LEDGERS}/{name}"):
            if not _is_id(name, inner):
                yield f"{name}/{inner}"


def delete_garbled(store: MetadataStore, name: str) -> None:
    """Delete a key below LEDGERS, whatever its value is.

    Args:
        store: metadata store.
        name: number of the ledger, or the last part of the key.

    Raises:
        NoSuchKeyError: there is no such key.
        WrongTypeError: `name` is no str.
        ReplogError: errors of the store.
    """
    if not isinstance(name, str):
        raise WrongTypeError(f"name: expected a str, found {type(name).__name__}")
    if name.isascii() and name.isdecimal() and len(name) <= ID_DIGITS and int(name) <= ID_MAX:
        key = metadata_key(int(name))
    else:
        strange = [key for key in _bad_names(store) if key.rpartition("/")[2] == name]
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
    """Remove the shard of a deleted ledger, if it is empty.

    Errors are ignored: the deletion of a later ledger tries again.
    """
    shard = metadata_key(ledger).rpartition("/")[0]
    with suppress(ReplogError):
        stored = store.get(shard)
        if stored is not None and not store.list(shard):
            store.delete(shard, stored.version)


def next_id(store: MetadataStore) -> int:
    """Return an id that no ledger has, or ever had.

    Raises:
        InvalidMetadataError: the stored number of the next ledger is malformed.
        ReplogError: errors of the store.
    """
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
    """Write the metadata of a ledger unchanged, so that a compare-and-set with the older version fails.

    Returns:
        False if the version is another one, or the ledger was deleted: nothing is written.

    Raises:
        OutcomeUnknownError: the version may have been changed.
        ReplogError: errors of the store.
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
    """The metadata of ledgers, as bookies need them; implements `bookie.ledger_list.LedgerMetadataView`."""

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
            with suppress(KeyExistsError, NoSuchKeyError, VersionConflictError):  # another process changed it
                if stored is None:
                    self._store.create(NEXT_LEDGER, b"%d" % number)
                else:
                    self._store.put(NEXT_LEDGER, b"%d" % number, stored.version)

    def open_with(self, bookie: str, *, unsynced: bool) -> Iterator[int]:
        """Yield the ledgers of which this bookie may hold unconfirmed entries."""
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
        """Note bad copies.

        Of a closed ledger one is enough: the repair checks all copies that the bookie should have.
        """
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
        logger.warning("ledger %d: the entries that bookies have to hold are unknown: %s", ledger, error)
        return None
    if metadata.state is not State.CLOSED:
        return None
    return ClosedLedgerHoldings(tuple(metadata.holdings(bookie)), stored.version, frozenset(metadata.bookies()))
