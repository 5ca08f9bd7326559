"""Metadata: small values under versioned keys, with watches and leases.

| file | holds |
|---|---|
| store | MetadataStore: the calls and what they promise |
| lease | Lease: keys that exist while their owner lives |
| watching | the thread that tells watchers |
| followed_folder | the values of all keys of one folder, as a process follows them |
| keys | which keys and values are accepted |
| changes | compare-and-set of one key, repeated until no other process interferes |
| layout | where keys are: which builds may use a store |
| values | JSON objects as values, whatever lies there |
| snapshot_header | the first bytes of snapshots in system cursors |
| memory | MemoryStore: one process, for tests |
| sqlite | SQLiteStore: the processes of one machine |
| database | its database file: schema, transactions, dead leases |
| process_identity | which process owns a lease, and whether it lives |
| zookeeper | ZooKeeperStore: a cluster |
| zookeeper_session | one ZooKeeper session, and its errors in our terms |
| url | `open_store` |
"""

from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.url import open_store
from pyreplog.metadata.watching import Watch

__all__ = ["Lease", "LeaseState", "MetadataStore", "Versioned", "Watch", "open_store"]
