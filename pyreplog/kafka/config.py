"""Settings of the Kafka listener."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyreplog._native.kafka.request_parser import MAX_REQUEST_BYTES
from pyreplog.config import Settings
from pyreplog.kafka.groups.consumer_group_config import REBALANCE_DELAY_MS_MAX, ConsumerGroupConfig
from pyreplog.partition.protocol.partition_state import REPLICAS_MAX

_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(Settings):
    """Settings of a Kafka listener; Kafka's name is in parentheses where there is one.

    The settings of groups have the defaults and bounds of `ConsumerGroupConfig`: see `groups`.

    Attributes:
        max_request_bytes: maximum size of a request, bytes (`socket.request.max.bytes`). A longer one closes its
            connection.
        incomplete_request_bytes: maximum bytes of memory for requests that have not arrived whole, of all connections
            (`queued.max.request.bytes`), in addition to 16 KiB of each connection. Connections that need more are not
            read until others have received their requests.
        max_request_items: maximum number of items in all arrays of a request. A request with more closes its
            connection.
        connections: maximum number of connections (`max.connections`); further ones are closed.
        idle_ms: milliseconds without a request after which a connection is closed (`connections.max.idle.ms`).
        request_ms: milliseconds that a request may take to arrive, from its first byte to its last; also for a TLS
            handshake.
        stall_ms: milliseconds after which a connection is closed if its client takes no bytes of the responses in its
            queue.
        queued_bytes: bytes of queued responses of one connection above which no more requests are read from it.
        inflight_requests: number of unanswered requests of one connection from which on no more requests are read from
            it.
        fetch_bytes: maximum bytes of one fetch, whatever it asks for (`fetch.max.bytes`).
        fetch_wait_ms: maximum milliseconds for which a fetch waits, whatever it asks for.
        auto_create_topics: whether a missing topic is created in the background when a client asks for its metadata,
            unless the client forbids it (`auto.create.topics.enable`).
        partitions: number of partitions of topics that are created without one (`num.partitions`).
        replication_factor: replicas of topics that are created without a number (`default.replication.factor`).
        min_isr: minimum in-sync replicas of topics that are created without a number (`min.insync.replicas`).
        offsets_partitions: number of partitions of `__consumer_offsets` (`offsets.topic.num.partitions`) when it is
            created. If it exists, its number of partitions is used.
        offsets_replication_factor: replicas of `__consumer_offsets` (`offsets.topic.replication.factor`); fewer if
            fewer brokers are registered when a client first asks for a coordinator.
        rebalance_delay_ms: milliseconds for which an empty group waits for more members
            (`group.initial.rebalance.delay.ms`).
        consumer_session_timeout_ms: milliseconds without a heartbeat after which a member of a consumer group (KIP-848)
            is removed (`group.consumer.session.timeout.ms`).
        consumer_heartbeat_interval_ms: milliseconds between two heartbeats of such a member
            (`group.consumer.heartbeat.interval.ms`); less than its session time-out.
        consumer_max_size: maximum number of members of such a group (`group.consumer.max.size`).
        consumer_assignors: assignors that such members may choose, separated by commas; the first one is the default
            (`group.consumer.assignors`).
        admin_threads: number of threads for calls that write metadata or read the disk for long, for produces with
            compressed batches of more than 16 KiB, and for fetches of partitions together with topics on ledgers.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    max_request_bytes: int = MAX_REQUEST_BYTES
    incomplete_request_bytes: int = 256 << 20
    max_request_items: int = 1 << 20
    connections: int = 4096
    idle_ms: int = 600_000
    request_ms: int = 60_000
    stall_ms: int = 60_000
    queued_bytes: int = 16 << 20
    inflight_requests: int = 256
    fetch_bytes: int = 55 << 20
    fetch_wait_ms: int = 60_000
    auto_create_topics: bool = True
    partitions: int = 1
    replication_factor: int = 1
    min_isr: int = 1
    offsets_partitions: int = ConsumerGroupConfig.offsets_partitions
    offsets_replication_factor: int = 3
    rebalance_delay_ms: int = ConsumerGroupConfig.initial_rebalance_delay_ms
    consumer_session_timeout_ms: int = ConsumerGroupConfig.consumer_session_timeout_ms
    consumer_heartbeat_interval_ms: int = ConsumerGroupConfig.consumer_heartbeat_interval_ms
    consumer_max_size: int = ConsumerGroupConfig.consumer_max_size
    consumer_assignors: str = ConsumerGroupConfig.consumer_assignors
    admin_threads: int = 2

    def __post_init__(self) -> None:
        self._check_int("max_request_bytes", 1024, (1 << 31) - 1)
        self._check_int("incomplete_request_bytes", 1 << 16, 1 << 40)
        self._check_int("max_request_items", 1, 1 << 24)
        self._check_int("connections", 1, 1 << 20)
        for name in ("idle_ms", "request_ms", "stall_ms"):
            self._check_int(name, 1, _DAY_MS)
        self._check_int("queued_bytes", 1, 1 << 40)
        self._check_int("inflight_requests", 1, 1 << 20)
        self._check_int("fetch_bytes", 1, 1 << 30)
        self._check_int("fetch_wait_ms", 0, _DAY_MS)
        self._check_int("partitions", 1, 65_536)
        self._check_int("replication_factor", 1, REPLICAS_MAX)
        self._check_int("min_isr", 1, REPLICAS_MAX)
        self._check_int("offsets_replication_factor", 1, REPLICAS_MAX)
        self._check_int("rebalance_delay_ms", 0, REBALANCE_DELAY_MS_MAX)
        self._check_int("admin_threads", 1, 64)
        _ = self.groups  # checks the settings of groups

    @property
    def groups(self) -> ConsumerGroupConfig:
        """The settings of the group coordinator: those that this class has as well, and defaults for the others."""
        owned = {field.name for field in fields(ConsumerGroupConfig)}
        shared = {field.name: getattr(self, field.name) for field in fields(self) if field.name in owned}
        return ConsumerGroupConfig(**shared, initial_rebalance_delay_ms=self.rebalance_delay_ms)
