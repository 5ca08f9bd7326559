"""Three brokers with one replica manager each, over real logs. Fetches between them wait in an inbox; a test's hand
delivers, loses and delays them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pyreplog._native.kafka.record_batch import encode_records
from pyreplog.clock import ManualClock
from pyreplog.errors import DisconnectedError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.partition.catch_up_quota import CatchUpQuota
from pyreplog.partition.config import TopicConfig
from pyreplog.partition.fetch_session_handler import FetchSessionHandler
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.partition import Partition
from pyreplog.partition.producer_snapshot_fetcher import ProducerSnapshotFetcher
from pyreplog.partition.protocol.election import elect
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.protocol.messages import Fetch, FetchRefused
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, PartitionState
from pyreplog.partition.protocol.record_batch import encode_batch
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import FetchResponses, Messages, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory, PurgatoryEntry
from tests.ha.streams import kill

from .partition_logs import open_replica

NAMES = "abc"
LAG_US = 10_000_000
WALL_US = 1_700_000_000_000_000
EVENTS = TopicPartition("events", 0)
SESSIONS = count(1)


def batch(records: int = 1, size: int = 20, **settings: Any) -> bytes:
    """A Kafka record batch; its records have `size` bytes, or more if so many need more."""
    return encode_batch(filler(records, size), records, **{"timestamp_ms": WALL_US // 1000, **settings})


def filler(count: int, size: int) -> bytes:
    """Return encoded records without keys, of `size` bytes if that is enough; the last one has a value."""
    if count < 1:
        return b"r" * size
    values: list[bytes | None] = [None] * count
    times = [0] * count
    short = len(encode_records(values, None, times, None))
    for pad in range(max(size - short, 0), max(size - short - 10, -1), -1):
        values[-1] = b"r" * pad
        if len(encoded := encode_records(values, None, times, None)) <= max(size, short):
            return encoded
    raise AssertionError((count, size))


def messages(*values: bytes) -> Messages:
    return Messages(values)


def config(*, requires_sync: bool = False, lag_us: int = LAG_US, **settings: Any) -> TopicConfig:
    return TopicConfig(replicas=ReplicaConfig(requires_sync=requires_sync, lag_us=lag_us), **settings)


def fetch_alone(
    broker: Broker, fetch: Fetch, *, topic: TopicPartition = EVENTS, max_wait_ms: int = 0, max_bytes: int = 1 << 20
) -> AppendFuture[FetchResponses]:  # fmt: skip
    """As a follower fetches whose session begins with it."""
    fetches = {topic: ReplicaFetch(fetch)}
    request = ReplicaFetchRequest(fetch.member, next(SESSIONS), True, max_wait_ms, max_bytes, fetches)
    return broker.manager.fetch_for_replicas(request)


class HookedPurgatory(Purgatory):
    """Something happens just before a call of it, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before_watch: list[Callable[[], object]] = []  # of the next calls, in their order
        self.before_drain: list[Callable[[], object]] = []

    def watch(self, *args: Any, **settings: Any) -> PurgatoryEntry:
        if self.before_watch:
            self.before_watch.pop(0)()
        return super().watch(*args, **settings)

    def drain(self) -> None:
        if self.before_drain:
            self.before_drain.pop(0)()
        super().drain()


