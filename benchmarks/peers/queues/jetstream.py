"""A NATS JetStream of one server, file storage, with a durable pull consumer: it acknowledges a message with all
before it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.errors import NoServersError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from benchmarks.peers.queues.peer import PATIENCE_S, QueuePeer
from benchmarks.peers.replicated.nats_cluster import NatsCluster
from benchmarks.peers.replicated.peer import Servers, free_ports, program
from benchmarks.result import Durability

_NAME, _CONSUMER = "queue", "one"
_COUNT = 1000

T = TypeVar("T")


class JetStream(QueuePeer):
    title = "NATS JetStream, pull consumer"
    served = True
    durabilities = frozenset({"appended"})

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._servers = Servers()
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._sent: list[asyncio.Future[Any]] = []
        self._consumer: Any = None
        self._last: Any = None
        self._taken = 0
        self._state = directory / "store/jetstream/$G/streams" / _NAME / "obs" / _CONSUMER / "o.dat"
        (self._port,) = free_ports(1)
        configuration = directory / "server.conf"
        configuration.write_text(
            json.dumps({"host": "127.0.0.1", "port": self._port, "jetstream": {"store_dir": str(directory / "store")}})
        )
        self._servers.start([program("nats-server", "nats-server"), "-c", str(configuration)], directory / "log")
        try:
            self._connection = self._servers.until(lambda: self._run(_connect(self._port)), NoServersError, OSError)
            self._stream = self._connection.jetstream(timeout=PATIENCE_S)
            self._run(self._stream.add_stream(name=_NAME, subjects=[_NAME]))
        except BaseException:
            self.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    @staticmethod
    def version() -> str:
        return NatsCluster.version()

    def start(self) -> None:
        self._run(self._start())
        self._last, self._taken = None, 0

    async def _start(self) -> None:
        if self._consumer is not None:
            await self._consumer.unsubscribe()
        with suppress(NotFoundError):
            await self._stream.delete_consumer(_NAME, _CONSUMER)
        await self._stream.purge_stream(_NAME)
        settings = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=-1)
        self._consumer = await self._stream.pull_subscribe(_NAME, durable=_CONSUMER, config=settings)

    def publish(self, value: bytes) -> None:
        self._run(self._stream.publish(_NAME, value))

    def publish_batch(self, values: list[bytes]) -> None:
        self._run(self._publish(values))

    async def _publish(self, values: list[bytes]) -> None:
        """As many on their way as the client lets."""
        for value in values:
            self._sent.append(await self._stream.publish_async(_NAME, value))

    def flush(self) -> None:
        self._run(self._confirmed())

    async def _confirmed(self) -> None:
        sent, self._sent = self._sent, []
        await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

    def take(self) -> list[bytes]:
        return self._run(self._take())

    async def _take(self) -> list[bytes]:
        messages = await self._consumer.fetch(_COUNT, PATIENCE_S)
        if self._last is not None:
            await self._last.ack()
        self._last = messages[-1]
        self._taken += len(messages)
        return [message.data for message in messages]

    def settle(self) -> None:
        """The server confirms an acknowledgement before it has written it: waits until its file has that, too."""
        if self._last is None:
            return
        self._run(self._last.ack_sync(PATIENCE_S))
        self._last, deadline = None, time.monotonic() + PATIENCE_S
        while not self._state.exists() or _acknowledged(self._state.read_bytes()) < self._taken:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.title}: acknowledgements were not written for {PATIENCE_S} s")
            time.sleep(0.001)

    def backlog(self) -> int:
        found = self._run(self._stream.consumer_info(_NAME, _CONSUMER))
        return int(found.num_pending) + int(found.num_ack_pending)

    def arrivals(self) -> Generator[bytes, None, None]:
        """Through a connection of its own."""
        with asyncio.Runner() as runner:
            connection = runner.run(_connect(self._port))
            try:
                stream = connection.jetstream()
                consumer = runner.run(stream.pull_subscribe_bind(durable=_CONSUMER, stream=_NAME))
                while True:
                    (message,) = runner.run(consumer.fetch(1, PATIENCE_S))
                    try:
                        yield message.data
                    finally:
                        runner.run(message.ack_sync(PATIENCE_S))
            finally:
                runner.run(connection.close())

    def close(self) -> None:
        if self._connection is not None:
            self._run(self._connection.close())
        self._loop.close()
        self._servers.close()


def _acknowledged(state: bytes) -> int:
    """How many messages are, from a consumer's state file: behind two bytes, seven bits a byte."""
    found = shift = 0
    for byte in state[2:]:
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found
        shift += 7
    return 0


async def _connect(port: int) -> Any:
    async def ignore(error: Exception) -> None:
        """It is raised, too."""

    return await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=30, error_cb=ignore)
