"""Records that are deleted by order (KIP-107): readers see none of them, at no replica that lives, also after a start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.future import AppendFuture
from pyreplog.partition.delayed_delete_records import DeleteRecordsResponse, DeleteRecordsResponses
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.record_batch import TRANSACTIONAL, end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import ConsumerFetch, FetchParams, FetchPartitionData
from pyreplog.partition.topic_partition import TopicPartition

from .managers import EVENTS, WALL_US, Broker, Cluster, batch, messages

DONE = DeleteRecordsResponse(ErrorCode.NONE, 5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.elect()
    cluster.settle()
    yield cluster
    cluster.close()


@pytest.fixture
def a(cluster: Cluster) -> Broker:
    """The leader, with ten records that are committed."""
    a = cluster.brokers["a"]
    a.manager.append_records(-1, {EVENTS: messages(*(b"%d" % number for number in range(10)))})
    cluster.settle()
    return a


def delete(broker: Broker, offset: int, timeout_ms: int = 60_000) -> AppendFuture[DeleteRecordsResponses]:
    return broker.manager.delete_records({EVENTS: offset}, timeout_ms=timeout_ms)


def outcome(future: AppendFuture[DeleteRecordsResponses]) -> DeleteRecordsResponse:
    return future.result(0)[EVENTS]._replace(message="")


def pass_time(cluster: Cluster, times: int = 2) -> None:
    """Fetches that wait are answered, and sent again."""
    for _ in range(times):
        cluster.advance_ms(600)
        cluster.settle()


def read(broker: Broker, offset: int) -> FetchPartitionData:
    params = FetchParams(max_wait_ms=0, only_leader=False)
    return broker.manager.fetch_messages(params, {EVENTS: ConsumerFetch(offset)}).result(0)[EVENTS]


def test_delete_records_completes_when_all_replicas_have_deleted(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["c"].is_fetching = False
    future = delete(a, 5)
    assert read(a, 4).code is ErrorCode.OFFSET_OUT_OF_RANGE and read(a, 5).log_start == 5
    pass_time(cluster)
    assert cluster.brokers["b"].partition.log_start == 5 and not future.done()
    cluster.brokers["c"].is_fetching = True
    pass_time(cluster)
    assert outcome(future) == DONE
    for broker in cluster.brokers.values():
        assert read(broker, 4).code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert read(broker, 5).code is ErrorCode.NONE
        assert broker.log.start == 0, "in the segment that others are in"
    assert a.manager.append_records(-1, {EVENTS: messages(b"x")}) is not None
    cluster.settle()
    assert read(a, 10).log_start == 5


def test_delete_records_removes_all_committed_records(cluster: Cluster, a: Broker) -> None:
    future = delete(a, -1)
    pass_time(cluster)
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.NONE, 10)
    assert read(a, 10).code is ErrorCode.NONE and read(a, 9).code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_delete_of_deleted_records_succeeds_at_once(cluster: Cluster, a: Broker) -> None:
    delete(a, 5)
    pass_time(cluster)
    for offset in (0, 3, 5):
        assert outcome(delete(a, offset)) == DONE


def test_a_replica_that_is_dead_is_not_waited_for(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["c"].is_fetching = False
    future = delete(a, 5)
    pass_time(cluster)
    assert not future.done()
    cluster.register("c", 1, is_fenced=True)
    assert outcome(future) == DONE


def test_a_replica_that_started_again_is_waited_for(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["c"].is_fetching = False
    cluster.register("c", 2)
    future = delete(a, 5)
    pass_time(cluster)
    assert not future.done()


def test_delete_records_times_out_while_a_replica_is_behind(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["c"].is_fetching = False
    future = delete(a, 5, timeout_ms=1000)
    cluster.advance_ms(999)
    assert not future.done()
    cluster.advance_ms(10)
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.REQUEST_TIMED_OUT)
    assert read(a, 4).code is ErrorCode.OFFSET_OUT_OF_RANGE, "here they are deleted nevertheless"


def test_delete_records_fails_when_the_leader_moves(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["c"].is_fetching = False
    future = delete(a, 5)
    cluster.lead("b")
    cluster.settle()
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_new_leader_goes_on_from_what_it_deleted(cluster: Cluster, a: Broker) -> None:
    delete(a, 5)
    pass_time(cluster)
    cluster.lead("b")
    cluster.settle()
    b = cluster.brokers["b"]
    assert read(b, 4).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert outcome(delete(b, 0)) == DONE


def test_each_partition_has_its_own_outcome(cluster: Cluster, a: Broker) -> None:
    internal, unknown = TopicPartition("__consumer_offsets", 0), TopicPartition("events", 9)
    responses = a.manager.delete_records({EVENTS: 11, internal: 1, unknown: 1}).result(0)
    assert {name: response.code for name, response in responses.items()} == {
        EVENTS: ErrorCode.OFFSET_OUT_OF_RANGE,
        internal: ErrorCode.INVALID_TOPIC_EXCEPTION,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert outcome(delete(a, -2)).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert outcome(delete(cluster.brokers["b"], 1)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert read(a, 0).code is ErrorCode.NONE


def test_delete_that_cannot_be_stored_answers_kafka_storage_error(cluster: Cluster, a: Broker) -> None:
    def fail() -> None:
        raise OSError(5, "no")

    future = a.manager.delete_records({EVENTS: 5}, store=fail)
    assert outcome(future).code is ErrorCode.KAFKA_STORAGE_ERROR


def test_delete_records_keeps_an_open_transaction(cluster: Cluster, a: Broker) -> None:
    verification = a.partition.begin_verification(7)
    data = batch(2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    a.manager.append_records(-1, {EVENTS: data}, verifications={EVENTS: verification})
    a.manager.append_records(-1, {EVENTS: messages(b"behind")})
    cluster.settle()
    assert outcome(delete(a, 11)).code is ErrorCode.OFFSET_OUT_OF_RANGE
    future = delete(a, -1)
    pass_time(cluster)
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.NONE, 10)
    marker = end_marker(TransactionMarker(7, 1, 0, True), WALL_US // 1000)
    a.manager.append_records(-1, {EVENTS: marker}, origin=AppendOrigin.COORDINATOR)
    cluster.settle()
    future = delete(a, -1)
    pass_time(cluster)
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.NONE, 14)


def test_delete_records_removes_whole_segments(cluster: Cluster, a: Broker) -> None:
    for _ in range(30):
        a.manager.append_records(-1, {EVENTS: messages(bytes(9000))})
        cluster.settle(4)
    future = delete(a, 35)
    pass_time(cluster)
    assert outcome(future) == DeleteRecordsResponse(ErrorCode.NONE, 35)
    for broker in cluster.brokers.values():
        assert 10 < broker.log.start <= 35 and broker.partition.log_start == 35


def test_truncation_lowers_the_log_start_after_a_deletion(cluster: Cluster, a: Broker) -> None:
    """An unclean election may lose records that were deleted; those that get their offsets are others."""
    b = cluster.brokers["b"]
    b.is_fetching = False
    a.log.stop_leading()
    a.log.delete_before(10)
    a.log.truncate_to(a.log.mark_of(4))
    assert a.log.log_start == 4
