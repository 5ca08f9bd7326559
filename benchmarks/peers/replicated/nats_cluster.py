"""A NATS JetStream of three servers, file storage, three replicas of which two confirm."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Coroutine, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.errors import Error, NoServersError

from benchmarks.peers.replicated.peer import ReplicatedPeer, Servers, free_ports, program
from benchmarks.result import Durability

_NAME = "log"
_TIMEOUT_S = 30.0

T = TypeVar("T")


class NatsCluster(ReplicatedPeer):
    title = "NATS JetStream R3"

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._servers = Servers()
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._written = 0
        free = free_ports(6)
        ports, routes = free[:3], free[3:]
        for number in range(3):
            folder = directory / str(number)
            folder.mkdir()
            (folder / "server.conf").write_text(_configuration(folder, number, ports, routes))
            command = [program("nats-server", "nats-server"), "-c", str(folder / "server.conf")]
            self._servers.start(command, folder / "log")
        try:
            self._connection = self._servers.until(lambda: self._run(_connect(ports[0])), NoServersError, OSError)
            self._stream = self._connection.jetstream(timeout=_TIMEOUT_S)
            self._servers.until(lambda: self._run(self._make_stream()), Error, asyncio.TimeoutError)
        except BaseException:
            self.close()
            raise

    async def _make_stream(self) -> Any:
        return await self._stream.add_stream(name=_NAME, subjects=[_NAME], num_replicas=3)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    @staticmethod
    def version() -> str:
        told = subprocess.run(
            [program("nats-server", "nats-server"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        return f"NATS {told.split('v')[-1].strip()}, nats-py {version('nats-py')}"

    def start(self) -> None:
        self._run(self._stream.purge_stream(_NAME))
        self._written = 0

    def append(self, value: bytes) -> None:
        self._run(self._stream.publish(_NAME, value))
        self._written += 1

    def append_batch(self, values: list[bytes]) -> None:
        self._run(self._publish(values))
        self._written += len(values)

    async def _publish(self, values: list[bytes]) -> None:
        """All on their way at once."""
        await asyncio.gather(*(self._stream.publish(_NAME, value) for value in values))

    def values(self) -> Iterator[bytes]:
        return iter(self._run(self._read()))

    async def _read(self) -> list[bytes]:
        subscription = await self._stream.subscribe(_NAME, ordered_consumer=True)
        found = [(await subscription.next_msg(_TIMEOUT_S)).data for _ in range(self._written)]
        await subscription.unsubscribe()
        if (await self._stream.stream_info(_NAME)).state.messages != len(found):
            raise ValueError(f"the stream has other than {len(found)} messages")
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._run(self._connection.close())
        self._loop.close()
        self._servers.close()


async def _connect(port: int) -> Any:
    async def ignore(error: Exception) -> None:
        """It is raised, too."""

    return await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=30, error_cb=ignore)


def _configuration(folder: Path, number: int, ports: list[int], routes: list[int]) -> str:
    """The server takes JSON."""
    others = [f"nats-route://127.0.0.1:{route}" for n, route in enumerate(routes) if n != number]
    return json.dumps(
        {
            "server_name": f"n{number}", "host": "127.0.0.1", "port": ports[number],
            "jetstream": {"store_dir": str(folder / "store")},
            "cluster": {"name": "bench", "host": "127.0.0.1", "port": routes[number], "routes": others},
        }
    )  # fmt: skip
