"""The layout of a store: where keys are, and which builds may use the store. FORMAT.md, "Layout of a store".

The key `/cluster`, which every bookie and client reads first, has the number of the layout. Layout 1 had all ledgers in
one folder, and `id` in `/cluster`. A build of layout 1 finds no `id` in a store of layout 2, and refuses the store;
otherwise it would find no ledger, and take all of them for deleted.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress

from pyreplog.errors import InvalidMetadataError, KeyExistsError, MetadataLayoutError
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import check_reader, decode_object, field

CLUSTER = "/cluster"
LAYOUT = 2
_ID_BYTES = 16


def encode_cluster(cluster: bytes, *, is_migrating: bool = False) -> bytes:
    """Return the value of CLUSTER in a store of this layout."""
    value = {"version": LAYOUT, "min_reader": LAYOUT, "cluster": cluster.hex()}
    return json.dumps({**value, "migrating": True} if is_migrating else value).encode()


def decode_cluster(data: bytes) -> tuple[bytes, bool]:
    """Decode the value of CLUSTER in a store of any layout up to LAYOUT.

    Returns:
        The id of the cluster, 16 bytes, and whether the store has an older layout or an unfinished migration.

    Raises:
        MetadataVersionError: the store has a newer layout.
        InvalidMetadataError: the value is malformed.
    """
    try:
        value = decode_object(data)
        version, _ = check_reader(CLUSTER, value, LAYOUT)
        cluster = bytes.fromhex(field(value, "id" if version == 1 else "cluster", str))
    except ValueError as error:
        raise InvalidMetadataError(f"{CLUSTER}: {error}") from error
    if len(cluster) != _ID_BYTES:
        raise InvalidMetadataError(f"{CLUSTER}: expected {_ID_BYTES} bytes, found {len(cluster)}")
    return cluster, version < LAYOUT or value.get("migrating") is True


def cluster_id(store: MetadataStore) -> bytes:
    """Return the id of the cluster, 16 random bytes. The first process that calls this creates it.

    Raises:
        MetadataLayoutError: the store has an older layout, or a migration is unfinished.
        MetadataVersionError: the store has a newer layout.
        InvalidMetadataError: the value is malformed.
        ReplogError: errors of the store.
    """
    stored = store.get(CLUSTER)
    if stored is None:
        with suppress(KeyExistsError):  # another process has created it
            store.create(CLUSTER, encode_cluster(uuid.uuid4().bytes))
        return cluster_id(store)
    cluster, is_older = decode_cluster(stored.value)
    if is_older:
        raise MetadataLayoutError(f"the metadata store has an older layout than {LAYOUT}")
    return cluster
