"""RocksDB, through rocksdict in raw mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from benchmarks.peers.peer import Peer


class RocksDB(Peer):
    title = "RocksDB"

    def __init__(self, directory: Path, *, synced: bool) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._store = Rdict(str(directory / "store"), options)
        write = WriteOptions()
        write.sync = synced
        self._store.set_write_options(write)
        last: Any = next(iter(self._store.keys(backwards=True)), None)
        self._next = 0 if last is None else int.from_bytes(last, "big") + 1

    @staticmethod
    def version() -> str:
        return f"rocksdict {version('rocksdict')}"

    def append(self, value: bytes) -> int:
        key = self._next
        self._store[key.to_bytes(8, "big")] = value
        self._next = key + 1
        return key

    def append_batch(self, values: list[bytes]) -> range:
        batch = WriteBatch(raw_mode=True)
        first = key = self._next
        for value in values:
            batch.put(key.to_bytes(8, "big"), value)
            key += 1
        self._store.write(batch)
        self._next = key
        return range(first, key)

    def scan(self) -> tuple[int, int]:
        count = total = 0
        for value in self._store.values():
            count += 1
            total += len(value)
        return count, total

    def values(self) -> Iterable[bytes]:
        return self._store.values()

    def reader(self) -> Callable[[int], Any]:
        return self._read

    def _read(self, key: int) -> Any:
        return self._store[key.to_bytes(8, "big")]

    def close(self) -> None:
        self._store.close()
