"""Transaction coordinators in brokers: transactions over three brokers of one process, and what outlives each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.errors import DisconnectedError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.producer_ids import BLOCK, ProducerIds
from pyreplog.partition.metadata.topic_metadata import create_topic, delete_topic, find_topic
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.requests import (
    FetchIsolation,
    PartitionCodes,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_coordinator import TransactionCoordinator
from pyreplog.partition.transactions.transaction_log import TRANSACTION_STATE, partition_of
from pyreplog.partition.transactions.transaction_metadata import TransactionState
from tests.waiting import PATIENCE_S, until

from .managers import batch
from .test_broker import Cluster

ID = "transfers"
PARTITIONS = [TopicPartition("flights", number) for number in range(3)]
TIMEOUT_MS = 60_000
PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER,
)  # fmt: skip


class Client:
    """A transactional producer that repeats what it has to repeat."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.producer_id = self.epoch = -1
        self.sequences = dict.fromkeys(PARTITIONS, 0)

    def coordinator(self) -> TransactionCoordinator:
        def look() -> TransactionCoordinator | None:
            for broker in list(self.cluster.brokers.values()):
                code, name = broker.transactions.find_coordinator(ID)
                if code is ErrorCode.NONE and name in self.cluster.brokers:
                    return self.cluster.brokers[name].transactions
            return None

        return until(look)

    def ask(self, request: Callable[[TransactionCoordinator], AppendFuture[Any]]) -> Any:
        def attempt() -> Any:
            result = request(self.coordinator()).result(PATIENCE_S)
            return None if result.code in PASSING else result

        return until(attempt, pause_s=0.01)

    def init(self) -> None:
        result = self.ask(lambda coordinator: coordinator.init_producer_id(ID, TIMEOUT_MS))
        assert result.code is ErrorCode.NONE
        if (result.producer_id, result.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences = dict.fromkeys(PARTITIONS, 0)
        _, self.producer_id, self.epoch = result

    def add(self, *partitions: TopicPartition) -> ErrorCode:
        code: ErrorCode = self.ask(
            lambda coordinator: coordinator.add_partitions(ID, self.producer_id, self.epoch, partitions or PARTITIONS)
        ).code
        return code

    def produce(self, partition: TopicPartition) -> ErrorCode:
        records = batch(
            2, attributes=0x10, producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=self.sequences[partition],
        )  # fmt: skip

        def attempt() -> tuple[ErrorCode] | None:
            guard = self.cluster.leader(partition.partition).append_guard
            code = guard.append_records(ID, ACKS_ALL, {partition: records}).result(PATIENCE_S)[partition].code
            return None if code in PASSING else (code,)

        (code,) = until(attempt, pause_s=0.01)
        self.sequences[partition] += 2 * (code is ErrorCode.NONE)
        return code

    def end(self, *, is_commit: bool) -> ErrorCode:
        code: ErrorCode = self.ask(
            lambda coordinator: coordinator.end_transaction(ID, self.producer_id, self.epoch, is_commit=is_commit)
        ).code
        return code

    def state(self) -> TransactionState | None:
        metadata = self.coordinator().describe(ID).metadata
        return None if metadata is None else metadata.state

    def await_stable(self) -> None:
        """All that is committed is stable in all partitions."""

        def is_stable() -> bool:
            for partition in PARTITIONS:
                replica = self.cluster.leader(partition.partition).partition(*partition)
                assert replica is not None
                stable = replica.latest_offset(FetchIsolation.TXN_COMMITTED)
                if stable != replica.latest_offset(FetchIsolation.HIGH_WATERMARK) or stable[0] is not ErrorCode.NONE:
                    return False
            return True

        until(is_stable)


@pytest.fixture(params=["in one process", "over TCP"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, over_tcp=request.param == "over TCP")
    cluster.start("a", "b", "c", transaction_state_partitions=3)
    cluster.create(partitions=3, min_isr=2)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_over_three_brokers(cluster: Cluster, is_commit: bool) -> None:
    client = Client(cluster)
    client.init()
    for _ in range(3):
        assert client.add() is ErrorCode.NONE
        assert [client.produce(partition) for partition in PARTITIONS] == [ErrorCode.NONE] * 3
        for partition in PARTITIONS:
            replica = cluster.leader(partition.partition).partition(*partition)
            assert replica is not None
            (_, stable), (_, end) = map(
                replica.latest_offset, (FetchIsolation.TXN_COMMITTED, FetchIsolation.HIGH_WATERMARK)
            )
            assert stable == end - 2, "the transaction is open"
        assert client.end(is_commit=is_commit) is ErrorCode.NONE
        client.await_stable()
    wanted = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    until(lambda: client.state() is wanted)


def test_a_produce_outside_of_a_transaction_is_refused(cluster: Cluster) -> None:
    client = Client(cluster)
    client.init()
    assert client.produce(PARTITIONS[0]) is ErrorCode.INVALID_TXN_STATE
    assert client.add() is ErrorCode.NONE
    assert client.produce(PARTITIONS[0]) is ErrorCode.NONE
    assert client.end(is_commit=True) is ErrorCode.NONE
    client.await_stable()
    assert client.produce(PARTITIONS[0]) is ErrorCode.INVALID_TXN_STATE, "it would pin the last stable offset"
    client.await_stable()


def test_a_new_producer_fences_the_old_one_over_brokers(cluster: Cluster) -> None:
    old, new = Client(cluster), Client(cluster)
    old.init()
    assert old.add() is ErrorCode.NONE and old.produce(PARTITIONS[0]) is ErrorCode.NONE
    new.init()
    assert new.producer_id == old.producer_id and new.epoch > old.epoch
    new.await_stable()
    assert old.produce(PARTITIONS[0]) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end(is_commit=True) is ErrorCode.PRODUCER_FENCED
    assert new.add() is ErrorCode.NONE and new.produce(PARTITIONS[0]) is ErrorCode.NONE
    assert new.end(is_commit=True) is ErrorCode.NONE
    new.await_stable()


def test_a_coordinator_moves_after_every_step(cluster: Cluster) -> None:
    """What was answered is known to the next coordinator, and what was decided is completed by it."""
    client = Client(cluster)

    def move() -> None:
        _, name = client.coordinator().find_coordinator(ID)
        if name in cluster.brokers:
            cluster.stop(name)
            cluster.start(name, transaction_state_partitions=3)

    client.init()
    move()
    assert client.add() is ErrorCode.NONE
    move()
    assert [client.produce(partition) for partition in PARTITIONS] == [ErrorCode.NONE] * 3
    move()
    assert client.end(is_commit=True) is ErrorCode.NONE
    move()
    until(lambda: client.state() is TransactionState.COMPLETE_COMMIT)
    client.await_stable()
    assert client.end(is_commit=True) is ErrorCode.NONE, "it is answered again"
    assert client.end(is_commit=False) is ErrorCode.INVALID_TXN_STATE


def test_an_open_transaction_is_loaded_without_the_partitions_of_deleted_topics(tmp_path: Path) -> None:
    """No marker is written to a topic that is created under the name later; a producer of it has to add it again."""
    cluster = Cluster(tmp_path, over_tcp=False)
    bills = TopicPartition("bills", 0)
    try:
        cluster.start("a", transaction_state_partitions=1)
        cluster.create(partitions=3, replication_factor=1)
        create_topic(cluster.store, "bills", partitions=1, replication_factor=1, now_us=1)
        client = Client(cluster)
        client.init()
        assert client.add() is ErrorCode.NONE
        assert client.add(bills) is ErrorCode.NONE
        delete_topic(cluster.store, "bills")
        until(lambda: find_topic(cluster.store, "bills") is None)
        cluster.stop("a")
        cluster.start("a", transaction_state_partitions=1)
        until(lambda: client.state() is TransactionState.ONGOING)
        metadata = client.coordinator().describe(ID).metadata
        assert metadata is not None and metadata.partitions == {*PARTITIONS}
        create_topic(cluster.store, "bills", partitions=1, replication_factor=1, now_us=1)
        verified = client.ask(
            lambda coordinator: coordinator.verify_partitions(ID, client.producer_id, client.epoch, [bills])
        )
        assert verified.partitions == {bills: ErrorCode.TRANSACTION_ABORTABLE}
        assert client.add(bills) is ErrorCode.NONE
        assert client.end(is_commit=False) is ErrorCode.NONE
        until(lambda: client.state() is TransactionState.COMPLETE_ABORT)
        client.await_stable()
    finally:
        cluster.close()


class LossyTransport:
    """Loses requests, or their answers, as a network does."""

    def __init__(self, transport: LocalTransport, rng: Random) -> None:
        self._transport, self._rng = transport, rng
        self.lost = 0

    def write_markers(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        fate = self._rng.randrange(3)
        if fate:
            written = self._transport.write_markers(broker, request)
            if fate == 1:
                return written
        self.lost += 1
        future = AppendFuture[PartitionCodes]()
        set_exception(future, DisconnectedError("lost"))
        return future

    def verify_transaction(self, broker: str, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        return self._transport.verify_transaction(broker, request)


def test_markers_are_written_until_all_partitions_have_them(tmp_path: Path, seed: int) -> None:
    """A failure leaves the outcome unknown."""
    cluster = Cluster(tmp_path, over_tcp=False)
    assert cluster.transport is not None
    lossy = LossyTransport(cluster.transport, Random(seed))
    try:
        cluster.start("a", "b", "c", transaction_transport=lossy, transaction_state_partitions=3)
        cluster.create(partitions=3, min_isr=2)
        client = Client(cluster)
        client.init()
        while lossy.lost < 3:
            assert client.add() is ErrorCode.NONE
            assert [client.produce(partition) for partition in PARTITIONS] == [ErrorCode.NONE] * 3
            assert client.end(is_commit=True) is ErrorCode.NONE
            client.await_stable()
    finally:
        cluster.close()


def test_a_log_of_states_is_shortened(tmp_path: Path) -> None:
    """What is live is appended again, and nothing of it is lost when the log is loaded."""
    cluster = Cluster(tmp_path, over_tcp=False)
    cluster.start("a", transaction_state_partitions=1, segment_bytes=1 << 16)
    try:
        cluster.create(partitions=3, replication_factor=1)
        client = Client(cluster)
        client.init()
        coordinator = client.coordinator()
        coordinator.config = coordinator.config._replace(log_slack=50, check_ms=1)
        replica = cluster.brokers["a"].partition(TRANSACTION_STATE, partition_of(ID, 1))
        assert replica is not None
        for _ in range(400):
            client.init()
        until(lambda: replica.log_start > 0)
        cluster.stop("a")
        cluster.start("a", transaction_state_partitions=1, segment_bytes=1 << 16)
        before = client.epoch
        client.init()
        assert client.epoch == before + 1
    finally:
        cluster.close()


def test_producer_ids_are_unique(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "metadata") as store:
        sources = [ProducerIds(store) for _ in range(3)]
        taken = [source.next() for _ in range(BLOCK + 5) for source in sources]
        assert len({*taken}) == len(taken) and min(taken) == 0


def test_idempotent_producers_and_bad_requests(cluster: Cluster) -> None:
    coordinator = cluster.brokers["a"].transactions
    first, second = (coordinator.init_producer_id(None, TIMEOUT_MS).result(PATIENCE_S) for _ in range(2))
    assert (first.code, second.code) == (ErrorCode.NONE, ErrorCode.NONE) and first.producer_id != second.producer_id
    assert coordinator.init_producer_id("", TIMEOUT_MS).result(0).code is ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 1 << 30):
        code = coordinator.init_producer_id(ID, timeout_ms).result(0).code
        assert code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
