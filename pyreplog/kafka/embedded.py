"""EmbeddedKafka: Kafka brokers in this process, with their data in one directory."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyreplog.coroutines import check_may_block
from pyreplog.errors import InvalidArgumentError
from pyreplog.handles import Handle
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.sasl import SaslUsers
from pyreplog.kafka.server import KafkaServer
from pyreplog.log.files import RealFiles
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig

if TYPE_CHECKING:
    from pyreplog.topic.client.remote.client import Client
    from pyreplog.topic.owner.topics import Topics

SEGMENT_BYTES = 4 << 20
"""Size of segment files, bytes. It is small because a file is allocated before its first record."""
LISTENER_SETTINGS: Mapping[str, Any] = {"offsets_partitions": 4, "rebalance_delay_ms": 0}
"""Listener settings whose defaults differ from `KafkaConfig`."""
_BROKERS_MAX = 100
_LEADERS_S = 5.0
_POLL_S = 0.005


class EmbeddedKafka(Handle):
    """A Kafka cluster in a directory: brokers with their listeners and metadata, all in this process.

    Any thread may use it; `close` blocks. The directory contains the metadata store, `metadata`, and a directory for
    each broker, named by its number. Other processes may open the metadata store at the same time, as
    `PartitionClient.connect(kafka.metadata_url)` does, or `pyreplog broker`, which adds a broker.

    Args:
        directory: directory of the brokers and the metadata, created if it does not exist.
        brokers: number of brokers, 1 to 100; at least as many as before.
        config: settings of the listeners; None: the defaults of `KafkaConfig`, except that topics have up to three
            replicas, two of three must be in sync, groups do not wait for more members at their start, and the topic of
            group offsets has four partitions.
        broker_config: settings of the brokers; None: the defaults of `BrokerConfig`, with segment files of 4 MiB.
        host: address on which the listeners listen.
        port: port of the listener; 0: free ports.
        advertised: address that clients of the listener use, "host:port" or "[v6]:port"; "": the listening address.
        tls: TLS context for servers; None: no TLS.
        users: users as which clients must authenticate by SASL; None: no authentication, every client may do
            everything.
        topics: topics on ledgers that clients see as well, as of `Server`.

    Raises:
        LockedError: another process has the directory open.
        OSError: the address is in use, or is not an address of this machine.
        InvalidArgumentError: an argument is out of its bounds, or a port or an advertised address is given for several
            brokers.
        ReplogError: errors of `Broker` and `Server`.

    Example:
        ```python
        with pyreplog.kafka.EmbeddedKafka("data/kafka") as kafka:
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
        ```
    """

    def __init__(
        self, directory: str | Path, brokers: int = 1, *, config: KafkaConfig | None = None,
        broker_config: BrokerConfig | None = None, host: str = "127.0.0.1", port: int = 0, advertised: str = "",
        tls: ssl.SSLContext | None = None, users: SaslUsers | None = None, topics: Topics | Client | None = None,
    ) -> None:  # fmt: skip
        check_may_block("EmbeddedKafka", "asyncio.to_thread(EmbeddedKafka, directory)")
        if type(brokers) is not int or not 1 <= brokers <= _BROKERS_MAX:
            raise InvalidArgumentError(f"brokers: expected 1 to {_BROKERS_MAX}, found {brokers!r}")
        if brokers > 1 and (port or advertised):
            raise InvalidArgumentError("port, advertised: expected of one broker, found several brokers")
        path = Path(directory)
        RealFiles().make_directory(path)
        self.metadata_url = f"sqlite:{path.absolute() / 'metadata'}"
        """The URL of the metadata store."""
        config = config or KafkaConfig(
            replication_factor=min(brokers, 3), min_isr=2 if brokers > 2 else 1, **LISTENER_SETTINGS
        )
        broker_config = broker_config or BrokerConfig(segment_bytes=SEGMENT_BYTES)
        self._brokers: dict[str, Broker] = {}
        self._servers: dict[str, KafkaServer] = {}
        with ExitStack() as stack:
            self._store = stack.enter_context(open_store(self.metadata_url))
            for name in map(str, range(1, brokers + 1)):
                self._brokers[name] = stack.enter_context(Broker(path / name, name, self._store, config=broker_config))
            self._wait_for_leaders()
            for name, broker in self._brokers.items():
                self._servers[name] = stack.enter_context(
                    KafkaServer(
                        broker,
                        config=config,
                        host=host,
                        port=port,
                        advertised=advertised,
                        tls=tls,
                        users=users,
                        topics=topics,
                    )
                )
            super().__init__(f"Kafka in {path}")
            self._stack = stack.pop_all()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the listeners, separated by commas: `bootstrap.servers` of clients."""
        return ",".join(server.advertised for server in self._servers.values())

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """The brokers by name; the name is the node id."""
        return self._brokers

    @property
    def servers(self) -> Mapping[str, KafkaServer]:
        """The listeners by the name of their broker."""
        return self._servers

    @property
    def store(self) -> MetadataStore:
        """The metadata store, which this object closes."""
        return self._store

    def _wait_for_leaders(self) -> None:
        """Wait up to five seconds for the leaders of existing partitions, because clients that find no leader wait a
        second before they retry."""
        deadline_s = time.monotonic() + _LEADERS_S
        while not self._has_leaders() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _has_leaders(self) -> bool:
        """Return whether all partitions with a broker of this process in their ISR have leaders."""
        metadata = self._brokers["1"].metadata
        if not metadata.wait(0):
            return False
        for name, topic in metadata.topics().items():
            if not topic.is_deleted and not metadata.has_states(topic.topic_id):
                return False
            for partition, state in metadata.partitions(topic.topic_id):
                if state.leader in self._brokers:
                    led = self._brokers[state.leader].partition(name, partition.number)
                    if led is None or not led.is_leader:
                        return False
                elif not state.leader and any(member.broker in self._brokers for member in state.isr):
                    return False
        return True

    def _do_close(self) -> None:
        self._stack.close()
