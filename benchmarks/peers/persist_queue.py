"""persist-queue: its file queue, which never syncs an entry; its SQLite queue where every put must be on disk."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import persistqueue

from benchmarks.peers.peer import Peer, Work

_CHUNK = 10_000


class PersistQueue(Peer):
    title = "persist-queue"
    work = frozenset({Work.APPEND, Work.SYNCED_1, Work.SCAN})

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._directory = directory
        self._queue: Any = persistqueue.FIFOSQLiteQueue(str(directory), auto_commit=True) if synced else self._open()

    def _open(self) -> persistqueue.Queue:
        temporary = self._directory / "temporary"
        temporary.mkdir(exist_ok=True)
        return persistqueue.Queue(str(self._directory / "queue"), chunksize=_CHUNK, tempdir=str(temporary))

    @staticmethod
    def version() -> str:
        return f"persist-queue {version('persist-queue')}"

    def append(self, value: bytes) -> None:
        self._queue.put(value)

    def append_batch(self, values: list[bytes]) -> NoReturn:
        raise NotImplementedError("persist-queue has no batches")

    def scan(self) -> tuple[int, int]:
        count = total = 0
        queue = self._open()
        for _ in range(queue.qsize()):
            total += len(queue.get())
            count += 1
        return count, total

    def values(self) -> Iterator[bytes]:
        """Gets through a second handle: without `task_done` it takes nothing away."""
        if isinstance(self._queue, persistqueue.FIFOSQLiteQueue):
            yield from (row["data"] for row in self._queue.queue())
        else:
            queue = self._open()
            for _ in range(queue.qsize()):
                yield queue.get()

    def close(self) -> None:
        if isinstance(self._queue, persistqueue.FIFOSQLiteQueue):
            self._queue.close()
        else:
            for file in (self._queue.headf, self._queue.tailf):
                file.close()
