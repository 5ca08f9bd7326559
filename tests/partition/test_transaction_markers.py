"""Markers and questions of coordinators over TCP: what comes late, or from a leader that was, ends no transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from pyreplog.errors import NotConnectedError, UnsupportedRequestError
from pyreplog.future import AppendFuture
from pyreplog.metadata.layout import cluster_id
from pyreplog.net.reactor import Reactor
from pyreplog.partition.broker import Broker
from pyreplog.partition.client_wire import ListOffsetsRequest
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    FetchIsolation,
    PartitionCodes,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.tcp_transport import TCPTransport
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.remote_verifier import RemoteVerifier
from pyreplog.partition.transactions.transaction_transport import NoTransport
from tests.waiting import PATIENCE_S, until

from .managers import batch
from .test_broker import TOPIC, Cluster

PRODUCER = 41
MARKER = TransactionMarker(PRODUCER, 0, 1, True)
"""Of version 1: with the epoch of all transactions of its producer."""
Connect = Callable[[], TCPTransport]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    cluster = Cluster(tmp_path, over_tcp=True)
    cluster.start("a")
    cluster.create(replication_factor=1)
    yield cluster.leader()
    cluster.close()


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Makes connections of one coordinator, each of which is open when it is returned."""
    with ExitStack() as stack:
        reactor = stack.enter_context(Reactor())
        reactor.start()

        def connect() -> TCPTransport:
            transport = TCPTransport(reactor, "b", cluster_id(broker.store).hex(), lambda _: broker.address)
            stack.enter_context(transport)
            transport.list_offsets("a", ListOffsetsRequest({}), PATIENCE_S).result(PATIENCE_S)
            return transport

        yield connect


def replica_of(broker: Broker) -> Partition:
    replica = broker.partition(*TOPIC)
    assert replica is not None
    return replica


def request(broker: Broker, marker: TransactionMarker = MARKER, version: int = 1) -> WriteMarkersRequest:
    epoch = replica_of(broker).leader_epoch
    assert epoch is not None
    return WriteMarkersRequest(marker, version, {TOPIC: epoch})


def code_of(answer: AppendFuture[PartitionCodes]) -> ErrorCode:
    return answer.result(PATIENCE_S)[TOPIC]


