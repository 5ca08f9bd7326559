"""Three brokers with one replica manager each, over real logs. Fetches between them wait in an inbox; a test's hand
delivers, loses and delays them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pyreplog.clock import ManualClock
from pyreplog.future import AppendFuture
from pyreplog.partition.config import TopicConfig
from pyreplog.partition.partition import Partition
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
    """A Kafka record batch; of records that no broker looks into."""
    return encode_batch(b"r" * size, records, **{"timestamp_ms": WALL_US // 1000, **settings})


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
            self.inbox.append(lambda broker=broker: broker.look(topic))  # type: ignore[misc]

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


class Broker:
    """Its fetches are sent as they are asked for; answers come back when they are there."""

    def __init__(self, cluster: Cluster, name: str, path: Path) -> None:
        self.cluster, self.name, self.path = cluster, name, path
        self.is_fetching = self.is_looking = True
        self.life, self.sessions = 0, dict[str, int]()
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
                )
            )  # fmt: skip
            self.look(topic)

    def restart(self) -> None:
        """It is killed, and starts again: what it had is in the page cache. What was sent to it does not arrive."""
        for log in self.logs.values():
            kill(log)
        self.life += 1
        self.sessions = {}
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

    def look(self, topic: TopicPartition) -> None:
        if self.is_looking:
            self.of(topic).state_changed(*self.cluster.states[topic])

    def send_fetch(self, topic: TopicPartition, leader: str, fetch: Fetch) -> None:
        """One partition a fetch: as many requests as the schedule likes."""
        self.last_fetch = fetch
        self._send(leader, {topic: ReplicaFetch(fetch)})

    def _send(self, leader: str, fetches: dict[TopicPartition, ReplicaFetch]) -> None:
        life, max_bytes = self.life, self.cluster.fetch_bytes

        def send() -> None:
            if not self.is_fetching:
                self.cluster.inbox.append(send)
                return
            is_first = leader not in self.sessions
            session = self.sessions.setdefault(leader, next(SESSIONS))
            member = Member(self.name, self.cluster.registered[self.name].incarnation)
            request = ReplicaFetchRequest(member, session, is_first, 500, max_bytes, fetches)
            answer = self.cluster.brokers[leader].manager.fetch_for_replicas(request)
            answer.add_done_callback(lambda done: self.cluster.inbox.append(lambda: receive(session, done)))

        def receive(session: int, answer: AppendFuture[FetchResponses]) -> None:
            if life != self.life:
                return
            if answer.exception() is not None:  # the leader started again, or another session has begun
                if self.sessions.get(leader) == session:
                    del self.sessions[leader]
                for name, each in fetches.items():
                    self.of(name).fetch_timed_out(each.fetch.number)
                return
            for name, data in answer.result().items():
                response = data.response
                assert response is not None
                self.of(name).fetch_answered(response)
                if isinstance(response, FetchRefused):
                    self.cluster.inbox.append(partial(self.of(name).fetch_timed_out, response.number))
            if not answer.result():
                self._send(leader, {})

        self.cluster.inbox.append(send)

    def retry_later(self, topic: TopicPartition) -> None:
        self.cluster.inbox.append(lambda: self.of(topic).follow_again())

    def close(self) -> None:
        for partition in self.manager:
            partition.close()
