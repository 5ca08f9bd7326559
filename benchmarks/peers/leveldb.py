"""LevelDB, through plyvel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import plyvel

from benchmarks.peers.peer import Peer


class LevelDB(Peer):
    title = "LevelDB"

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._store = plyvel.DB(str(directory / "store"), create_if_missing=True)
        self._synced = synced
        last = next(self._store.iterator(reverse=True, include_value=False), None)
        self._next = 0 if last is None else int.from_bytes(last, "big") + 1

    @staticmethod
    def version() -> str:
        return f"plyvel {plyvel.__version__}"

    def append(self, value: bytes) -> int:
        key = self._next
        self._store.put(key.to_bytes(8, "big"), value, sync=self._synced)
        self._next = key + 1
        return key

    def append_batch(self, values: list[bytes]) -> range:
        first = key = self._next
        with self._store.write_batch(sync=self._synced) as batch:
            put = batch.put
            for value in values:
                put(key.to_bytes(8, "big"), value)
                key += 1
        self._next = key
        return range(first, key)

    def scan(self) -> tuple[int, int]:
        count = total = 0
        for value in self._store.iterator(include_key=False):
            count += 1
            total += len(value)
        return count, total

    def values(self) -> Iterable[bytes]:
        values: Iterable[bytes] = self._store.iterator(include_key=False)
        return values

    def reader(self) -> Callable[[int], bytes]:
        return self._read

    def _read(self, key: int) -> bytes:
        value: bytes = self._store.get(key.to_bytes(8, "big"))
        return value

    def close(self) -> None:
        self._store.close()
