"""Brokers in one process: topics are served, leaders move, replicas catch up, nothing acknowledged is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import LockedError, NoSuchTopicError, WrongIncarnationError
from pyreplog.log.files import RealFiles
from pyreplog.log.unclean_shutdown_marker import NAME as UNCLEAN
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.partition_changes import (
    ElectionType,
    elect_leaders,
    list_reassignments,
    reassign_partitions,
)
from pyreplog.partition.metadata.topic_metadata import (
    TopicMetadata,
    alter_topic,
    create_partitions,
    create_topic,
    delete_topic,
    find_topic,
    state_key,
)
from pyreplog.partition.metrics import broker_metrics
from pyreplog.partition.protocol.election import reassign
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.protocol.record_batch import encode_batch
from pyreplog.partition.requests import Messages
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_transport import TransactionTransport
from tests.waiting import PATIENCE_S, until

from .managers import filler

TOPIC = TopicPartition("flights", 0)


class Cluster:
    """Brokers of one process over one metadata store, which each has open for itself."""

    def __init__(self, path: Path, *, over_tcp: bool) -> None:
        self._path, self.transport = path, None if over_tcp else LocalTransport()
        self.store = SQLiteStore(path / "metadata")
        self.stores: dict[str, SQLiteStore] = {}
        self.brokers: dict[str, Broker] = {}

    def start(
        self, *names: str, transaction_transport: TransactionTransport | None = None, **settings: Any
    ) -> None:  # fmt: skip
        config = BrokerConfig(**{"segment_bytes": 1 << 20, "lag_ms": 2_000, **settings})
        for name in names:
            self.stores[name] = SQLiteStore(self._path / "metadata")
            broker = Broker(
                self._path / name, name, self.stores[name], self.transport, config=config,
                transaction_transport=transaction_transport,
            )  # fmt: skip
            if self.transport is not None:
                self.transport.register(name, broker.replicas, broker.transactions.verify)
            self.brokers[name] = broker

    def stop(self, name: str) -> None:
        self.brokers.pop(name).close()
        if self.transport is not None:
            self.transport.unregister(name)
        self.stores.pop(name).close()

    def create(self, partitions: int = 1, replication_factor: int = 3, **settings: Any) -> TopicMetadata:
        return create_topic(
            self.store, "flights", partitions=partitions, replication_factor=replication_factor, now_us=1, **settings
        )

    def leader(self, number: int = 0) -> Broker:
        def look() -> Broker | None:
            for broker in self.brokers.values():
                partition = broker.partition("flights", number)
                if partition is not None and partition.is_leader:
                    return broker
            return None

        return until(look)

    def append(self, *values: bytes, number: int = 0, durable: bool = False) -> int:
        """As a client that tries again until it is acknowledged; returns the offset."""
        name = TopicPartition("flights", number)

        def attempt() -> tuple[int] | None:
            future = self.leader(number).replicas.append_records(
                ACKS_ALL, {name: Messages(values)}, timeout_ms=5_000, durable=durable
            )
            response = future.result(PATIENCE_S)[name]
            return (response.base_offset,) if response.code is ErrorCode.NONE else None

        return until(attempt)[0]

    def read(self, broker: Broker, topic: TopicMetadata, number: int = 0) -> list[bytes]:
        """All values up to the high watermark, as a reader of this broker's directory sees them."""
        with pyreplog.open(broker.directory / f"{topic.topic_id}-{number}", mode="r") as log:
            return [bytes(value) for value in log[:]]

    def await_values(self, topic: TopicMetadata, values: list[bytes], number: int = 0) -> None:
        """Until all brokers show exactly these."""
        for broker in self.brokers.values():
            until(lambda broker=broker: len(self.read(broker, topic, number)) == len(values))
            assert self.read(broker, topic, number) == values

    def state(self, topic: TopicMetadata, number: int = 0) -> PartitionState:
        def look() -> PartitionState | None:
            stored = self.store.get(state_key(topic.topic_id, number))
            return None if stored is None else PartitionState.decode(stored.value)

        return until(look)

    def await_isr(self, topic: TopicMetadata, size: int, number: int = 0) -> None:
        until(lambda: len(self.state(topic, number).isr) == size)

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.store.close)
            for name in list(self.brokers):
                stack.callback(self.stop, name)


