"""pyreplog: a topic in a cluster of this process, with one copy or three; and one that a server of its own answers for,
over TCP."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pyreplog
from benchmarks.peers.queues import server
from benchmarks.peers.queues.peer import PATIENCE_S, QueuePeer
from benchmarks.peers.replicated.peer import Servers
from benchmarks.result import Durability
from pyreplog import AppendFuture

_SUBSCRIPTION = "one"


class QueueTopic(QueuePeer):
    """A topic per turn. Batches follow each other without a wait, as far as the window takes them."""

    copies: ClassVar[int] = 1
    settings: ClassVar[dict[str, Any]] = {"collect_interval_ms": 1000}
    """Fields of BookieConfig."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._settings = {"durability": durability} | self.settings
        self._config: Any = {"ensemble": self.copies, "durability": durability}
        self._stack = ExitStack()
        self._turn = 0
        self._topic: Any = None
        self._consumer: Any = None
        self._last: AppendFuture[range] | None = None
        try:
            self._home = self._open(directory)
        except BaseException:
            self._stack.close()
            raise

    @abstractmethod
    def _open(self, directory: Path) -> Any:
        """What has topics."""

    @staticmethod
    def version() -> str:
        return f"pyreplog {pyreplog.__version__}"

    def start(self) -> None:
        self._release()
        if self._topic is not None:
            self._topic.delete()
        self._turn += 1
        self._topic = self._home.topic(f"bench-{self._turn}", **self._config)
        self._topic.create_subscription(_SUBSCRIPTION, start="earliest")

    def publish(self, value: bytes) -> None:
        self._topic.publish(value)

    def publish_batch(self, values: list[bytes]) -> None:
        self._last = self._topic.submit_batch(values)

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None

    def take(self) -> list[bytes]:
        if self._consumer is None:
            self._consumer = self._topic.subscribe(_SUBSCRIPTION)
        batch = self._consumer.receive_batch(PATIENCE_S)
        if batch is None:
            raise TimeoutError(f"{self.title}: no message for {PATIENCE_S} s")
        self._consumer.acknowledge(batch)
        values: list[bytes] = batch.values()
        return values

    def settle(self) -> None:
        self._consumer.flush()

    def backlog(self) -> int:
        (subscription,) = self._topic.stats().subscriptions
        return int(subscription.backlog_messages)

    def arrivals(self) -> Generator[bytes, None, None]:
        with self._topic.subscribe(_SUBSCRIPTION) as consumer:
            for message in consumer:
                try:
                    yield message.value
                finally:
                    consumer.acknowledge(message)

    def _release(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def close(self) -> None:
        self._release()
        self._stack.close()


class EmbeddedTopic(QueueTopic):
    title = "pyreplog topic, one copy"
    served = False

    def _open(self, directory: Path) -> pyreplog.Cluster:
        return self._stack.enter_context(pyreplog.Cluster.embedded(directory, bookies=self.copies, **self._settings))


class EmbeddedCopies(EmbeddedTopic):
    title = "pyreplog topic, three copies"
    copies = 3


class ServedTopic(QueueTopic):
    title = "pyreplog topic server, one copy"
    served = True

    def _open(self, directory: Path) -> pyreplog.Client:
        servers = Servers()
        self._stack.callback(servers.close)
        log = directory / "log"
        servers.start(server.command(sys.executable, directory / "cluster", self.copies, self._settings), log)
        address = servers.until(lambda: server.address(log.read_text()))
        return self._stack.enter_context(pyreplog.connect(f"pyreplog://{address}"))
