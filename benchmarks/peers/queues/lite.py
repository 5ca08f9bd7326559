"""litequeue, on SQLite: batches are transactions, single messages are taken out; nobody can wait for one."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import litequeue

from benchmarks.peers.queues.peer import QueuePeer
from benchmarks.result import Durability

_COUNT = 256


class Lite(QueuePeer):
    """A database per turn."""

    title = "litequeue"
    served = False
    waits = False

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._directory, self._durability = directory, durability
        self._queue: Any = None
        self._turn = 0

    @staticmethod
    def version() -> str:
        return f"litequeue {version('litequeue')}"

    def start(self) -> None:
        self._forget()
        self._turn += 1
        self._queue = litequeue.LiteQueue(self._path)
        if self._durability == "synced":
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    @property
    def _path(self) -> Path:
        return self._directory / str(self._turn)

    def _forget(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None
            self._path.unlink()

    def publish(self, value: bytes) -> None:
        self._queue.put(value)

    def publish_batch(self, values: list[bytes]) -> None:
        with self._queue.transaction("IMMEDIATE"):
            for value in values:
                self._queue.put(value)

    def take(self) -> list[bytes]:
        """Each in a transaction of its own; all are done in one."""
        found: list[Any] = []
        while len(found) < _COUNT and (message := self._queue.pop()) is not None:
            found.append(message)
        with self._queue.transaction("IMMEDIATE"):
            for message in found:
                self._queue.done(message.message_id)
        return [message.data for message in found]

    def backlog(self) -> int:
        return int(self._queue.qsize())

    def close(self) -> None:
        self._forget()
