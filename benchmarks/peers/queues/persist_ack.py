"""persist-queue's SQLite queue with acknowledgements: every call is a transaction, which SQLite syncs unless told not
to."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import persistqueue

from benchmarks.peers.queues.peer import QueuePeer
from benchmarks.result import Durability

_COUNT = 256
_TICK_S = 0.001
"""A wake-up that falls between its look and its wait is lost: so it looks again."""


class PersistAck(QueuePeer):
    """A database per turn."""

    title = "persist-queue SQLiteAckQueue"
    served = False

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._directory, self._durability = directory, durability
        self._queue: Any = None
        self._turn = 0
        self._before: int | None = None

    @staticmethod
    def version() -> str:
        return f"persist-queue {version('persist-queue')}"

    def start(self) -> None:
        self._forget()
        self._turn += 1
        self._before = None
        self._queue = persistqueue.SQLiteAckQueue(str(self._folder), multithreading=True)
        pragma = "PRAGMA synchronous = " + ("FULL" if self._durability == "synced" else "NORMAL")
        for connection in (self._queue._getter, self._queue._putter):
            connection.execute(pragma)

    @property
    def _folder(self) -> Path:
        return self._directory / str(self._turn)

    def _forget(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None
            shutil.rmtree(self._folder)

    def publish(self, value: bytes) -> None:
        self._queue.put(value)

    def publish_batch(self, values: list[bytes]) -> None:
        """It has no batches."""
        for value in values:
            self._queue.put(value)

    def take(self) -> list[bytes]:
        """One by one, each looked for behind the one before: else it looks at all that were."""
        found = []
        for _ in range(min(_COUNT, self._queue.size)):
            got = self._queue.get(block=False, raw=True, id=self._before, next_in_order=self._before is not None)
            self._before = got["pqid"]
            self._queue.ack(id=self._before)
            found.append(got["data"])
        return found

    def backlog(self) -> int:
        return int(self._queue.active_size())

    def arrivals(self) -> Generator[bytes, None, None]:
        while True:
            try:
                got = self._queue.get(timeout=_TICK_S, raw=True)
            except persistqueue.Empty:
                continue
            try:
                yield got["data"]
            finally:
                self._queue.ack(id=got["pqid"])

    def close(self) -> None:
        self._forget()
