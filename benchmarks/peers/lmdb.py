"""LMDB: a memory-mapped B+ tree, appended to in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import lmdb

from benchmarks.peers.peer import Peer

_MAP_BYTES = 8 << 30


class Lmdb(Peer):
    title = "LMDB"

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._store = lmdb.open(str(directory / "store"), map_size=_MAP_BYTES, sync=synced, metasync=synced)
        self._next: int = self._store.stat()["entries"]

    @staticmethod
    def version() -> str:
        return f"LMDB {'.'.join(map(str, lmdb.version()))}, lmdb {lmdb.__version__}"

    def append(self, value: bytes) -> int:
        key = self._next
        with self._store.begin(write=True) as transaction:
            transaction.put(key.to_bytes(8, "big"), value, append=True)
        self._next = key + 1
        return key

    def append_batch(self, values: list[bytes]) -> range:
        first = key = self._next
        with self._store.begin(write=True) as transaction:
            put = transaction.put
            for value in values:
                put(key.to_bytes(8, "big"), value, append=True)
                key += 1
        self._next = key
        return range(first, key)

    def scan(self) -> tuple[int, int]:
        count = total = 0
        with self._store.begin() as transaction:
            for value in transaction.cursor().iternext(keys=False):
                count += 1
                total += len(value)
        return count, total

    def values(self) -> Iterable[bytes]:
        with self._store.begin() as transaction:
            yield from transaction.cursor().iternext(keys=False)

    def reader(self) -> Callable[[int], bytes | None]:
        get = self._store.begin().get
        return lambda key: get(key.to_bytes(8, "big"))

    def close(self) -> None:
        self._store.close()
