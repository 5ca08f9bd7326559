"""A Redis stream with one replica that confirms (WAIT 1); both write their append-only files before they answer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers.replicated.peer import ReplicatedPeer, Servers, free_ports, program
from benchmarks.result import Durability

_STREAM = "log"
_PAGE = 1000
_WAIT_MS = 60_000


class RedisPair(ReplicatedPeer):
    title = "Redis stream + WAIT 1"

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._servers = Servers()
        ports = free_ports(2)
        for number, port in enumerate(ports):
            folder = directory / str(number)
            folder.mkdir()
            settings = {
                "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "appendonly": "yes",
                "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0", "repl-diskless-sync-delay": "0",
            }  # fmt: skip
            if number:
                settings["replicaof"] = f"127.0.0.1 {ports[0]}"
            words = [word for name, value in settings.items() for word in (f"--{name}", *value.split(" "))]
            self._servers.start([program("redis-server", "redis-server"), *words], folder / "log")
        self._client: Any = redis.Redis(port=ports[0])
        self._replica: Any = redis.Redis(port=ports[1])
        try:
            self._servers.until(self._is_replicated, redis.ConnectionError)
        except BaseException:
            self.close()
            raise

    def _is_replicated(self) -> bool | None:
        """The replica has the primary's state, and its own file; before that it does not even end."""
        online = self._client.info("replication").get("slave0", {}).get("state") == "online"
        found = self._replica.info("persistence")
        writing = found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]
        return (online and not writing) or None

    @staticmethod
    def version() -> str:
        told = subprocess.run(
            [program("redis-server", "redis-server"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        return f"Redis {told.split('v=')[1].split()[0]}, redis {version('redis')}, hiredis {version('hiredis')}"

    def start(self) -> None:
        self._client.delete(_STREAM)

    def append(self, value: bytes) -> None:
        self.append_batch([value])

    def append_batch(self, values: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(_STREAM, {b"v": value})
        pipeline.execute_command("WAIT", 1, _WAIT_MS)
        if pipeline.execute()[-1] < 1:
            raise ConnectionError("the replica has not confirmed in time")

    def values(self) -> Iterator[bytes]:
        start = b"-"
        while page := self._client.xrange(_STREAM, min=start, count=_PAGE):
            yield from (fields[b"v"] for _, fields in page)
            start = b"(" + page[-1][0]

    def close(self) -> None:
        self._client.close()
        self._replica.close()
        self._servers.close()
