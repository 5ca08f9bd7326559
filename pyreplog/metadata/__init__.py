"""Metadata: small values under versioned keys, with watches and leases.

| file | holds |
|---|---|
| store | MetadataStore: the calls and their guarantees |
| lease | Lease: keys that exist while their owner lives |
| watching | Watchers: the thread that calls the callbacks of watches |
| followed_folder | FollowedFolder: a local copy of the values of all keys in one folder |
| keys | checks of keys and values |
| operations | the operations of `MetadataStore.multi` |
| changes | compare-and-set of one key, repeated until no other process interferes |
| layout | the layout of keys, and which builds may use a store |
| values | encoding and decoding of JSON objects as values |
| snapshot_header | the first bytes of snapshots in system cursors |
| memory | MemoryStore: one process, for tests |
| sqlite | SQLiteStore: the processes of one machine |
| database | its database file: schema, transactions, dead leases |
| process_identity | which process owns a lease, and whether it lives |
| zookeeper | ZooKeeperStore: a cluster |
| zookeeper_session | ZooKeeperSession: kazoo's client, with its errors translated |
| url | `open_store` |
"""

from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.operations import CheckExists, CreateKey, DeleteKey, Operation, PutValue
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.url import open_store
from pyreplog.metadata.watching import Watch

__all__ = [
    "CheckExists",
    "CreateKey",
    "DeleteKey",
    "Lease",
    "LeaseState",
    "MetadataStore",
    "Operation",
    "PutValue",
    "Versioned",
    "Watch",
    "open_store",
]
