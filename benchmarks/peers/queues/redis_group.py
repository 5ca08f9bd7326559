"""A Redis stream with a consumer group, over a unix socket; the server writes its append-only file before it answers,
and syncs it before that where every message must be on disk."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.peers.queues.peer import PATIENCE_S, QueuePeer
from benchmarks.peers.redis_streams import RedisStream
from benchmarks.result import Durability

_STREAM, _GROUP, _CONSUMER = "queue", "group", "one"
_COUNT = 1000
_NEW = {_STREAM: ">"}


class _Server(RedisStream):
    """Leaves syncs to the system, unless every message must be on disk."""

    def __init__(self, directory: Path, *, synced: bool) -> None:
        super().__init__(directory, synced=synced)
        self.client: Any = self._client
        if not synced:
            self.client.config_set("appendfsync", "no")


class RedisGroup(QueuePeer):
    title = "Redis stream, consumer group"
    served = True

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._server = _Server(directory, synced=durability == "synced")
        self._client = self._server.client
        self._taken: list[bytes] = []

    @staticmethod
    def version() -> str:
        return RedisStream.version()

    def start(self) -> None:
        self._client.delete(_STREAM)
        self._client.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
        self._taken = []

    def publish(self, value: bytes) -> None:
        self._client.xadd(_STREAM, {b"v": value})

    def publish_batch(self, values: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(_STREAM, {b"v": value})
        pipeline.execute()

    def take(self) -> list[bytes]:
        """Acknowledges what was taken before in the same pipeline."""
        pipeline = self._client.pipeline(transaction=False)
        if self._taken:
            pipeline.xack(_STREAM, _GROUP, *self._taken)
        pipeline.xreadgroup(_GROUP, _CONSUMER, _NEW, count=_COUNT)
        ((_, messages),) = pipeline.execute()[-1]
        self._taken = [key for key, _ in messages]
        return [fields[b"v"] for _, fields in messages]

    def settle(self) -> None:
        if self._taken:
            self._client.xack(_STREAM, _GROUP, *self._taken)
            self._taken = []

    def backlog(self) -> int:
        (group,) = self._client.xinfo_groups(_STREAM)
        return int(group["pending"]) + int(group["lag"])

    def arrivals(self) -> Generator[bytes, None, None]:
        while True:
            found = self._client.xreadgroup(_GROUP, _CONSUMER, _NEW, count=1, block=int(PATIENCE_S * 1000))
            for _, messages in found:
                for key, fields in messages:
                    try:
                        yield fields[b"v"]
                    finally:
                        self._client.xack(_STREAM, _GROUP, key)

    def close(self) -> None:
        self._server.close()
