"""PartitionClient: topics of partitions, for users."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from pyreplog.clock import Clock, SystemClock
from pyreplog.coroutines import check_may_block, in_thread
from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, PartitionUnavailableError
from pyreplog.handles import Handle
from pyreplog.log.files import RealFiles
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.partition.broker import Broker
from pyreplog.partition.client.leader_requests import LeaderRequests
from pyreplog.partition.client.partition_handle import isolation_of
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.client.partitions import Partitions
from pyreplog.partition.client.partitions_overview import PartitionsOverview
from pyreplog.partition.client.timers import Timers
from pyreplog.partition.client_requests import ClientTransport
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.metadata_cache import MetadataCache, PartitionId
from pyreplog.partition.metadata.producer_ids import ProducerIds
from pyreplog.partition.metadata.topic_metadata import (
    TopicMetadata,
    create_topic,
    delete_topic,
    find_topic,
    list_topics,
)
from pyreplog.partition.partition_status import broker_statuses, partition_status
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.requests import PartitionQuery
from pyreplog.partition.tcp_transport import TCPTransport
from pyreplog.partition.topic_partition import TopicPartition

_RETRY_S = 0.2


class PartitionClient(Handle):
    """A client of a cluster of partitions, made by `connect` or `embedded`.

    It reads leaders from the metadata store, and retries requests until a leader answers or the call times out. Any
    thread may use it. In an event loop use `async with` and the `_async` forms.

    Example:
        ```python
        with PartitionClient.embedded("data") as client:
            topic = client.create_topic("flights", partitions=6, replication_factor=3, min_isr=2)
            with topic.producer() as producer:
                producer.submit(b"departed", key=b"LH 400")
                producer.flush()
            for partition in topic:
                for batch in partition.read():
                    print(partition.number, batch.values())
        ```
    """

    def __init__(
        self, stack: ExitStack, store: MetadataStore, transport: ClientTransport | None, clock: Clock,
        config: ProducerConfig, tcp: _TCPSettings | None, brokers: Mapping[str, Broker],
    ) -> None:  # fmt: skip
        """Use `connect` or `embedded`. `stack` closes the objects that they have opened."""
        self._store, self._clock, self._config = store, clock, config
        self._lock = threading.Lock()
        self._topics: dict[tuple[str, str, str, ProducerConfig], Partitions] = {}
        self._brokers = brokers
        self._requests: LeaderRequests | None = None
        with stack:
            config.check()
            timers = Timers()
            stack.callback(timers.close)
            cache = MetadataCache(store, self._Listener(self), lambda call: timers.call_later(_RETRY_S, call))
            stack.callback(cache.close)
            if not cache.wait(config.timeout_s):
                raise PartitionUnavailableError("", "", f"the {store.what} could not be read in {config.timeout_s} s")
            if tcp is not None:
                transport = tcp.open(stack, store, cache, clock)
            assert transport is not None
            self._requests = LeaderRequests(cache, transport, timers)
            self._ids = ProducerIds(store)
            stack.callback(self._close_topics)
            super().__init__("partition client")
            self._stack = stack.pop_all()

    @classmethod
    def connect(
        cls, metadata_url: str, *, secret: Secret | None = None, tls: ssl.SSLContext | None = None,
        limits: Limits | None = None, config: ProducerConfig | None = None, clock: Clock | None = None,
    ) -> Self:  # fmt: skip
        """Return a client of brokers over TCP, at their addresses in the metadata store.

        Args:
            metadata_url: URL of the metadata store, as "sqlite:data/metadata" or "zk://host:port/root".
            secret: the secret of the cluster.
            tls: a context for clients; None: no TLS.
            limits: limits of connections.
            config: settings of producers, unless `topic` has others; its `timeout_s` bounds each call.
            clock: source of time.

        Raises:
            PartitionUnavailableError: the metadata store could not be read in time.
            ReplogError: errors of `open_store`.
        """
        check_may_block("connect")
        with ExitStack() as stack:
            store = open_store(metadata_url)
            stack.callback(store.close)
            tcp = _TCPSettings(secret, tls, limits)
            return cls(stack.pop_all(), store, None, clock or SystemClock(), config or ProducerConfig(), tcp, {})

    @classmethod
    def embedded(
        cls, directory: str | Path, brokers: int = 3, *, config: ProducerConfig | None = None,
        broker_config: BrokerConfig | None = None, clock: Clock | None = None,
    ) -> Self:  # fmt: skip
        """Return a client with its own brokers, which run in this process until it is closed.

        Args:
            directory: directory of the brokers and of the metadata; created if it does not exist.
            brokers: number of brokers, 1 to 100; at least as many as before.
            config: as for `connect`.
            broker_config: settings of the brokers.
            clock: source of time.

        Raises:
            LockedError: another process has the directory open.
            ReplogError: errors of `Broker`.
        """
        check_may_block("embedded")
        if type(brokers) is not int or not 1 <= brokers <= 100:
            raise InvalidArgumentError(f"brokers: expected 1 to 100, found {brokers!r}")
        path = Path(directory)
        RealFiles().make_directory(path)
        used_clock, transport = clock or SystemClock(), LocalTransport()
        with ExitStack() as stack:
            store = open_store(f"sqlite:{path / 'metadata'}")
            stack.callback(store.close)
            members: dict[str, Broker] = {}
            for number in range(brokers):
                name = f"broker-{number}"
                broker = Broker(path / name, name, store, transport, config=broker_config, clock=used_clock)
                stack.callback(broker.close)
                stack.callback(transport.unregister, name)
                transport.register(name, broker.replicas, broker.transactions.verify)
                members[name] = broker
            used_config = config or ProducerConfig()
            return cls(stack.pop_all(), store, transport, used_clock, used_config, None, members)

    class _Listener:
        """Wakes requests that wait for a leader."""

        def __init__(self, client: PartitionClient) -> None:
            self._client = client

        def topics_changed(self, topics: Set[str]) -> None:
            self._notify()

        def states_changed(self, partitions: Set[PartitionId]) -> None:
            self._notify()

        def brokers_changed(self) -> None:
            self._notify()

        def _notify(self) -> None:
            if self._client._requests is not None:
                self._client._requests.metadata_changed()

    @property
    def store(self) -> MetadataStore:
        """The metadata store, which the client closes."""
        return self._store

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """The brokers of this process, by name; empty after `connect`."""
        return self._brokers

    # ---- topics ---------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int | None = None, min_isr: int = 1,
        requires_sync: bool = False, unclean_election: bool = False,
        assignment: Mapping[int, Sequence[str]] | None = None,
    ) -> Partitions:  # fmt: skip
        """Create a topic, and wait until all its partitions have leaders.

        Args:
            name: name of the topic.
            partitions: number of partitions.
            replication_factor: replicas of each partition; None: 3, or as many as there are brokers.
            min_isr: number of in-sync replicas that an append with acks=-1 needs.
            requires_sync: whether records are committed only when all in-sync replicas have synced them to disk.
            unclean_election: whether a replica that may lack committed records may lead, if no other can.
            assignment: partition -> brokers, the preferred leader first; None: controllers choose.

        Raises:
            TopicExistsError: a topic of that name exists.
            InvalidArgumentError: an argument is out of its bounds.
            PartitionUnavailableError: it is created, but there are too few brokers, or its leaders were not elected in
                time.
            ReplogError: errors of the metadata store.
        """
        check_may_block("create_topic")
        self._check_open()
        living = [each for each in self._leaders.cache.brokers().values() if not each.is_fenced]
        factor = replication_factor or max(min(3, len(living)), 1)
        created = create_topic(
            self._store, name, partitions=partitions, replication_factor=factor, now_us=self._clock.now_us(),
            min_isr=min_isr, requires_sync=requires_sync, unclean_election=unclean_election, assignment=assignment,
        )  # fmt: skip

        unled = [TopicPartition(name, number) for number in reversed(range(partitions))]

        def is_led() -> bool:
            while unled and self._leaders.leader(unled[-1], created.topic_id):
                unled.pop()
            return not unled

        if not self._leaders.wait_for(is_led, self._config.timeout_s):
            raise PartitionUnavailableError(name, "", "the topic is created, and not all its partitions have leaders")
        return self._open_topic(name, created, self._config, "high_watermark")

    create_topic_async = in_thread(create_topic)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. Controllers remove it a little later.

        Args:
            name: name of the topic.

        Raises:
            NoSuchTopicError: there is no such topic.
            ReplogError: errors of the metadata store.
        """
        check_may_block("delete_topic")
        self._check_open()
        delete_topic(self._store, name)

    delete_topic_async = in_thread(delete_topic)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted. Raises errors of the metadata store."""
        check_may_block("topics")
        self._check_open()
        found = ((name, find_topic(self._store, name)) for name in list_topics(self._store))
        return [name for name, topic in found if topic is not None and not topic.is_deleted]

    topics_async = in_thread(topics)

    def topic(
        self, name: str, *, config: ProducerConfig | None = None, isolation: str = "high_watermark"
    ) -> Partitions:  # fmt: skip
        """Return a topic.

        Args:
            name: name of the topic.
            config: settings of its producers; None: those of the client.
            isolation: isolation level of reads: "high_watermark": all committed records; "last_stable": committed
                records that belong to no open and no aborted transaction.

        Raises:
            NoSuchTopicError: there is no such topic.
            InvalidArgumentError: a setting is out of its bounds.
            ReplogError: errors of the metadata store.
        """
        check_may_block("topic")
        self._check_open()
        chosen = config or self._config
        chosen.check()
        stored = find_topic(self._store, name)
        if stored is None or stored.is_deleted:
            raise NoSuchTopicError(name, "there is no such topic")

        def is_known() -> bool:
            topic = self._leaders.topic(name)
            return topic is not None and topic.topic_id == stored.topic_id

        if not self._leaders.wait_for(is_known, self._config.timeout_s):
            raise PartitionUnavailableError(name, "", "the metadata store could not be followed in time")
        return self._open_topic(name, stored, chosen, isolation)

    topic_async = in_thread(topic)

    def overview(
        self, topics: Sequence[str] | None = None, *,
        queries: Mapping[TopicPartition, PartitionQuery] | None = None, asks_leaders: bool = True,
    ) -> PartitionsOverview:  # fmt: skip
        """Return the partitions and brokers of the cluster as rows.

        Each live leader is asked once. A broker that does not answer is no error: its descriptions are missing, and a
        note names it.

        Args:
            topics: names of topics; None: all, including Kafka's internal ones. The counts of brokers always include
                all topics.
            queries: further queries to leaders, by partition.
            asks_leaders: whether to ask leaders; False: only the metadata store is read.

        Raises:
            PartitionUnavailableError: the metadata store could not be read in time.
            ClosedError: the client was closed.
        """
        check_may_block("overview")
        self._check_open()
        cache = self._leaders.cache

        unknown = list(cache.topics())

        def are_known() -> bool:
            while unknown:
                topic = self._leaders.topic(unknown[-1])
                if topic is not None and not cache.has_states(topic.topic_id):
                    return False
                unknown.pop()
            return True

        if not self._leaders.wait_for(are_known, self._config.timeout_s):
            raise PartitionUnavailableError("", "", "the states of partitions could not be read in time")
        brokers, states = cache.brokers(), dict[TopicPartition, PartitionState]()
        for name, topic in sorted(cache.topics().items()):
            for partition, state in () if topic.is_deleted else cache.partitions(topic.topic_id):
                states[TopicPartition(name, partition.number)] = state
        asked: dict[str, dict[TopicPartition, PartitionQuery]] = {}
        for each, state in states.items():
            is_led = state.leader in brokers and not brokers[state.leader].is_fenced
            if is_led and asks_leaders and (topics is None or each.topic in topics):
                asked.setdefault(state.leader, {})[each] = (queries or {}).get(each, PartitionQuery())
        descriptions, errors = self._leaders.describe(asked, self._config.timeout_s)
        every = [partition_status(name, state, descriptions.get(name), brokers) for name, state in states.items()]
        chosen = tuple(row for row in every if topics is None or row.topic in topics)
        notes = tuple(f"broker {broker}: {error}" for broker, error in errors.items())
        return PartitionsOverview(chosen, broker_statuses(every, brokers), descriptions, notes)

    overview_async = in_thread(overview)

    def _open_topic(self, name: str, topic: TopicMetadata, config: ProducerConfig, isolation: str) -> Partitions:
        key = (name, topic.topic_id, isolation, config)
        with self._lock:
            partitions = self._topics.get(key)
            if partitions is None:
                partitions = Partitions(
                    name, topic, self._leaders, self._ids, self._clock, config, isolation_of(isolation)
                )  # fmt: skip
                self._topics[key] = partitions
            return partitions

    @property
    def _leaders(self) -> LeaderRequests:
        assert self._requests is not None
        return self._requests

    def _close_topics(self) -> None:
        with self._lock:
            topics = list(self._topics.values())
        for topic in topics:
            topic.close()

    def _do_close(self) -> None:
        self._stack.close()


class _TCPSettings:
    """The settings of a client's TCP connections."""

    def __init__(self, secret: Secret | None, tls: ssl.SSLContext | None, limits: Limits | None) -> None:
        self._secret, self._tls, self._limits = secret, tls, limits

    def open(self, stack: ExitStack, store: MetadataStore, cache: MetadataCache, clock: Clock) -> ClientTransport:
        reactor = Reactor(clock=clock)
        stack.callback(reactor.close)

        def address(broker: str) -> str:
            living = cache.availability(broker)
            return "" if living is None else living.address

        transport = TCPTransport(
            reactor, "", cluster_id(store).hex(), address, secret=self._secret, tls=self._tls, limits=self._limits
        )  # fmt: skip
        stack.callback(transport.close)
        reactor.start()
        return transport