class Cluster:
    """The metadata store, and the network. Answers of the store come at once, unless `store_is_down`; messages wait in
    `inbox`."""

    def __init__(
        self, path: Path, *, min_isr: int = 2, topics: tuple[TopicPartition, ...] = (EVENTS,), replicas: str = NAMES,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.clock = ManualClock(WALL_US)
        self.config = config(**settings)
        self.registered = {name: BrokerRegistration(1) for name in NAMES}
        members = tuple(Member(name, 1) for name in replicas)
        self.states = {topic: (1, PartitionState(tuple(replicas), members, min_isr=min_isr)) for topic in topics}
        self.inbox: list[Callable[[], object]] = []
        self.store_is_down = False
        self.fetch_bytes = 1 << 20
        self.brokers = {name: Broker(self, name, path / name) for name in NAMES}

    def elect(self) -> None:
        for topic, (_, state) in self.states.items():
            after = elect(state, self.registered, requires_sync=self.config.replicas.requires_sync)
            if after is not None:
                self.set(topic, after)

    def lead(self, name: str, topic: TopicPartition = EVENTS) -> None:
        self.set(topic, self.states[topic][1].led_by(name))

    def set(self, topic: TopicPartition, state: PartitionState) -> None:
        self.states[topic] = self.states[topic][0] + 1, state
        for broker in self.brokers.values():
            self.inbox.append(lambda broker=broker: broker.refresh(topic))  # type: ignore[misc]

    def compare_and_set(
        self, topic: TopicPartition, version: int, state: PartitionState, done: Callable[[int | None], object]
    ) -> None:  # fmt: skip
        if self.store_is_down:
            self.inbox.append(lambda: self.compare_and_set(topic, version, state, done))
        elif self.states[topic][0] == version:
            self.set(topic, state)
            done(self.states[topic][0])
        else:
            done(0)

    def load(self, topic: TopicPartition, done: Callable[[int, PartitionState], object]) -> None:
        done(*self.states[topic])

    def deliver(self) -> None:
        """What waits in the inbox, and not what comes of it."""
        waiting, self.inbox = self.inbox, []
        for act in waiting:
            act()

    def settle(self, rounds: int = 12) -> None:
        for _ in range(rounds):
            self.deliver()

    def register(self, name: str, incarnation: int, **settings: bool) -> None:
        self.registered = {**self.registered, name: BrokerRegistration(incarnation, **settings)}
        for broker in self.brokers.values():
            broker.manager.brokers_changed(self.registered)

    def advance_ms(self, ms: int) -> None:
        self.clock.advance(ms * 1000)
        for broker in self.brokers.values():
            broker.manager.expire()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


class FetchRequest:
    """A request of followers that the leader gets when it is called, and then its answer that the followers get."""

    def __init__(self, follower: Broker, leader: str, request: ReplicaFetchRequest) -> None:
        self._follower, self._leader, self._request = follower, leader, request
        self._life = follower.life
        self._answer: AppendFuture[FetchResponses] | None = None

    def __call__(self) -> None:
        if self._answer is not None:
            self._take_answer(self._answer)
        elif self._follower.is_fetching:
            leader = self._follower.cluster.brokers[self._leader]
            leader.requests.append(self)
            self._answer = leader.manager.fetch_for_replicas(self._request)
            self._answer.add_done_callback(partial(self._answered, leader.requests))
        else:
            self._deliver_later()

    def _answered(self, requests: list[FetchRequest], _: AppendFuture[FetchResponses]) -> None:
        requests.remove(self)
        self._deliver_later()

    def lose(self) -> None:
        """Lose the request or its answer: the connection breaks, and the follower sees that."""
        self._answer = AppendFuture[FetchResponses]()
        set_exception(self._answer, DisconnectedError("lost"))
        self._deliver_later()

    def _deliver_later(self) -> None:
        self._follower.cluster.inbox.append(self)

    def _take_answer(self, answer: AppendFuture[FetchResponses]) -> None:
        follower = self._follower
        if self._life != follower.life:
            return
        handler = follower.handlers[self._leader]
        if answer.exception() is not None:
            for name, fetch in handler.failed(self._request).items():
                follower.of(name).fetch_timed_out(fetch.number)
        else:
            handler.answered(self._request, answer.result())
            for name, data in answer.result().items():
                response = data.response
                assert response is not None
                follower.of(name).fetch_answered(response)
                if isinstance(response, FetchRefused):
                    follower.cluster.inbox.append(partial(follower.of(name).fetch_timed_out, response.number))
        follower.send_requests(self._leader)


class Broker:
    """A broker of the cluster, with replicas of all topics."""

    def __init__(self, cluster: Cluster, name: str, path: Path) -> None:
        self.cluster, self.name, self.path = cluster, name, path
        self.is_fetching = self.is_looking = True
        self.is_answering = True  # requests for producer snapshots
        self.life, self.handlers = 0, dict[str, FetchSessionHandler]()
        self.requests: list[FetchRequest] = []  # of followers, which wait for an answer of this broker
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._open()

    def _open(self) -> None:
        cluster, name = self.cluster, self.name
        self.last_fetch: Fetch | None = None
        self.purgatory = HookedPurgatory()
        self.manager = ReplicaManager(self.purgatory, cluster.clock)
        for topic in cluster.states:
            log = self.logs[topic] = open_replica(self.path / str(topic), clock=cluster.clock)
            self.manager.add(
                Partition(
                    topic, log, Member(name, cluster.registered[name].incarnation), cluster.config, store=cluster,
                    fetcher=self, purgatory=self.purgatory, clock=cluster.clock, brokers=cluster.registered,
                    request_snapshot=self._request_snapshot,
                )
            )  # fmt: skip
            self.refresh(topic)

    def restart(self) -> None:
        """It is killed, and starts again: what it had is in the page cache. What was sent to it does not arrive."""
        for log in self.logs.values():
            kill(log)
        self.life += 1
        self.handlers = {}
        requests, self.requests = self.requests, []
        for request in requests:
            request.lose()
        self._open()

    @property
    def partition(self) -> Partition:
        return self.of(EVENTS)

    @property
    def epoch(self) -> LeaderEpoch:
        """In which it leads."""
        epoch = self.log.leading_epoch
        assert epoch is not None
        return epoch

    @property
    def log(self) -> PartitionLog:
        return self.logs[EVENTS]

    def of(self, topic: TopicPartition) -> Partition:
        partition = self.manager.partition(topic)
        assert partition is not None
        return partition

    def refresh(self, topic: TopicPartition) -> None:
        if self.is_looking:
            self.of(topic).state_changed(*self.cluster.states[topic])

    def send_fetch(self, topic: TopicPartition, leader: str, fetch: Fetch) -> None:
        self.last_fetch = fetch
        for other, handler in self.handlers.items():
            if other != leader:
                handler.forget(topic)
        if leader not in self.handlers:
            member = Member(self.name, self.cluster.registered[self.name].incarnation)
            self.handlers[leader] = FetchSessionHandler(
                member, next(SESSIONS) << 32, max_wait_ms=500, max_bytes=1 << 20,
                quota=CatchUpQuota(None, self.cluster.clock), is_in_sync=lambda _: True,
            )  # fmt: skip
        self.handlers[leader].add(topic, fetch)
        self.send_requests(leader)

    def send_requests(self, leader: str) -> None:
        handler = self.handlers[leader]
        handler.max_bytes = self.cluster.fetch_bytes
        while request := handler.next_request(self.cluster.clock.monotonic_us()):
            self.cluster.inbox.append(FetchRequest(self, leader, request))

    def _request_snapshot(self, partition: Partition) -> None:
        self.cluster.inbox.append(partial(self.fetch_snapshot, partition))

    def fetch_snapshot(self, partition: Partition) -> None:
        """Search for a lost producer snapshot at the other brokers, once; without a result again later."""
        transport = LocalTransport()
        for broker in self.cluster.brokers.values():
            if broker.is_answering:
                transport.register(broker.name, broker.manager)
        with ProducerSnapshotFetcher(transport) as fetcher:
            is_done = fetcher.fetch(partition)
        if not is_done and partition is self.manager.partition(partition.name):
            self._request_snapshot(partition)

    def retry_later(self, topic: TopicPartition) -> None:
        self.cluster.inbox.append(lambda: self.of(topic).follow_again())

    def close(self) -> None:
        for partition in self.manager:
            partition.close()
