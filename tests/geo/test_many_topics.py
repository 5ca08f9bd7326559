"""Thousands of topics have a policy: the cost of a round does not grow with idle topics, and servers share the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pyreplog import TopicOwnedError
from pyreplog.clock import ManualClock
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.future import AppendFuture, set_result
from pyreplog.geo.clusters import add_cluster
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.geo.replicator_manager import REREAD_S, ReplicatorManager
from pyreplog.geo.server_registration import choose_server
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.store import Versioned
from pyreplog.origins.origin import Origin
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.ownership import OWNERS, owner_key
from pyreplog.topic_names import topic_key
from tests.geo.fakes import Factory, remote
from tests.waiting import until

TOPICS, ACTIVE = 3000, 30
END = TopicPosition(10, 10, 100)


class CountingStore(MemoryStore):
    """Counts calls, and the keys of each `get_many`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def _get(self, key: str) -> Versioned | None:
        self.counts["get"] += 1
        return super()._get(key)

    def _get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        self.counts["get_many"] += 1
        return super()._get_many(keys)

    def _list(self, key: str) -> list[str]:
        self.counts["list"] += 1
        return super()._list(key)

    def _create(self, key: str, value: bytes) -> int:
        self.counts["write"] += 1
        return super()._create(key, value)

    def _put(self, key: str, value: bytes, version: int) -> int:
        self.counts["write"] += 1
        return super()._put(key, value, version)

    def took(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts


class FakeTopic:
    """An open topic, with the attributes that the manager reads."""

    def __init__(self, name: str) -> None:
        self.name, self.gone = name, AppendFuture[None]()
        self.origin = Origin(bytes(16), name)
        self.on_origin_renewed: list[Callable[[], object]] = []
        self.delete_guards: list[Callable[[], object]] = []
        self.managed = SimpleNamespace(start=TopicPosition(0, 0, 0), end=END)
        self.config, self.maintenance = TopicConfig(durability="synced"), SimpleNamespace(trim_guards=[])
        self.has_homes = False

    def internal_stats(self) -> Any:
        return SimpleNamespace(cursors=())


class FakeTopics:
    """The topics of one server, which owns those that it opens. Rounds of the manager run when a test says so."""

    def __init__(self, store: MemoryStore, address: str) -> None:
        self.metadata, self.address, self.runtime = store, address, self
        self.on_opened: list[Callable[[Any], object]] = []
        self.table: dict[str, FakeTopic] = {}
        self.asked: list[str] = []
        self.is_alive = True

    def wake_after(self, seconds: float, call: Callable[[], None]) -> None:
        return None

    def work(self, job: Callable[[], object]) -> None:
        return None

    def opened(self) -> list[Any]:
        return list(self.table.values())

    def partitions_of(self, name: str) -> int | None:
        return None

    def open(self, name: str, *, create: bool = True) -> Any:
        assert not create
        self.asked.append(name)
        if self.metadata.get(owner_key(name)) is not None:
            raise TopicOwnedError(name, "another server was quicker")
        self.metadata.create(owner_key(name), self.address.encode())
        topic = self.table[name] = FakeTopic(name)
        for call in self.on_opened:
            call(topic)
        return topic

    def close(self) -> None:
        """Give up all topics, as a server that was killed."""
        for name, topic in self.table.items():
            stored = self.metadata.get(owner_key(name))
            assert stored is not None
            self.metadata.delete(owner_key(name), stored.version)
            set_result(topic.gone, None)
        self.table.clear()


class Server:
    def __init__(self, store: MemoryStore, clock: ManualClock, number: int) -> None:
        self.topics, self.made = FakeTopics(store, f"server-{number}:1"), Factory()
        self.geo = GeoReplication(store, clock, self.made)
        self.geo.start(self.topics, lambda: True)

    @property
    def manager(self) -> ReplicatorManager:
        assert self.geo.replicator_manager is not None
        return self.geo.replicator_manager

    def kill(self) -> None:
        self.geo.close()
        self.topics.close()


def name(at: int) -> str:
    return f"shop.topic-{at:05}"


@pytest.fixture(scope="module")
def listed() -> Iterator[CountingStore]:
    """Topics that were closed in good order. The target lacks messages of some of them."""
    with CountingStore() as store:
        for at in range(TOPICS):
            ledger = ChainLedger(at, TopicPosition(0, 0, 0), 1, 2, 10, 10, 100, 2)
            chain = LedgerChain(
                topic=name(at), token="t", epoch=1, owner="o", nonce="n", created_us=1, config=TopicConfig(),
                ledgers=(ledger,),
            )  # fmt: skip
            store.create(topic_key(name(at)), chain.encode())
            mark = END if at >= ACTIVE else TopicPosition(9, 9, 90)
            snapshot = SystemCursorRecord(1, mark, b"").to_bytes()
            metadata = SubscriptionMetadata(token="t", created_us=1, snapshot=snapshot)
            create_subscription(store, name(at), "pyreplog.geo.b", metadata)
        add_cluster(store, "b", remote("b"))
        with GeoReplication(store, ManualClock(1_000_000), Factory()) as geo:
            geo.set_policy("shop.", prefix=True, targets=["b"])
        yield store


def owned(store: CountingStore) -> int:
    return len(store.list(OWNERS))


def test_only_what_is_unsent_costs_anything(listed: CountingStore) -> None:
    clock = ManualClock(1_000_000)
    servers = [Server(listed, clock, number) for number in range(3)]
    try:
        for server in servers:
            server.manager.round()
        assert owned(listed) == 0, "the first takes all before the others have registered"
        listed.took()
        for server in servers:
            server.manager.round()
        until(lambda: owned(listed) == ACTIVE)
        first = listed.took()
        assert first["get_many"] <= 3 * (2 * TOPICS // 256 + 12), first
        for server in servers:
            server.manager.round()
        assert sorted(pair for server in servers for pair in server.made.pairs()) == [
            (name(at), "b") for at in range(ACTIVE)
        ]
        assert sum(len(server.topics.asked) for server in servers) == ACTIVE, "each topic is opened by one server alone"

        settled = [server.manager.round() for server in servers]
        listed.took()
        for server in servers:
            server.manager.round()
        idle = listed.took()
        assert all(settled) and idle == {"get": 3, "list": 9}, "a round writes, or asks for single topics"
        clock.advance(int(REREAD_S * 1e6) + 1)
        servers[0].manager.round()
        assert listed.took().get("write", 0) == 0
    finally:
        for server in servers:
            server.kill()


def test_the_topics_of_a_killed_server_go_to_the_others(listed: CountingStore) -> None:
    clock = ManualClock(1_000_000)
    servers = [Server(listed, clock, number) for number in range(3)]
    try:
        for server in servers * 2:
            server.manager.round()
        until(lambda: owned(listed) == ACTIVE)
        victim, *others = servers
        lost = {*victim.topics.table}
        before = [len(server.topics.asked) for server in others]
        victim.kill()
        assert all("remove" not in fake.calls for fake in victim.made.made)
        for server in others:
            server.manager.round()
        until(lambda: owned(listed) == ACTIVE)
        taken = [name for server, count in zip(others, before, strict=True) for name in server.topics.asked[count:]]
        assert sorted(taken) == sorted(lost), "others than those of the dead server move, or two open the same"
    finally:
        for server in servers[1:]:
            server.kill()


def test_topics_are_shared_evenly_and_move_little() -> None:
    names = [name(at) for at in range(4000)]
    four, three = [f"s{at}" for at in range(4)], [f"s{at}" for at in range(3)]
    before = {topic: choose_server(topic, four) for topic in names}
    after = {topic: choose_server(topic, reversed(three)) for topic in names}
    assert all(800 < count < 1200 for count in Counter(before.values()).values())
    assert all(before[topic] in ("s3", after[topic]) for topic in names)
    assert len(Counter(after[topic] for topic in names if before[topic] == "s3")) == 3
