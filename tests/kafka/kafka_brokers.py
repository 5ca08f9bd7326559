"""Brokers with Kafka listeners in this process, and a client of raw sockets that says what no real client would."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyreplog.kafka
from pyreplog.kafka import KafkaConfig
from pyreplog.kafka.wire.codec import request_codec, response_codec
from pyreplog.kafka.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.topic_metadata import create_topic
from tests.waiting import PATIENCE_S, until


class KafkaBrokers:
    """Brokers over one metadata store, which each has open for itself; over TCP among each other.

    broker_settings: settings of the brokers. settings: of their listeners. racks: of brokers, by name.
    """

    def __init__(
        self, path: Path, *, broker_settings: Mapping[str, Any] | None = None, racks: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self._racks = dict(racks or {})
        self._path, self._settings, self._broker_settings = path, settings, dict(broker_settings or {})
        self.store = SQLiteStore(path / "metadata")
        self.brokers: dict[str, Broker] = {}
        self.servers: dict[str, pyreplog.kafka.Server] = {}
        self._stacks: dict[str, ExitStack] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.brokers):
            self.stop(name)
        self.store.close()

    def start(self, *names: str, **settings: Any) -> Self:
        config = BrokerConfig(**{"segment_bytes": 1 << 20, "lease_ms": 2_000, "lag_ms": 2_000, **self._broker_settings})
        for name in names:
            with ExitStack() as stack:
                store = stack.enter_context(SQLiteStore(self._path / "metadata"))
                broker = stack.enter_context(
                    Broker(self._path / name, name, store, config=config, rack=self._racks.get(name, ""))
                )
                server = stack.enter_context(
                    pyreplog.kafka.Server(broker, config=KafkaConfig(**self._settings), **settings)
                )
                self.brokers[name], self.servers[name] = broker, server
                self._stacks[name] = stack.pop_all()
        until(lambda: all(self._knows(broker, name) for broker in self.brokers.values() for name in names))
        return self

    def _knows(self, broker: Broker, name: str) -> bool:
        """Whether clients of a broker are told of another one."""
        living = broker.metadata.availability(name)
        return living is not None and bool(living.kafka_address) and broker.metadata.broker(name) is not None

    def stop(self, name: str) -> None:
        del self.brokers[name], self.servers[name]
        self._stacks.pop(name).close()

    @property
    def addresses(self) -> str:
        """The value of `bootstrap.servers`."""
        return ",".join(server.advertised for server in self.servers.values())

    def create(self, topic: str = "events", partitions: int = 1, replication_factor: int = 1, **settings: Any) -> None:
        create_topic(
            self.store, topic, partitions=partitions, replication_factor=replication_factor, now_us=1, **settings
        )
        for number in range(partitions):
            self.leader(topic, number)

    def leader(self, topic: str = "events", number: int = 0) -> str:
        """Wait for a leader; return the name of its broker."""

        def look() -> str | None:
            for name, broker in list(self.brokers.items()):
                partition = broker.partition(topic, number)
                if partition is not None and partition.is_leader:
                    return name
            return None

        return until(look)


class RawClient:
    """A socket to a listener."""

    def __init__(self, server: pyreplog.kafka.Server, **options: int) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in server.address[0] else socket.AF_INET)
        for name, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(server.address)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: int, version: int, message: Any) -> int:
        """Send a request; return its correlation id."""
        self._correlation_id += 1
        self.socket.sendall(frame(encode_request(key, version, self._correlation_id, message)))
        return self._correlation_id

    def receive(self) -> bytes:
        """Return the next answer without its size. Raises ConnectionError: the listener has closed the connection."""
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return bytes(data)

    def answer(self, key: int, version: int, correlation_id: int) -> Any:
        """Return the next answer, which must be that of a request."""
        data = self.receive()
        codec = response_codec(key, version)
        assert int.from_bytes(data[:4], "big") == correlation_id
        return codec.schema.decode(data, start=5 if codec.flexible and key != ApiKey.API_VERSIONS else 4)

    def ask(self, key: int, version: int, message: Any) -> Any:
        return self.answer(key, version, self.send(key, version, message))

    def is_closed(self) -> bool:
        """Wait until the listener closes the connection; whatever it sends before is thrown away."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


def encode_request(key: int, version: int, correlation_id: int, message: Any, client_id: str = "raw") -> bytes:
    codec = request_codec(key, version)
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big")
    head += len(client_id).to_bytes(2, "big") + client_id.encode() + (b"\0" if codec.flexible else b"")
    return head + codec.schema.encode(message)


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def produce(batch: bytes, *, acks: int = -1, topic: str = "events", partition: int = 0) -> ProduceRequest:
    data = ProduceTopicProduceData(topic, (ProducePartitionProduceData(partition, batch),))
    return ProduceRequest(None, acks, 30_000, (data,))


def fetch(offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, topic: str = "events", **more: Any) -> FetchRequest:
    wanted = FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=(FetchTopic(topic, partitions=(wanted,)),), **more
    )


def fetched(response: Any) -> Iterator[bytes]:
    """The records of a Fetch response."""
    for topic in response.responses:
        for partition in topic.partitions:
            assert partition.error_code == 0
            yield bytes(partition.records)