@pytest.fixture(params=["in one process", "over TCP"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, over_tcp=request.param == "over TCP")
    yield cluster
    cluster.close()


def directories(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir() if child.is_dir())


def test_a_topic_is_served_by_three_brokers(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(partitions=6, min_isr=2)
    offsets = [cluster.append(b"%d" % value, number=value % 6) for value in range(60)]
    assert offsets == [value // 6 for value in range(60)]
    assert {cluster.leader(number).name for number in range(6)} == {"a", "b", "c"}
    for number in range(6):
        cluster.await_values(topic, [b"%d" % value for value in range(60) if value % 6 == number], number)
        assert len(cluster.state(topic, number).isr) == 3


def test_a_new_partition_is_elected_once(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(partitions=6, min_isr=2)
    for number in range(6):
        assert cluster.append(b"first", number=number) == 0
        assert cluster.state(topic, number).epoch.number == 1


def test_a_leader_that_starts_again_leads_in_a_higher_epoch(cluster: Cluster) -> None:
    """Its key still names it. What it knew of its epoch is gone with the process, so the epoch is not continued."""
    cluster.start("a")
    topic = cluster.create(replication_factor=1)
    epochs = []
    for value in range(3):
        assert cluster.append(b"%d" % value) == value
        epochs.append(cluster.state(topic).epoch.number)
        cluster.stop("a")
        assert cluster.state(topic).leader == "a"
        cluster.start("a")
    assert epochs == [1, 2, 3]


def test_leaders_move_when_brokers_stop_and_all_catch_up(cluster: Cluster) -> None:
    """Each broker in turn is stopped and started again, while a client appends."""
    cluster.start("a", "b", "c")
    topic = cluster.create(min_isr=2)
    values: list[bytes] = []

    def append(count: int) -> None:
        for _ in range(count):
            values.append(b"%d" % len(values))
            assert cluster.append(values[-1]) == len(values) - 1

    append(5)
    for name in ("a", "b", "c", "a"):
        led_before = cluster.leader().name == name
        cluster.stop(name)
        append(5)
        assert cluster.leader().name != name
        cluster.start(name)
        cluster.await_isr(topic, 3)
        append(5)
        assert cluster.brokers[name].member.incarnation == 1, "it stopped cleanly"
        assert not led_before or cluster.state(topic).epoch.number > 1
    cluster.await_values(topic, values)


def test_a_stop_hands_over_at_once(cluster: Cluster) -> None:
    """Nobody waits for the end of a broker that stops, nor for its lease."""
    cluster.start("a", "b", "c", lease_ms=86_400_000, stop_ms=3_600_000)
    topic = cluster.create(assignment={0: ["a", "b", "c"]})
    cluster.append(b"first")
    assert cluster.leader().name == "a"
    stopping = threading.Thread(target=cluster.stop, args=("a",), daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert cluster.append(b"second") == 1
    assert cluster.state(topic).leader in ("b", "c")


def test_all_stop_and_start_again(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(partitions=2, min_isr=2)
    for number in range(2):
        for value in range(20):
            cluster.append(b"%d" % value, number=number)
    for name in "abc":
        cluster.stop(name)
    cluster.start("a", "b", "c")
    for number in range(2):
        assert cluster.append(b"last", number=number) == 20
        cluster.await_values(topic, [*(b"%d" % value for value in range(20)), b"last"], number)
        assert cluster.state(topic, number).is_unclean is False


def test_restarted_broker_shows_committed_records_before_it_has_peers(cluster: Cluster) -> None:
    """The high watermark is stored: a reader sees what was committed, though one broker alone commits nothing."""
    cluster.start("a", "b", "c")
    topic = cluster.create(min_isr=2)
    cluster.append(b"committed")
    cluster.await_values(topic, [b"committed"])
    for name in "abc":
        cluster.stop(name)
    cluster.start("c")
    until(lambda: cluster.brokers["c"].partition("flights", 0))
    assert cluster.read(cluster.brokers["c"], topic) == [b"committed"]


def test_durable_appends_reach_every_replica(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(min_isr=2, requires_sync=True)
    assert [cluster.append(b"%d" % value, durable=True) for value in range(20)] == [*range(20)]
    cluster.await_values(topic, [b"%d" % value for value in range(20)])


def test_appends_below_the_min_isr_are_refused(cluster: Cluster) -> None:
    cluster.start("a", "b")
    topic = cluster.create(replication_factor=2, min_isr=2)
    cluster.append(b"first")
    cluster.stop("b")
    leader = cluster.leader()
    cluster.await_isr(topic, 1)

    def code() -> ErrorCode:
        future = leader.replicas.append_records(ACKS_ALL, {TOPIC: Messages([b"second"])})
        return future.result(PATIENCE_S)[TOPIC].code

    until(lambda: code() is ErrorCode.NOT_ENOUGH_REPLICAS)
    cluster.start("b")
    cluster.append(b"third")
    assert cluster.read(leader, topic)[0] == b"first" and cluster.read(leader, topic)[-1] == b"third"


def test_a_reassignment_moves_the_log(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", "d")
    topic = cluster.create(assignment={0: ["a", "b", "c"]})
    values = [b"%d" % value for value in range(50)]
    for value in values:
        cluster.append(value)
    key = state_key(topic.topic_id, 0)
    stored = cluster.store.get(key)
    assert stored is not None
    cluster.store.put(key, reassign(PartitionState.decode(stored.value), ("d", "b", "c")).encode(), stored.version)
    until(lambda: cluster.state(topic).target == () and cluster.state(topic).replicas == ("d", "b", "c"))
    until(lambda: directories(cluster.brokers["a"].directory) == [])
    assert cluster.brokers["a"].partition("flights", 0) is None
    assert cluster.leader().name == "d" and cluster.append(b"more") == 50
    cluster.stop("a")
    cluster.await_values(topic, [*values, b"more"])


def test_a_deleted_topic_is_removed_everywhere(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    cluster.create(partitions=3)
    for number in range(3):
        cluster.append(b"value", number=number)
    delete_topic(cluster.store, "flights")
    for broker in cluster.brokers.values():
        until(lambda broker=broker: directories(broker.directory) == [] and broker.partition("flights", 0) is None)
    until(lambda: find_topic(cluster.store, "flights") is None)
    again = cluster.create()
    assert cluster.append(b"anew") == 0
    cluster.await_values(again, [b"anew"])


class SlowRemoval(RealFiles):
    """It removes no folder before a test says so."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def remove_tree(self, path: Path) -> None:
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        super().remove_tree(path)


def test_records_for_a_topic_that_is_created_again_never_go_to_the_deleted_log(tmp_path: Path) -> None:
    """The broker still removes the first partition when a new topic has the name: the second one is not served from the
    old log, whose records go with it."""
    files, second = SlowRemoval(), TopicPartition("flights", 1)
    with SQLiteStore(tmp_path / "metadata") as store, Broker(tmp_path / "a", "a", store, files=files) as broker:
        create_topic(store, "flights", partitions=2, replication_factor=1, now_us=1)
        until(lambda: (partition := broker.partition(*second)) is not None and partition.is_leader)
        delete_topic(store, "flights")
        assert files.began.wait(PATIENCE_S)
        until(lambda: find_topic(store, "flights") is None and broker.metadata.topic("flights") is None)
        create_topic(store, "flights", partitions=2, replication_factor=1, now_us=2)
        until(lambda: broker.metadata.topic("flights"))
        response = broker.replicas.append_records(1, {second: Messages([b"early"])}).result(0)[second]
        files.may_end.set()
        assert response.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it was acknowledged, and is lost"
        until(lambda: (partition := broker.partition(*second)) is not None and partition.is_leader)
        assert not broker.failed_replicas
        response = broker.replicas.append_records(1, {second: Messages([b"new"])}).result(PATIENCE_S)[second]
        assert (response.code, response.base_offset) == (ErrorCode.NONE, 0)


def test_topic_is_not_deleted_in_place_of_an_older_one_with_its_name(cluster: Cluster) -> None:
    topic = cluster.create()
    with pytest.raises(NoSuchTopicError, match=f"expected the topic with id {'0' * 32}, found {topic.topic_id}"):
        delete_topic(cluster.store, "flights", "0" * 32)
    assert find_topic(cluster.store, "flights") == topic
    assert delete_topic(cluster.store, "flights", topic.topic_id).is_deleted


def test_partitions_are_added_to_a_topic(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(partitions=1)
    cluster.append(b"zero")
    create_partitions(cluster.store, "flights", 4)
    for number in range(1, 4):
        assert cluster.append(b"%d" % number, number=number) == 0
    cluster.await_values(topic, [b"zero"])


def test_a_clean_stop_removes_the_marker(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("a")
    cluster.create(replication_factor=1)
    cluster.append(b"value")
    assert (tmp_path / "a" / UNCLEAN).exists()
    with SQLiteStore(tmp_path / "metadata") as store, pytest.raises(LockedError):
        Broker(tmp_path / "a", "a", store, cluster.transport)
    cluster.stop("a")
    assert not (tmp_path / "a" / UNCLEAN).exists()
    with SQLiteStore(tmp_path / "metadata") as store, pytest.raises(WrongIncarnationError):
        Broker(tmp_path / "a", "b", store, cluster.transport)


def test_settings_are_applied_in_use(cluster: Cluster) -> None:
    """Without opening a log again: its writer's lock stays where it is."""
    cluster.start("a", "b", "c")
    cluster.create(min_isr=2, settings={"segment.bytes": 65536})
    cluster.append(b"v" * 2000)
    partitions = [broker.partition("flights", 0) for broker in cluster.brokers.values()]
    alter_topic(cluster.store, "flights", {"max.message.bytes": 1000, "min.insync.replicas": 1})
    until(lambda: all(each is not None and each.config.limits.max_message_bytes == 1000 for each in partitions))

    def code(size: int) -> ErrorCode:
        future = cluster.leader().replicas.append_records(ACKS_ALL, {TOPIC: Messages([b"v" * size])})
        return future.result(PATIENCE_S)[TOPIC].code

    assert code(1001) is ErrorCode.MESSAGE_TOO_LARGE and code(1000) is ErrorCode.NONE
    alter_topic(cluster.store, "flights", {"max.message.bytes": None})
    until(lambda: code(2000) is ErrorCode.NONE)
    assert [broker.partition("flights", 0) for broker in cluster.brokers.values()] == partitions


def test_the_size_of_segments_is_the_topics(cluster: Cluster) -> None:
    cluster.start("a", "b")
    topic = cluster.create(replication_factor=2, settings={"segment.bytes": 65536})
    for _ in range(5):
        cluster.append(b"v" * 30_000)
    for broker in cluster.brokers.values():
        path = broker.directory / f"{topic.topic_id}-0"
        until(lambda path=path: len(list(path.glob("*.log"))) > 1)


def test_records_go_when_they_are_old(cluster: Cluster) -> None:
    """At all replicas, and no offset is given again when another one leads."""
    cluster.start("a", "b", "c", retention_check_ms=20)
    topic = cluster.create(min_isr=2, settings={"segment.bytes": 65536})
    cluster.append(b"old")
    alter_topic(cluster.store, "flights", {"retention.ms": 1})
    paths = [broker.directory / f"{topic.topic_id}-0" for broker in cluster.brokers.values()]

    def starts() -> set[int]:
        found = set()
        for path in paths:
            with pyreplog.open(path, mode="r") as log:
                found.add(log.start)
        return found

    until(lambda: starts() == {1})
    alter_topic(cluster.store, "flights", {"retention.ms": None})
    cluster.stop(cluster.leader().name)
    assert cluster.append(b"new") == 1


def test_deleted_records_stay_deleted(cluster: Cluster) -> None:
    """Also when all brokers have started again, and whoever leads."""
    cluster.start("a", "b", "c")
    cluster.create(min_isr=2)
    for number in range(10):
        cluster.append(b"%d" % number)
    leader = cluster.leader()
    response = leader.delete_records({TOPIC: 7}).result(PATIENCE_S)[TOPIC]
    assert (response.code, response.low_watermark) == (ErrorCode.NONE, 7)
    for name in "abc":
        cluster.stop(name)
    cluster.start("a", "b", "c")
    for _ in range(3):
        leader = cluster.leader()
        partition = leader.partition("flights", 0)
        assert partition is not None and partition.log_start == 7
        cluster.append(b"more")
        cluster.stop(leader.name)
        if len(cluster.brokers) == 1:
            break


def test_a_reassignment_by_order_and_its_cancel(cluster: Cluster) -> None:
    """A target that is dead is waited for; a cancel returns to what was, and the log of the new one goes."""
    cluster.start("a", "b", "c", "d", "e")
    topic = cluster.create(min_isr=2, assignment={0: ["a", "b", "c"]})
    values = [b"%d" % value for value in range(20)]
    for value in values:
        cluster.append(value)
    cluster.stop("e")
    assert reassign_partitions(cluster.store, {TOPIC: ["d", "e", "c"]})[TOPIC].code is ErrorCode.NONE
    until(lambda: any(member.broker == "d" for member in cluster.state(topic).isr))
    assert list_reassignments(cluster.store)[TOPIC].adding == ("d", "e"), "it is not complete"
    assert cluster.append(b"meanwhile") == 20
    assert reassign_partitions(cluster.store, {TOPIC: None})[TOPIC].code is ErrorCode.NONE
    until(lambda: cluster.state(topic).replicas == ("a", "b", "c") and not list_reassignments(cluster.store))
    until(lambda: directories(cluster.brokers["d"].directory) == [])
    assert cluster.append(b"more") == 21
    for name in "abc":
        until(lambda name=name: len(cluster.read(cluster.brokers[name], topic)) == 22)


def test_leader_that_has_lost_its_producer_snapshots_knows_the_batches_of_trimmed_records(cluster: Cluster) -> None:
    """A producer sends its last batch again after a fail-over to a broker whose side files are lost."""
    cluster.start("a", "b", "c")
    settings = {"segment.bytes": 65536}
    topic = cluster.create(min_isr=2, assignment={0: ["b", "a", "c"]}, settings=settings)
    cluster.append(b"first")
    records = encode_batch(filler(1, 8), 1, producer_id=7, producer_epoch=0, base_sequence=0)

    def send_again() -> int | None:
        response = cluster.leader().replicas.append_records(ACKS_ALL, {TOPIC: records}, timeout_ms=5_000)
        produced = response.result(PATIENCE_S)[TOPIC]
        return produced.base_offset if produced.code is ErrorCode.NONE else None

    assert until(send_again) == 1
    for _ in range(20):
        end = cluster.append(bytes(9000))
    deleted = cluster.leader().delete_records({TOPIC: end}).result(PATIENCE_S)[TOPIC]
    assert deleted.code is ErrorCode.NONE
    assert cluster.append(b"last") == end + 1
    path = cluster.brokers["b"].directory / f"{topic.topic_id}-0"
    until(lambda: pyreplog_start(path) > 1)
    cluster.stop("b")
    lost = [*path.glob("*.producers")]
    assert lost
    for snapshot in lost:
        snapshot.unlink()
    cluster.start("b")
    cluster.await_isr(topic, 3)
    until(lambda: elect_leaders(cluster.store, ElectionType.PREFERRED, [TOPIC])[TOPIC].code is ErrorCode.NONE)
    until(lambda: cluster.leader().name == "b")
    assert until(send_again) == 1, "a duplicate"
    partition = cluster.leader().partition("flights", 0)
    assert partition is not None and not partition.has_lost_producers
    assert cluster.append(b"more") == end + 2


def test_metric_of_lost_producers_survives_restarts(cluster: Cluster) -> None:
    def lost() -> float:
        metrics = broker_metrics(cluster.brokers["a"])
        (metric,) = (each for each in metrics if each.name == "pyreplog_broker_partitions_producers_lost")
        ((_, value),) = metric.samples
        return value  # type: ignore[return-value]

    cluster.start("a")
    topic = cluster.create(replication_factor=1, settings={"segment.bytes": 65536})
    end = [cluster.append(bytes(9000)) for _ in range(20)][-1]
    deleted = cluster.leader().delete_records({TOPIC: end}).result(PATIENCE_S)[TOPIC]
    assert deleted.code is ErrorCode.NONE and lost() == 0
    path = cluster.brokers["a"].directory / f"{topic.topic_id}-0"
    until(lambda: pyreplog_start(path) > 1)
    cluster.stop("a")
    for snapshot in path.glob("*.producers"):
        snapshot.unlink()
    for _ in range(2):
        cluster.start("a")
        cluster.append(b"more")
        assert lost() == 1
        cluster.stop("a")


def pyreplog_start(path: Path) -> int:
    with pyreplog.open(path, mode="r") as log:
        return log.start


def test_preferred_leaders_are_elected_by_order(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    topic = cluster.create(assignment={0: ["a", "b", "c"]})
    cluster.append(b"first")
    cluster.stop("a")
    cluster.append(b"second")
    cluster.start("a")
    cluster.await_isr(topic, 3)
    until(lambda: elect_leaders(cluster.store, ElectionType.PREFERRED, [TOPIC])[TOPIC].code is ErrorCode.NONE)
    until(lambda: cluster.leader().name == "a")
    assert cluster.append(b"third") == 2


def test_a_broker_that_is_dead_for_good_is_replaced(cluster: Cluster) -> None:
    """What it held is copied to another one; when it comes back, its logs are removed."""
    cluster.start("a", "b", "c", "d", replace_after_ms=300)
    topic = cluster.create(min_isr=2, partitions=2, assignment={0: ["c", "a", "b"], 1: ["a", "b", "c"]})
    values = [b"%d" % value for value in range(20)]
    for number in range(2):
        for value in values:
            cluster.append(value, number=number)
    cluster.stop("c")
    for number, replicas in ((0, ("d", "a", "b")), (1, ("a", "b", "d"))):
        until(lambda number=number, replicas=replicas: cluster.state(topic, number).replicas == replicas)
        cluster.await_values(topic, values, number)
    cluster.start("c", replace_after_ms=300, stray_grace_ms=0)
    until(lambda: directories(cluster.brokers["c"].directory) == [])
    assert cluster.append(b"more") == 20


def test_the_clock_forgets_idle_producers(cluster: Cluster) -> None:
    cluster.start("a", producer_expiration_ms=500, producer_expiration_check_ms=20)
    cluster.create(replication_factor=1)
    leader = cluster.leader()
    partition = leader.partition("flights", 0)
    assert partition is not None
    records = encode_batch(filler(1, 8), 1, producer_id=7, producer_epoch=0, base_sequence=0)
    future = leader.replicas.append_records(ACKS_ALL, {TOPIC: records})
    assert future.result(PATIENCE_S)[TOPIC].code is ErrorCode.NONE
    until(lambda: partition.producer_count == 0)


def test_a_durable_append_does_not_wait_for_the_next_sync_of_all(cluster: Cluster) -> None:
    """Neither at the leader nor at its followers."""
    cluster.start("a", "b", "c", sync_ms=60_000)
    topic = cluster.create(min_isr=2, requires_sync=True)
    cluster.append(b"first", durable=True)
    values = [b"%d" % number for number in range(20)]
    for value in values:
        future = cluster.leader().replicas.append_records(
            ACKS_ALL, {TOPIC: Messages([value])}, timeout_ms=120_000, durable=True
        )
        assert future.result(PATIENCE_S)[TOPIC].code is ErrorCode.NONE
    cluster.await_values(topic, [b"first", *values])


def test_log_is_synced_periodically_without_waiting_produces(cluster: Cluster) -> None:
    cluster.start("a")
    topic = cluster.create(replication_factor=1, requires_sync=True)
    future = cluster.leader().replicas.append_records(1, {TOPIC: Messages([b"value"])})
    assert future.result(PATIENCE_S)[TOPIC].code is ErrorCode.NONE
    cluster.await_values(topic, [b"value"])
