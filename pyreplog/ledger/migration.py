"""Moves the ledgers of a metadata store from one folder into shards, while no process uses the store.

A crash may interrupt it after any step, and all steps may be repeated:

1. `/cluster` is marked as migrating. From now on no bookie and no client of any version starts.
2. For each ledger: its metadata are created in their shard, then deleted at the old key. After a crash in between both
   keys exist, with equal values.
3. `/cluster` gets the new layout. Bookies and clients start again.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pyreplog.bookie.identity import LOG
from pyreplog.bookie.registration import AVAILABLE
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMetadataError,
    KeyExistsError,
    MetadataLayoutError,
    NoSuchKeyError,
    VersionConflictError,
)
from pyreplog.ledger.embedded import METADATA
from pyreplog.ledger.ledger_metadata import LEDGERS, is_flat, metadata_key
from pyreplog.log.lock import WriterLock
from pyreplog.metadata.layout import CLUSTER, decode_cluster, encode_cluster
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.store import MetadataStore, Versioned

BATCH = 256


def migrate(store: MetadataStore) -> int:
    """Bring a store to the present layout. It may be repeated, also after a crash.

    No other process may use the store meanwhile.

    Args:
        store: the metadata store of a cluster.

    Returns:
        The number of ledgers that this call moved.

    Raises:
        MetadataLayoutError: bookies are registered; nothing was changed.
        InvalidMetadataError: the store belongs to no cluster, or has two different values for one ledger.
        MetadataVersionError: the store has a newer layout.
        ReplogError: errors of the store. Repeat the migration.
    """
    stored = store.get(CLUSTER)
    if stored is None:
        raise InvalidMetadataError(f"there is no {CLUSTER}: the store is not that of a cluster, or is new")
    cluster, is_older = decode_cluster(stored.value)
    flat = [name for name in store.list(LEDGERS) if is_flat(name)]
    if not is_older and not flat:
        return 0
    running = store.list(AVAILABLE)
    if running:
        raise MetadataLayoutError(f"bookies are registered, stop them first: {', '.join(running)}")
    version = store.put(CLUSTER, encode_cluster(cluster, is_migrating=True), stored.version)
    for at in range(0, len(flat), BATCH):
        keys = [f"{LEDGERS}/{name}" for name in flat[at : at + BATCH]]
        for key, value in zip(keys, store.get_many(keys), strict=True):
            if value is not None:
                _move(store, key, value)
    store.put(CLUSTER, encode_cluster(cluster), version)
    return len(flat)


def migrate_embedded(folder: Path) -> int:
    """Bring the metadata of an embedded cluster to the present layout, while no process has the cluster open.

    Args:
        folder: the directory of the cluster.

    Returns:
        The number of ledgers that this call moved.

    Raises:
        InvalidArgumentError: the directory has no cluster.
        LockedError: a process has the cluster open.
        ReplogError: as `migrate`.
    """
    if not (folder / METADATA).exists():
        raise InvalidArgumentError(f"there is no cluster in {folder}")
    with ExitStack() as locks:
        for bookie in sorted(folder.glob("bookie-*")):
            for held in (bookie, bookie / LOG):  # locks of the opening, and of the open log
                if held.is_dir():
                    locks.callback(WriterLock(held).release)
        with SQLiteStore(folder / METADATA) as store:
            return migrate(store)


def _move(store: MetadataStore, key: str, stored: Versioned) -> None:
    ledger = int(key.rpartition("/")[2])
    try:
        store.create(metadata_key(ledger), stored.value)
    except KeyExistsError:
        moved = store.get(metadata_key(ledger))
        if moved is None or moved.value != stored.value:
            raise InvalidMetadataError(
                f"ledger {ledger}: {key} and {metadata_key(ledger)} differ: something ran during the migration"
            ) from None
    try:
        store.delete(key, stored.version)
    except NoSuchKeyError:  # a concurrent migration has deleted it
        return
    except VersionConflictError as error:
        raise InvalidMetadataError(f"ledger {ledger}: {key} was changed during the migration") from error