class Producer:
    """Appends the batches of transactions that somebody has confirmed."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._sequence = broker, 0

    def append(self) -> None:
        token = replica_of(self._broker).begin_verification(PRODUCER)
        records = batch(
            1, attributes=0x10, producer_id=PRODUCER, producer_epoch=0, base_sequence=self._sequence
        )  # fmt: skip
        appended = self._broker.replicas.append_records(ACKS_ALL, {TOPIC: records}, verifications={TOPIC: token})
        assert appended.result(PATIENCE_S)[TOPIC].code is ErrorCode.NONE
        self._sequence += 1


def is_open(broker: Broker) -> bool:
    replica = replica_of(broker)
    stable, end = map(replica.latest_offset, (FetchIsolation.TXN_COMMITTED, FetchIsolation.HIGH_WATERMARK))
    return stable != end


def test_a_marker_over_tcp_ends_a_transaction(broker: Broker, connect: Connect) -> None:
    Producer(broker).append()
    assert is_open(broker)
    assert code_of(connect().write_markers("a", request(broker))) is ErrorCode.NONE
    assert not is_open(broker)


def test_a_marker_on_a_connection_that_was_given_up_is_refused(broker: Broker, connect: Connect) -> None:
    """Its coordinator has heard nothing of it, has written it again, and its producer is in the next transaction."""
    producer, older, newer = Producer(broker), connect(), connect()
    producer.append()
    assert code_of(newer.write_markers("a", request(broker))) is ErrorCode.NONE
    producer.append()
    with pytest.raises(UnsupportedRequestError, match="newer connection"):
        older.write_markers("a", request(broker)).result(PATIENCE_S)
    assert is_open(broker)
    assert code_of(newer.write_markers("a", request(broker))) is ErrorCode.NONE
    assert not is_open(broker)


def test_markers_of_a_reconnected_coordinator_are_accepted(broker: Broker, connect: Connect) -> None:
    """Also if all its connections are gone in between."""
    producer = Producer(broker)
    for _ in range(3):
        producer.append()
        transport = connect()
        assert code_of(transport.write_markers("a", request(broker))) is ErrorCode.NONE
        assert not is_open(broker)
        transport.close()


def test_a_marker_for_another_leader_epoch_is_refused(broker: Broker, connect: Connect) -> None:
    """The leader has changed, and changed back, since the marker was sent."""
    Producer(broker).append()
    transport, wanted = connect(), request(broker)
    for epoch in (wanted.partitions[TOPIC] - 1, wanted.partitions[TOPIC] + 1):
        late = wanted._replace(partitions={TOPIC: epoch})
        assert code_of(transport.write_markers("a", late)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert is_open(broker)


def test_each_partition_has_its_own_code(broker: Broker, connect: Connect) -> None:
    Producer(broker).append()
    wanted, other = request(broker), TopicPartition("elsewhere", 3)
    wanted = wanted._replace(partitions={other: 1, **wanted.partitions})
    codes = connect().write_markers("a", wanted).result(PATIENCE_S)
    assert codes == {other: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOPIC: ErrorCode.NONE}
    assert connect().write_markers("a", wanted._replace(partitions={})).result(PATIENCE_S) == {}


def test_the_version_of_a_transaction_travels_with_its_marker(broker: Broker, connect: Connect) -> None:
    """With version 2 a marker that has the epoch of the batches is that of an earlier transaction."""
    Producer(broker).append()
    transport = connect()
    code = code_of(transport.write_markers("a", request(broker, version=2)))
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH and is_open(broker)
    higher = MARKER._replace(producer_epoch=1)
    assert code_of(transport.write_markers("a", request(broker, higher, 2))) is ErrorCode.NONE
    assert not is_open(broker)


def test_marker_watchers_get_committed_markers(broker: Broker, connect: Connect) -> None:
    Producer(broker).append()
    told: list[tuple[TopicPartition, TransactionMarker]] = []
    end = broker.replicas.watch_markers(lambda *marker: told.append(marker))
    wanted, transport = request(broker), connect()
    both = wanted._replace(partitions={**wanted.partitions, TopicPartition("elsewhere", 0): 1})
    assert code_of(transport.write_markers("a", both)) is ErrorCode.NONE
    assert told == [(TOPIC, MARKER)], "the other one was refused"
    end()
    assert code_of(transport.write_markers("a", wanted)) is ErrorCode.NONE
    assert len(told) == 1


def test_marker_watchers_run_before_the_marker_is_answered(tmp_path: Path) -> None:
    """Else its producer could begin the next transaction before the coordinator of its group knows of the end."""
    cluster = Cluster(tmp_path, over_tcp=False)
    cluster.start("a", "b")
    try:
        topic = cluster.create(replication_factor=2, min_isr=2)  # another thread brings what it waits for
        cluster.await_isr(topic, 2)
        broker = cluster.leader()
        Producer(broker).append()
        answered, was_early = threading.Event(), list[bool]()
        broker.replicas.watch_markers(lambda *_: was_early.append(answered.wait(0.3)))
        answer = broker.replicas.write_markers(request(broker), timeout_ms=60_000)
        answer.add_done_callback(lambda _: answered.set())
        assert code_of(answer) is ErrorCode.NONE
        until(lambda: was_early)
        assert was_early == [False]
    finally:
        cluster.close()


def verified(broker: Broker, producer: tuple[int, int], names: list[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """{}: the broker does not know the coordinator yet."""
    result = broker.verifier.verify_partitions("transfers", *producer, names).result(PATIENCE_S)
    codes = {*result.partitions.values()}
    return {} if ErrorCode.COORDINATOR_NOT_AVAILABLE in codes else dict(result.partitions)


def test_a_transaction_is_verified_over_tcp(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, over_tcp=True)
    cluster.start("a", "b", transaction_state_partitions=1)
    try:
        cluster.create(partitions=2, replication_factor=1)
        names = [TopicPartition("flights", number) for number in range(2)]
        coordinator = until(lambda: find_coordinator(cluster))
        (other,) = (broker for broker in cluster.brokers.values() if broker is not coordinator)
        producer = until(partial(initialise, coordinator))
        added = coordinator.transactions.add_partitions("transfers", *producer, names[:1])
        assert added.result(PATIENCE_S).code is ErrorCode.NONE
        for broker in (coordinator, other):
            found = until(partial(verified, broker, producer, names))
            assert found == {names[0]: ErrorCode.NONE, names[1]: ErrorCode.TRANSACTION_ABORTABLE}
            stale = broker.verifier.verify_partitions("transfers", producer[0], producer[1] - 1, names)
            assert {*stale.result(PATIENCE_S).partitions.values()} == {ErrorCode.PRODUCER_FENCED}
        asked = coordinator.transactions.verify(VerifyTransactionRequest("nobody", 0, 0, tuple(names)))
        assert {*asked.result(PATIENCE_S).values()} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        cut_off = RemoteVerifier("elsewhere", coordinator.transactions, NoTransport())
        unknown = cut_off.verify_partitions("transfers", *producer, names).result(PATIENCE_S)
        assert {*unknown.partitions.values()} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    finally:
        cluster.close()


def find_coordinator(cluster: Cluster) -> Broker | None:
    for broker in cluster.brokers.values():
        code, name = broker.transactions.find_coordinator("transfers")
        if code is ErrorCode.NONE:
            return cluster.brokers[name]
    return None


def initialise(coordinator: Broker) -> tuple[int, int] | None:
    result = coordinator.transactions.init_producer_id("transfers", 60_000).result(PATIENCE_S)
    return (result.producer_id, result.producer_epoch) if result.code is ErrorCode.NONE else None


def test_request_to_a_broker_without_an_address_raises_not_connected_error() -> None:
    with Reactor() as reactor, TCPTransport(reactor, "b", "0" * 32, lambda _: "") as transport:
        for answer in (
            transport.write_markers("a", WriteMarkersRequest(MARKER, 1, {})),
            transport.verify_transaction("a", VerifyTransactionRequest("transfers", 1, 0, ())),
        ):
            with pytest.raises(NotConnectedError):
                answer.result(PATIENCE_S)
