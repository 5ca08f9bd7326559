"""append_records and fetch_messages over real logs: one outcome per partition, and when it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from pyreplog._native.kafka.record_batch import ProducedBatch, peek_header, take_produced
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture
from pyreplog.partition.config import RetentionConfig
from pyreplog.partition.delayed_fetch import DelayedFetch, WatchedPart
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.fetch_min_bytes import FetchedPart, wake_positions
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    AppendLimits,
    end_marker,
    stamped,
)
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    AbortedTransaction,
    ConsumerFetch,
    FetchIsolation,
    FetchParams,
    FetchPartitionData,
    FetchResponses,
    PartitionProduceResponse,
)
from pyreplog.partition.role import ReplicaRole
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.record_batches.batches import build_batch
from pyreplog.stream.log_position import ORIGIN, LogPosition
from tests.waiting import PATIENCE_S

from .managers import EVENTS, LAG_US, WALL_US, Broker, Cluster, HookedPurgatory, batch, fetch_alone, messages
from .partition_logs import epoch

ORDERS = TopicPartition("orders", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
COMMITTED = FetchParams(FetchIsolation.TXN_COMMITTED, max_wait_ms=0)
NOW = FetchParams(max_wait_ms=0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        cluster = Cluster(tmp_path / str(len(clusters)), **settings)
        clusters.append(cluster)
        for topic in cluster.states:
            cluster.lead("a", topic)
        cluster.settle()
        return cluster

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    return make()


@pytest.fixture
def a(cluster: Cluster) -> Broker:
    return cluster.brokers["a"]


def produce(broker: Broker, records: Any, acks: int = 1, topic: TopicPartition = EVENTS, **settings: Any) -> Any:
    """The future of one partition's append."""
    return broker.manager.append_records(acks, {topic: records}, **settings)


def outcome(future: Any, topic: TopicPartition = EVENTS) -> PartitionProduceResponse:
    assert future.done(), "it waits"
    response: PartitionProduceResponse = future.result()[topic]
    return response


def appended(broker: Broker, records: Any, acks: int = 1, **settings: Any) -> PartitionProduceResponse:
    return outcome(produce(broker, records, acks, **settings))


def fetched(
    broker: Broker, offset: int = 0, params: FetchParams = NOW, topic: TopicPartition = EVENTS, **settings: Any
) -> FetchPartitionData:
    future = broker.manager.fetch_messages(params, {topic: ConsumerFetch(offset, **settings)})
    assert future.done(), "it waits"
    return future.result()[topic]


def follower_fetch(broker: Broker, name: str = "b", **fields: Any) -> Fetch:
    """As a follower would ask that has all that the leader has."""
    log = broker.log
    fetch = Fetch(7, Member(name, 1), broker.epoch, log.end_mark, log.history.last, log.end_mark, log.high_watermark)
    return fetch._replace(**fields)


def answer_to(broker: Broker, fetch: Fetch, max_wait_ms: int = 0) -> Any:
    future = fetch_alone(broker, fetch, max_wait_ms=max_wait_ms)
    assert future.done(), "it waits"
    return future.result()[EVENTS].response


def read_bytes(data: FetchPartitionData) -> bytes:
    assert data.records is not None
    return b"".join(bytes(body) for _, body in data.records.frames)


# ---- appends ----------------------------------------------------------------------------------------------------


def test_a_leader_that_starts_again_resigns(cluster: Cluster, a: Broker) -> None:
    """What it knew of its epoch is gone with the process, so the epoch is not continued. Nobody led in a later one."""
    a.restart()
    a.refresh(EVENTS)
    assert not a.partition.is_leader
    assert cluster.states[EVENTS][1].leader == "", "else it waits for somebody to elect it again"
    cluster.lead("b")
    cluster.lead("a")
    a.restart()
    assert a.partition.is_leader, "an earlier process of this broker did not lead in this epoch"


def test_fetches_are_numbered_over_changes_of_role(cluster: Cluster, a: Broker) -> None:
    """So a late answer of an earlier leader is never taken for that to a newer fetch."""
    b = cluster.brokers["b"]
    for _ in range(10):
        appended(a, messages(b"x"))
        cluster.settle()
    assert b.last_fetch is not None
    before = b.last_fetch.number
    for leader in ("b", "a"):
        cluster.lead(leader)
        cluster.settle()
    assert b.last_fetch.number > before > 10


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_do_not_wait_for_followers(a: Broker, acks: int) -> None:
    response = appended(a, messages(b"x", b"y"), acks)
    assert (response.code, response.base_offset, response.end_offset) == (ErrorCode.NONE, 0, 2)
    assert a.partition.high_watermark.entry == 0


def test_acks_all_waits_until_the_records_are_committed(cluster: Cluster, a: Broker) -> None:
    future = produce(a, batch(3), ACKS_ALL)
    cluster.brokers["c"].is_fetching = False
    cluster.settle()
    assert not future.done(), "c is in the ISR, and has nothing"
    cluster.brokers["c"].is_fetching = True
    cluster.settle()
    response = outcome(future)
    assert (response.code, response.base_offset, response.end_offset) == (ErrorCode.NONE, 0, 3)
    assert a.partition.high_watermark.entry == 3


def test_each_partition_has_its_own_outcome(make: Callable[..., Cluster]) -> None:
    cluster = make(topics=(EVENTS, ORDERS, OFFSETS))
    a = cluster.brokers["a"]
    missing = TopicPartition("none", 3)
    future = a.manager.append_records(
        ACKS_ALL,
        {ORDERS: object(), missing: messages(b"x"), OFFSETS: messages(b"x"), EVENTS: messages(b"x")},  # type: ignore[dict-item]
    )
    assert not future.done(), "that of events waits"
    cluster.settle()
    codes = {topic: response.code for topic, response in future.result(0).items()}
    assert codes == {
        ORDERS: ErrorCode.UNKNOWN_SERVER_ERROR, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        OFFSETS: ErrorCode.INVALID_TOPIC_EXCEPTION, EVENTS: ErrorCode.NONE,
    }  # fmt: skip
    assert a.logs[ORDERS].end_mark.entry == 0
    assert fetched(a).high_watermark == 1
    assert appended(a, messages(b"x"), topic=EVENTS).base_offset == 1, "no partition is worse for it"


def test_a_produce_that_failed_everywhere_does_not_wait(a: Broker) -> None:
    future = a.manager.append_records(ACKS_ALL, {ORDERS: messages(b"x")})
    assert future.result(0)[ORDERS].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert a.manager.append_records(ACKS_ALL, {}).result(0) == {}


def test_append_to_internal_topics_needs_permission(make: Callable[..., Cluster]) -> None:
    a = make(topics=(OFFSETS,)).brokers["a"]
    assert outcome(produce(a, messages(b"x"), topic=OFFSETS), OFFSETS).code is ErrorCode.INVALID_TOPIC_EXCEPTION
    allowed = produce(a, messages(b"x"), topic=OFFSETS, internal_topics_allowed=True, origin=AppendOrigin.COORDINATOR)
    assert outcome(allowed, OFFSETS).code is ErrorCode.NONE


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(a: Broker, acks: int) -> None:
    assert appended(a, messages(b"x"), acks).code is ErrorCode.INVALID_REQUIRED_ACKS
    assert a.log.end_mark.entry == 0


def test_a_follower_takes_no_appends(cluster: Cluster) -> None:
    response = appended(cluster.brokers["b"], messages(b"x"))
    assert (response.code, response.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_replication_does_not_append_here(a: Broker) -> None:
    with pytest.raises(InvalidArgumentError, match="replication"):
        a.manager.append_records(1, {EVENTS: messages(b"x")}, origin=AppendOrigin.REPLICATION)


def test_min_isr_is_checked_before_the_append(cluster: Cluster, a: Broker) -> None:
    version, state = cluster.states[EVENTS]
    cluster.store_is_down = True  # the others join again, but nobody knows it
    a.partition.state_changed(version + 1, replace(state, isr=(Member("a", 1),)))
    assert appended(a, messages(b"x"), ACKS_ALL).code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert a.log.end_mark.entry == 0
    assert appended(a, messages(b"x"), 1).code is ErrorCode.NONE
    assert a.partition.high_watermark.entry == 0, "nothing is committed under min ISR"


def test_min_isr_is_checked_after_the_append(cluster: Cluster, a: Broker) -> None:
    """The high watermark was reached, and min ISR is not any more when the produce is looked at."""
    cluster.register("c", 1, is_fenced=True)
    future = produce(a, messages(b"x"), ACKS_ALL)
    version, state = cluster.states[EVENTS]
    isr = (Member("a", 1), Member("b", 1))
    a.partition.state_changed(version + 1, replace(state, isr=isr))

    def shrink() -> None:
        if not a.partition.high_watermark.entry:
            a.purgatory.before_drain.insert(0, shrink)
            return
        a.partition.state_changed(version + 2, replace(state, isr=isr, min_isr=3))

    a.purgatory.before_drain = [shrink]
    cluster.settle()
    response = outcome(future)
    assert response.code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND and response.base_offset == 0


def test_a_produce_whose_time_is_over_has_an_unknown_outcome(cluster: Cluster, a: Broker) -> None:
    cluster.brokers["b"].is_fetching = False
    future = produce(a, messages(b"x"), ACKS_ALL, timeout_ms=1000)
    cluster.settle()
    cluster.advance_ms(999)
    assert not future.done()
    cluster.advance_ms(2)
    response = outcome(future)
    assert (response.code, response.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    cluster.brokers["b"].is_fetching = True
    cluster.settle()
    assert fetched(a).high_watermark == 1, "it is committed later"


def test_a_produce_that_waits_ends_with_its_leadership(cluster: Cluster, a: Broker) -> None:
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    future = produce(a, messages(b"x"), ACKS_ALL)
    cluster.lead("b")
    cluster.settle()
    response = outcome(future)
    assert (response.code, response.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)


def test_a_produce_ends_with_its_leadership_although_the_transport_fails(
    cluster: Cluster, a: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    future = produce(a, messages(b"x"), ACKS_ALL)

    def fail(*_: object) -> None:
        raise OSError("no transport")

    for method in ("send_fetch", "load"):
        monkeypatch.setattr(a if method == "send_fetch" else cluster, method, fail)
    a.partition.state_changed(99, cluster.states[EVENTS][1].led_by("b"))
    assert outcome(future).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_produce_committed_before_the_leadership_ended_is_acknowledged(cluster: Cluster, a: Broker) -> None:
    future = produce(a, messages(b"x"), ACKS_ALL)

    def depose() -> None:
        if a.partition.high_watermark.entry:
            a.partition.state_changed(99, cluster.states[EVENTS][1].led_by("b"))
        else:
            a.purgatory.before_drain.insert(0, depose)

    a.purgatory.before_drain = [depose]
    cluster.settle()
    assert outcome(future).code is ErrorCode.NONE


def test_a_leader_deposed_before_a_produce_is_watched_leaves_nothing_waiting(cluster: Cluster, a: Broker) -> None:
    """Check-watch-check: whoever ended the role woke all that waited then (KAFKA-6653)."""
    a.purgatory.before_watch = [lambda: a.partition.state_changed(99, cluster.states[EVENTS][1].led_by("b"))]
    future = produce(a, messages(b"x"), ACKS_ALL)
    assert outcome(future).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_durable_appends_are_on_the_disks_of_the_in_sync_replicas(make: Callable[..., Cluster]) -> None:
    cluster = make(requires_sync=True)
    brokers = cluster.brokers
    for broker in brokers.values():
        broker.partition.sync()
    cluster.settle()
    future = produce(brokers["a"], messages(b"x"), ACKS_ALL, durable=True)
    cluster.settle()
    assert brokers["c"].log.end_mark == brokers["a"].log.end_mark
    for name in "ba":
        assert not future.done(), f"{name} has not synced"
        brokers[name].partition.sync()
        cluster.settle()
    assert not future.done(), "c has not synced"
    brokers["c"].partition.sync()
    cluster.settle()
    assert outcome(future).code is ErrorCode.NONE


def test_durable_needs_a_topic_that_counts_syncs(cluster: Cluster, make: Callable[..., Cluster]) -> None:
    for broker, acks in ((cluster.brokers["a"], ACKS_ALL), (make(requires_sync=True).brokers["a"], 1)):
        assert appended(broker, messages(b"x"), acks, durable=True).code is ErrorCode.INVALID_REQUIRED_ACKS
        assert broker.log.end_mark.entry == 0


def test_a_log_that_failed_is_offline(cluster: Cluster, a: Broker) -> None:
    future = produce(a, messages(b"x"), ACKS_ALL)
    a.log.close()
    for _ in range(2):
        assert appended(a, messages(b"x")).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert outcome(future).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert fetched(a).code is ErrorCode.KAFKA_STORAGE_ERROR
    fetch = Fetch(1, Member("b", 1), epoch(1), LogPosition(0, 0), epoch(1), LogPosition(0, 0), LogPosition(0, 0))
    assert answer_to(a, fetch) == FetchRefused(1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert a.partition.latest_offset(FetchIsolation.HIGH_WATERMARK) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert a.partition.trim(0) is ErrorCode.KAFKA_STORAGE_ERROR


def test_append_that_would_block_an_event_loop_is_throttled(a: Broker) -> None:
    async def append() -> ErrorCode:
        for _ in range(40):
            code = appended(a, messages(bytes(9000))).code
            if code is not ErrorCode.NONE:
                return code
        return ErrorCode.NONE

    assert asyncio.run(append()) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert appended(a, messages(bytes(9000))).code is ErrorCode.NONE


# ---- the checks of record batches -------------------------------------------------------------------------------


def with_crc(data: bytes, at: int = 21, value: bytes = b"") -> bytes:
    """A batch with another field, and the CRC that fits."""
    changed = data[:at] + value + data[at + len(value) :]
    return changed[:17] + crc32c(changed[21:]).to_bytes(4, "big") + changed[21:]


GOOD = batch(3)
FUTURE_MS = WALL_US // 1000 + 3_600_001
REFUSED = {
    "too short": (GOOD[:60], ErrorCode.CORRUPT_MESSAGE),
    "cut": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "negative length": (GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
    "length of less than a head": (GOOD[:8] + b"\0\0\0\x30" + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "magic 1": (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "another byte": (GOOD[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
    "CRC": (GOOD[:17] + b"\0\0\0\0" + GOOD[21:], ErrorCode.CORRUPT_MESSAGE),
    "no records": (batch(0), ErrorCode.INVALID_RECORD),
    "negative count": (batch(-1), ErrorCode.INVALID_RECORD),
    "more records than offsets": (with_crc(GOOD, 57, (4).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
    "more offsets than records": (with_crc(GOOD, 23, (3).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
    "base offset": (b"\0\0\0\0\0\0\0\1" + GOOD[8:], ErrorCode.INVALID_RECORD),
    "control batch": (end_marker(TransactionMarker(1, 0, 0, True), WALL_US // 1000), ErrorCode.INVALID_RECORD),
    "no sequence": (batch(producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
    "no producer epoch": (batch(producer_id=5, base_sequence=0), ErrorCode.INVALID_RECORD),
    "a transaction of nobody": (batch(attributes=TRANSACTIONAL), ErrorCode.INVALID_RECORD),
    "the log's time": (batch(attributes=8), ErrorCode.INVALID_RECORD),
    "in an hour": (batch(timestamp_ms=FUTURE_MS), ErrorCode.INVALID_TIMESTAMP),
    "in 300,000 years": (batch(timestamp_ms=1 << 62), ErrorCode.INVALID_TIMESTAMP),
    "too large": (batch(size=3000), ErrorCode.MESSAGE_TOO_LARGE),
    "a message too large": (messages(b"x", bytes(3000)), ErrorCode.MESSAGE_TOO_LARGE),
    "keys of other messages": (messages(b"x")._replace(keys=[b"k", b"k"]), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_records_are_refused(make: Callable[..., Cluster], name: str) -> None:
    a = make(limits=AppendLimits(max_message_bytes=2000)).brokers["a"]
    records, code = REFUSED[name]
    end = a.log.end_mark
    response = appended(a, records)
    assert (response.code, response.base_offset) == (code, -1)
    assert response.message
    assert a.log.end_mark == end
    assert appended(a, GOOD).code is ErrorCode.NONE


def test_the_copy_of_a_batch_is_what_is_checked_and_stamped() -> None:
    sent = bytearray(GOOD)
    taken = take_produced(sent)
    assert isinstance(taken, ProducedBatch)
    sent[-1] ^= 1
    assert bytes(taken.data) == GOOD
    assert bytes(taken.stamp(7, 3)) == bytes(stamped(GOOD, 7, 3))
    assert bytes(taken.stamp(7, 3, 9)) == bytes(stamped(GOOD, 7, 3, 9))
    assert take_produced(sent) == (2, ANY)


def test_compressed_records_are_limited_by_the_largest_message(make: Callable[..., Cluster]) -> None:
    """To 64 times its bytes, at least 16 MiB: a small batch cannot fill the memory."""
    assert AppendLimits().max_uncompressed_bytes == 64 * AppendLimits().max_message_bytes
    assert AppendLimits(1 << 40).max_uncompressed_bytes == 128 << 20
    a = make(limits=AppendLimits(max_message_bytes=30_000)).brokers["a"]
    for size, code in ((15 << 20, ErrorCode.NONE), (17 << 20, ErrorCode.MESSAGE_TOO_LARGE)):
        records = build_batch([bytes(size)], timestamps_ms=[WALL_US // 1000], codec=1)
        assert len(records) < 30_000
        assert appended(a, records).code is code


def test_a_batch_that_no_segment_holds_is_refused(a: Broker) -> None:
    assert appended(a, batch(size=80_000)).code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert a.log.end_mark.entry == 0


def test_batches_older_than_the_topic_allows_are_refused(make: Callable[..., Cluster]) -> None:
    a = make(limits=AppendLimits(before_ms=1000)).brokers["a"]
    assert appended(a, batch(timestamp_ms=WALL_US // 1000 - 1001)).code is ErrorCode.INVALID_TIMESTAMP
    assert appended(a, batch(timestamp_ms=WALL_US // 1000 - 1000)).code is ErrorCode.NONE


def test_batches_lie_in_the_log_as_they_were_sent_but_for_offset_and_epoch(a: Broker) -> None:
    appended(a, messages(b"x", b"y"))
    response = appended(a, GOOD)
    assert (response.base_offset, response.end_offset) == (2, 5)
    data = bytes(stamped(GOOD, 2, 1))
    (record,) = [record for batch in a.log.read_positions(0, committed=False) for record in batch if record.kind == 2]
    assert (record.value, record.event_time) == (data, WALL_US)
    assert (data[21:], data[8:12], data[16:21]) == (GOOD[21:], GOOD[8:12], GOOD[16:21])


def test_the_log_may_stamp_its_own_time(make: Callable[..., Cluster]) -> None:
    a = make(log_append_time=True).brokers["a"]
    response = appended(a, batch(3, timestamp_ms=5))
    assert response.log_append_time_ms == WALL_US // 1000
    (record,) = [record for batch in a.log.read_positions(0, committed=False) for record in batch if record.kind == 2]
    head = peek_header(record.value)
    assert head is not None
    assert (head.max_timestamp, head.attributes) == (WALL_US // 1000, 8)
    assert with_crc(record.value) == record.value


def test_only_coordinators_write_transaction_markers(a: Broker) -> None:
    marker = TransactionMarker(5, 1, 2, True)
    data = end_marker(marker, WALL_US // 1000)
    write: dict[str, Any] = {"origin": AppendOrigin.COORDINATOR}
    assert appended(a, data, **write).code is ErrorCode.NONE
    fenced = end_marker(marker._replace(coordinator_epoch=1), WALL_US // 1000)
    assert appended(a, fenced, **write).code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    lower = end_marker(marker._replace(producer_epoch=0), WALL_US // 1000)
    assert appended(a, lower, **write).code is ErrorCode.INVALID_PRODUCER_EPOCH
    other = batch(attributes=CONTROL | TRANSACTIONAL, producer_id=5, producer_epoch=1)
    assert appended(a, other, **write).code is ErrorCode.INVALID_RECORD


# ---- idempotent producers and transactions ----------------------------------------------------------------------


def of_producer(sequence: int, records: int = 1, producer_epoch: int = 0, **settings: Any) -> bytes:
    return batch(records, producer_id=5, producer_epoch=producer_epoch, base_sequence=sequence, **settings)


def test_sequence_numbers_of_producers_are_checked(a: Broker) -> None:
    assert appended(a, of_producer(0, 3)).base_offset == 0
    assert appended(a, of_producer(4)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert appended(a, of_producer(3)).base_offset == 3
    again = appended(a, of_producer(0, 3))
    assert (again.code, again.base_offset, again.end_offset) == (ErrorCode.NONE, 0, 3)
    assert a.log.end_mark.entry == 4
    assert appended(a, of_producer(0, producer_epoch=1)).code is ErrorCode.NONE
    assert appended(a, of_producer(4)).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert appended(a, of_producer(0), origin=AppendOrigin.COORDINATOR).code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_duplicate_waits_until_the_first_one_is_committed(cluster: Cluster, a: Broker) -> None:
    first = produce(a, of_producer(0), ACKS_ALL)
    second = produce(a, of_producer(0), ACKS_ALL)
    assert not first.done()
    assert not second.done()
    cluster.settle()
    assert outcome(first).base_offset == outcome(second).base_offset == 0
    assert a.log.end_mark.entry == 1
    assert outcome(produce(a, of_producer(0), ACKS_ALL)).code is ErrorCode.NONE


def test_duplicate_is_answered_at_once_without_acks_all(a: Broker) -> None:
    assert appended(a, of_producer(0), 1).base_offset == 0
    for acks in (0, 1):
        again = appended(a, of_producer(0), acks)
        assert (again.code, again.base_offset, again.end_offset) == (ErrorCode.NONE, 0, 1)


def test_a_new_leader_knows_the_producers_of_the_old_one(cluster: Cluster, a: Broker) -> None:
    for sequence in range(6):
        produce(a, of_producer(sequence))
        produce(a, messages(b"between"))
    cluster.settle()
    cluster.lead("b")
    cluster.settle()
    b = cluster.brokers["b"]
    assert appended(b, of_producer(0)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "five batches are kept"
    assert appended(b, of_producer(1)).base_offset == 2
    assert appended(b, of_producer(7)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert appended(b, of_producer(6)).base_offset == 12


def test_producers_of_what_was_cut_are_forgotten(cluster: Cluster, a: Broker) -> None:
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    assert appended(a, of_producer(0)).base_offset == 0
    cluster.lead("b")
    for name in "bc":
        cluster.brokers[name].is_fetching = True
    cluster.settle()
    assert a.log.end_mark == cluster.brokers["b"].log.end_mark
    cluster.lead("a")
    cluster.settle()
    assert appended(a, of_producer(0)).base_offset == 0
    assert a.log.end_mark.entry == 1


def in_transaction(broker: Broker, sequence: int, producer_epoch: int = 0) -> PartitionProduceResponse:
    token = broker.partition.begin_verification(5)
    records = of_producer(sequence, producer_epoch=producer_epoch, attributes=TRANSACTIONAL)
    return appended(broker, records, verifications={EVENTS: token})


def end_transaction(broker: Broker, *, commit: bool, producer_epoch: int = 1) -> None:
    marker = end_marker(TransactionMarker(5, producer_epoch, 1, commit), WALL_US // 1000)
    assert appended(broker, marker, origin=AppendOrigin.COORDINATOR).code is ErrorCode.NONE


def test_transactional_batches_are_refused_before_the_coordinator_added_the_partition(a: Broker) -> None:
    records = of_producer(0, attributes=TRANSACTIONAL)
    assert appended(a, records).code is ErrorCode.INVALID_TXN_STATE
    assert in_transaction(a, 0).code is ErrorCode.NONE
    assert appended(a, of_producer(1, attributes=TRANSACTIONAL)).code is ErrorCode.NONE


@pytest.mark.parametrize("name", ["a", "b"])
def test_readers_of_committed_transactions_stop_before_an_open_one(cluster: Cluster, a: Broker, name: str) -> None:
    """Also those of a follower."""
    params = COMMITTED._replace(only_leader=False)
    broker = cluster.brokers[name]
    appended(a, messages(b"before"))
    in_transaction(a, 0)
    appended(a, messages(b"behind"))
    cluster.settle()
    data = fetched(broker, 0, params)
    assert (data.high_watermark, data.last_stable, data.aborted) == (3, 1, ())
    assert data.records is not None
    assert data.records.end.entry == 1
    assert fetched(broker, 0, params._replace(isolation=FetchIsolation.HIGH_WATERMARK)).records.end.entry == 3  # type: ignore[union-attr]
    if name == "a":
        assert a.partition.latest_offset(FetchIsolation.TXN_COMMITTED) == (ErrorCode.NONE, 1)
    assert fetched(broker, 2, params).size == 0
    end_transaction(a, commit=False)
    assert fetched(a, 0, params).last_stable == 1, "the marker is not committed"
    cluster.settle()
    data = fetched(broker, 0, params)
    assert (data.last_stable, data.aborted) == (4, (AbortedTransaction(5, 1),))
    assert data.records is not None
    assert data.records.end.entry == 4
    first = fetched(broker, 0, params, max_bytes=1)
    assert (first.records.end.entry, first.aborted) == (1, ())  # type: ignore[union-attr]


def test_waiting_read_committed_fetch_returns_transactions_aborted_meanwhile(cluster: Cluster, a: Broker) -> None:
    in_transaction(a, 0)
    cluster.settle()
    params = COMMITTED._replace(max_wait_ms=1000)
    future = a.manager.fetch_messages(params, {EVENTS: ConsumerFetch(0)})
    assert not future.done()
    end_transaction(a, commit=False)
    cluster.settle()
    data = future.result(0)[EVENTS]
    assert (data.last_stable, data.aborted) == (2, (AbortedTransaction(5, 0),))
    assert data.size > 0


# ---- fetches of consumers ---------------------------------------------------------------------------------------


def test_consumers_read_what_is_committed(cluster: Cluster, a: Broker) -> None:
    appended(a, messages(b"first", b"second"))
    cluster.settle()
    appended(a, messages(b"third"))
    data = fetched(a)
    assert (data.code, data.high_watermark, data.last_stable, data.log_start) == (ErrorCode.NONE, 2, 2, 0)
    assert b"second" in read_bytes(data)
    assert b"third" not in read_bytes(data)
    behind = fetched(a, 1)
    assert b"first" not in read_bytes(behind)
    assert b"second" in read_bytes(behind)
    for offset in (2, 3):
        assert (fetched(a, offset).code, fetched(a, offset).size) == (ErrorCode.NONE, 0)
    assert fetched(a, 4).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(a, -1).code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_offset_within_a_batch_gives_the_batch(cluster: Cluster, a: Broker) -> None:
    appended(a, batch(5))
    cluster.settle()
    data = fetched(a, 3)
    assert data.records is not None
    assert (data.records.position.entry, data.records.end.entry) == (0, 5)


def test_offsets_that_were_trimmed_are_out_of_range(cluster: Cluster, a: Broker) -> None:
    for _ in range(30):
        appended(a, messages(bytes(9000)))
        cluster.settle(4)
    assert a.partition.trim(31) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert cluster.brokers["b"].partition.trim(20) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert a.partition.trim(20) is ErrorCode.NONE
    start = a.log.start
    assert 0 < start <= 20
    assert fetched(a, start - 1).code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(a, start).log_start == start
    cluster.settle()
    appended(a, messages(b"x"))
    cluster.settle()
    assert cluster.brokers["b"].log.start == start
    old = follower_fetch(a, position=LogPosition(4096, 0))
    assert isinstance(answer_to(a, old), DivergingEpoch)


def test_epochs_of_consumers_are_fenced(cluster: Cluster, a: Broker) -> None:
    cluster.lead("b")
    cluster.lead("a")
    cluster.settle()
    number = a.epoch.number
    assert fetched(a, leader_epoch=number).code is ErrorCode.NONE
    assert fetched(a, leader_epoch=number - 1).code is ErrorCode.FENCED_LEADER_EPOCH
    assert fetched(a, leader_epoch=number + 1).code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_followers_are_read_up_to_the_high_watermark_they_know(cluster: Cluster, a: Broker) -> None:
    appended(a, messages(b"one"))
    cluster.settle()
    b = cluster.brokers["b"]
    assert fetched(b).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    near = NOW._replace(only_leader=False)
    assert b"one" in read_bytes(fetched(b, 0, near))
    cluster.brokers["c"].is_fetching = False
    appended(a, messages(b"two"))
    cluster.settle()
    assert b.log.end_mark.entry == 2
    assert (fetched(b, 1, near).size, fetched(b, 1, near).high_watermark) == (0, 1)
    assert fetched(b, 0, near, leader_epoch=2).code is ErrorCode.UNKNOWN_LEADER_EPOCH
    future = b.manager.fetch_messages(near._replace(max_wait_ms=500), {EVENTS: ConsumerFetch(1)})
    cluster.brokers["c"].is_fetching = True
    cluster.settle()
    assert b"two" in read_bytes(future.result(0)[EVENTS]), "it is woken by the high watermark"


def test_latest_offset_is_available_once_the_leader_knows_it(cluster: Cluster, a: Broker) -> None:
    appended(a, messages(b"x"))
    cluster.settle()
    assert a.partition.latest_offset(FetchIsolation.HIGH_WATERMARK) == (ErrorCode.NONE, 1)
    b = cluster.brokers["b"]
    assert b.partition.latest_offset(FetchIsolation.HIGH_WATERMARK) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    for name in "ac":
        cluster.brokers[name].is_fetching = False
    cluster.lead("b")
    cluster.settle()
    code, offset = b.partition.latest_offset(FetchIsolation.HIGH_WATERMARK)
    assert code == ErrorCode.OFFSET_NOT_AVAILABLE and offset == -1


def test_fetch_returns_one_batch_whatever_its_size(make: Callable[..., Cluster]) -> None:
    """Not one of each partition (KAFKA-19795)."""
    cluster = make(topics=(EVENTS, ORDERS))
    a = cluster.brokers["a"]
    for topic in (EVENTS, ORDERS):
        a.manager.append_records(1, {topic: messages(bytes(5000), bytes(5000))})
    cluster.settle()
    fetches = {ORDERS: ConsumerFetch(0), EVENTS: ConsumerFetch(0)}
    data = a.manager.fetch_messages(NOW._replace(max_bytes=1000), fetches).result(0)
    assert list(data) == [ORDERS, EVENTS]
    assert [each.size > 5000 for each in data.values()] == [True, False]
    assert data[EVENTS].size == 0
    assert data[EVENTS].code is ErrorCode.NONE
    hard = a.manager.fetch_messages(NOW._replace(max_bytes=1000, has_hard_limit=True), fetches).result(0)
    assert [each.size for each in hard.values()] == [0, 0]
    small = {ORDERS: ConsumerFetch(2), EVENTS: ConsumerFetch(0, max_bytes=10)}
    assert a.manager.fetch_messages(NOW, small).result(0)[EVENTS].size > 5000, "the first one that has a batch"
    both = a.manager.fetch_messages(NOW._replace(max_bytes=16_000), fetches).result(0)
    assert [each.size // 5000 for each in both.values()] == [2, 1]


def test_a_fetch_waits_for_its_bytes(cluster: Cluster, a: Broker) -> None:
    params = FetchParams(max_wait_ms=1000, min_bytes=3000)
    future = a.manager.fetch_messages(params, {EVENTS: ConsumerFetch(0)})
    for number in range(4):
        assert not future.done(), number
        appended(a, messages(bytes(900)))
        cluster.settle()
    assert future.result(0)[EVENTS].size >= 3000


@pytest.mark.parametrize("isolation", FetchIsolation)
def test_a_fetch_does_not_end_with_the_record_of_an_epoch(cluster: Cluster, isolation: FetchIsolation) -> None:
    """Consumers do not get that record. Followers are told at once that it is committed."""
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    c.is_fetching = False
    cluster.lead("b")
    cluster.settle()
    assert b.partition.high_watermark < b.log.end_mark
    future = b.manager.fetch_messages(FetchParams(isolation, max_wait_ms=500), {EVENTS: ConsumerFetch(0)})
    c.is_fetching = True
    cluster.settle()
    assert {broker.partition.high_watermark for broker in cluster.brokers.values()} == {b.log.end_mark}
    assert not future.done()
    appended(b, messages(b"x"))
    cluster.settle()
    assert b"x" in read_bytes(future.result(0)[EVENTS])


def test_a_fetch_does_not_end_with_a_segment_that_has_no_records(make: Callable[..., Cluster]) -> None:
    cluster = make(retention=RetentionConfig(retention_bytes=0))
    a = cluster.brokers["a"]
    appended(a, messages(b"x"))
    cluster.settle()
    future = a.manager.fetch_messages(FetchParams(max_wait_ms=500), {EVENTS: ConsumerFetch(1)})
    a.partition.apply_retention()
    cluster.settle()
    assert a.partition.high_watermark.position > a.log.segment_bytes
    assert not future.done()
    appended(a, messages(b"y"))
    cluster.settle()
    assert b"y" in read_bytes(future.result(0)[EVENTS])


def test_a_fetch_whose_time_is_over_is_answered_with_what_there_is(cluster: Cluster, a: Broker) -> None:
    params = FetchParams(max_wait_ms=1000, min_bytes=3000)
    future = a.manager.fetch_messages(params, {EVENTS: ConsumerFetch(0)})
    appended(a, messages(b"little"))
    cluster.settle()
    cluster.advance_ms(999)
    assert not future.done()
    cluster.advance_ms(2)
    data = future.result(0)[EVENTS]
    assert data.code is ErrorCode.NONE
    assert b"little" in read_bytes(data)


def test_fetch_with_an_error_in_one_partition_is_answered_at_once(a: Broker) -> None:
    fetches = {EVENTS: ConsumerFetch(0), ORDERS: ConsumerFetch(0)}
    data = a.manager.fetch_messages(FetchParams(max_wait_ms=1000), fetches).result(0)
    assert [each.code for each in data.values()] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert a.manager.fetch_messages(FetchParams(max_wait_ms=1000), {}).result(0) == {}


@pytest.mark.parametrize("before", [None, 1])
def test_a_fetch_that_waits_ends_with_the_role(cluster: Cluster, a: Broker, before: int | None) -> None:
    """before: the leader is deposed just before the fetch watches its bytes (check-watch-check)."""
    state = cluster.states[EVENTS][1].led_by("b")
    if before is not None:
        a.purgatory.before_watch = [lambda: a.partition.state_changed(99, state)]
    future = a.manager.fetch_messages(FetchParams(max_wait_ms=1000), {EVENTS: ConsumerFetch(0)})
    if before is None:
        assert not future.done()
        a.partition.state_changed(99, state)
    assert future.result(0)[EVENTS].code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_bytes_that_come_just_before_a_fetch_watches_end_it(cluster: Cluster, a: Broker) -> None:
    appended(a, messages(b"x"))
    a.purgatory.before_watch = [cluster.settle]
    future = a.manager.fetch_messages(FetchParams(max_wait_ms=1000), {EVENTS: ConsumerFetch(0)})
    assert future.result(0)[EVENTS].size > 0


def test_bytes_that_come_before_a_fetch_watches_leave_less_for_the_others() -> None:
    """Each of two has to bring a half. One brings more than that before it is watched: the other has to bring less."""
    purgatory, future = HookedPurgatory(), AppendFuture[FetchResponses](None)
    first, second = (ReplicaRole(name, is_leader=True) for name in (EVENTS, ORDERS))
    isolation = FetchIsolation.HIGH_WATERMARK

    def move() -> None:
        purgatory.drain()  # an inbox with anything in it counts as somebody who waits
        first.advance(purgatory, isolation, LogPosition(3000, 1))

    purgatory.before_watch = [move]
    parts = [WatchedPart(role, ORIGIN, 1 << 20) for role in (first, second)]
    DelayedFetch(parts, isolation, 4000, dict, future, purgatory).watch(1000)
    purgatory.drain()
    assert not future.done()
    second.advance(purgatory, isolation, LogPosition(1500, 1))
    purgatory.drain()
    assert future.done()


def test_mark_moves_before_the_purgatory_is_checked_for_waiters() -> None:
    """Who comes between the two reads the mark again when it has its place in the purgatory."""

    class Room(Purgatory):
        def is_watched(self, *keys: Hashable) -> bool:
            seen.append(role.marks[FetchIsolation.HIGH_WATERMARK].position)
            return super().is_watched(*keys)

    seen: list[int] = []
    role, room, future = ReplicaRole(EVENTS, is_leader=True), Room(), AppendFuture[None](None)
    role.advance(room, FetchIsolation.HIGH_WATERMARK, LogPosition(5, 1))
    room.watch(role.keys[FetchIsolation.HIGH_WATERMARK], 6, future)
    role.advance(room, FetchIsolation.HIGH_WATERMARK, LogPosition(6, 2))
    room.drain()
    assert future.done()
    assert seen == [5, 6]


def test_all_leader_marks_move_before_the_purgatory_is_checked_for_waiters() -> None:
    """One look is for all of them."""

    class Room(Purgatory):
        def is_watched(self, *keys: Hashable) -> bool:
            seen.append((*(mark.position for mark in role.marks.values()), role.log_end, role.changes))
            return super().is_watched(*keys)

    seen: list[tuple[int, ...]] = []
    role, room = ReplicaRole(EVENTS, is_leader=True), Room()
    role.advance_all(room, LogPosition(9, 3), LogPosition(7, 2), LogPosition(5, 1))
    assert seen == [(7, 5, 9, 1)]
    keys = [*role.keys.values(), role.changes_key]
    for waiting in keys:
        future = AppendFuture[None](None)
        room.watch(waiting, role.changes + 1 if waiting is role.changes_key else role.log_end + 1, future)
        room.drain()
        role.advance_all(room, *[LogPosition(role.log_end + 9, 3)] * 3)
        room.drain()
        assert future.done(), f"who waits for {waiting} is woken"


# ---- fetches of followers ---------------------------------------------------------------------------------------


def test_a_followers_fetch_counts_before_its_bytes_are_read(cluster: Cluster, a: Broker) -> None:
    """And its answer tells what it has made committed."""
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    appended(a, messages(b"x"))
    end = a.log.end_mark
    fetch_alone(a, follower_fetch(a, "c"))
    answer = answer_to(a, follower_fetch(a, "b"))
    assert isinstance(answer, FetchedRecords)
    assert answer.high_watermark == a.partition.high_watermark == end


def test_a_followers_fetch_counts_also_while_it_waits(cluster: Cluster, a: Broker) -> None:
    cluster.settle()
    future = produce(a, messages(b"x"), ACKS_ALL)
    for name in "bc":
        cluster.brokers[name].is_fetching = False
        fetch = follower_fetch(a, name, high_watermark=a.log.end_mark)
        fetch_alone(a, fetch, max_wait_ms=1000)
    assert outcome(future).code is ErrorCode.NONE


def test_waiting_fetch_of_a_follower_is_answered_when_the_high_watermark_moves(cluster: Cluster, a: Broker) -> None:
    cluster.settle()
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    appended(a, messages(b"x"))
    first = fetch_alone(a, follower_fetch(a, "b"), max_wait_ms=1000)
    assert not first.done()
    second = fetch_alone(a, follower_fetch(a, "c"), max_wait_ms=1000)
    for future in (first, second):
        response = future.result(0)[EVENTS].response
        assert isinstance(response, FetchedRecords)
        assert response.high_watermark == a.log.end_mark


def test_high_watermark_that_moves_before_a_fetch_is_watched_answers_the_fetch(cluster: Cluster, a: Broker) -> None:
    cluster.settle()
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    appended(a, messages(b"x"))
    other = follower_fetch(a, "c")

    def commit() -> None:
        a.purgatory.drain()  # an inbox with anything in it counts as somebody who waits
        fetch_alone(a, other)

    a.purgatory.before_watch = [commit]
    fetch = follower_fetch(a, "b")
    response = fetch_alone(a, fetch, max_wait_ms=1000).result(0)[EVENTS].response
    assert fetch.high_watermark < a.log.end_mark
    assert isinstance(response, FetchedRecords)
    assert response.high_watermark == a.log.end_mark


REFUSED_FETCHES: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "an old epoch": ({"epoch": epoch(0, "z")}, ErrorCode.FENCED_LEADER_EPOCH),
    "an epoch from the future": ({"epoch": epoch(9)}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "a stranger": ({"member": Member("z", 1)}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "an old incarnation": ({"member": Member("c", 1)}, ErrorCode.STALE_BROKER_EPOCH),
    "no such record": ({"position": LogPosition(4100, 0)}, ErrorCode.OFFSET_OUT_OF_RANGE),
}


@pytest.mark.parametrize("name", REFUSED_FETCHES)
def test_lying_followers_are_refused(cluster: Cluster, a: Broker, name: str) -> None:
    appended(a, messages(b"x"))
    cluster.register("c", 2)
    fields, code = REFUSED_FETCHES[name]
    high_watermark = a.partition.high_watermark
    assert answer_to(a, follower_fetch(a, "b", **fields)) == FetchRefused(7, code)
    assert a.partition.high_watermark == high_watermark


@pytest.mark.parametrize(
    "fields", [{"position": LogPosition(1 << 40, 1 << 30)}, {"last_epoch": epoch(7)}], ids=["ahead", "other epoch"]
)
def test_logs_that_differ_are_cut_before_they_count(cluster: Cluster, a: Broker, fields: dict[str, Any]) -> None:
    appended(a, messages(b"x"))
    high_watermark = a.partition.high_watermark
    answer = answer_to(a, follower_fetch(a, "b", **fields))
    assert isinstance(answer, DivergingEpoch)
    assert (answer.history, answer.end) == (a.log.history, a.log.end_mark)
    assert a.partition.high_watermark == high_watermark


def test_fetches_of_followers_of_other_brokers(cluster: Cluster, a: Broker) -> None:
    fetch = follower_fetch(a)
    assert answer_to(cluster.brokers["b"], fetch) == FetchRefused(7, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    future = fetch_alone(a, fetch, topic=ORDERS)
    assert future.result(0)[ORDERS].response == FetchRefused(7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_records_of_another_epoch_are_not_taken_for_those_of_the_leader(cluster: Cluster, a: Broker) -> None:
    """A deposed leader's log was cut while its answer was on its way: the views show the records of the next one."""
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    cluster.settle()
    c.is_looking = c.is_fetching = False
    old_epoch = a.epoch
    before = c.log.end_mark
    cluster.lead("b")
    cluster.settle()
    appended(b, messages(b"of b"))
    assert c.last_fetch is not None
    records = b.log.read_frames(before, 1 << 20)
    lie = FetchedRecords(c.last_fetch.number, old_epoch, before, records.end, (), before, LogPosition(0, 0), records)
    c.partition.fetch_answered(lie)
    c.is_looking = c.is_fetching = True
    c.refresh(EVENTS)
    cluster.settle()
    appended(b, messages(b"more"))
    cluster.settle()
    assert c.log.end_mark == b.log.end_mark
    assert c.log.history == b.log.history


def test_a_follower_that_lags_leaves_the_isr_and_comes_back(cluster: Cluster, a: Broker) -> None:
    c = cluster.brokers["c"]
    c.is_fetching = False
    future = produce(a, messages(b"x"), ACKS_ALL)
    cluster.settle()
    cluster.clock.advance(LAG_US // 2)
    cluster.settle()
    a.manager.check_isr()
    assert len(cluster.states[EVENTS][1].isr) == 3
    cluster.clock.advance(LAG_US)
    cluster.brokers["b"].partition.fetch_timed_out(0)
    appended(a, messages(b"y"))
    cluster.settle()
    a.manager.check_isr()
    cluster.settle()
    assert [member.broker for member in cluster.states[EVENTS][1].isr] == ["a", "b"]
    assert outcome(future).code is ErrorCode.NONE
    c.is_fetching = True
    cluster.settle()
    assert len(cluster.states[EVENTS][1].isr) == 3


# ---- locks ------------------------------------------------------------------------------------------------------


def test_no_lock_is_held_while_responses_are_given(cluster: Cluster, a: Broker) -> None:
    """A callback may do anything, also wait for another thread that uses the partition (KAFKA-8334)."""
    stuck: list[str] = []

    def use(name: str) -> Callable[[object], None]:
        def callback(_: object) -> None:
            thread = threading.Thread(target=lambda: (appended(a, messages(b"y")), fetched(a)), daemon=True)
            thread.start()
            thread.join(5)
            if thread.is_alive():
                stuck.append(name)

        return callback

    produce(a, messages(b"x"), ACKS_ALL).add_done_callback(use("produce"))
    a.manager.fetch_messages(FetchParams(max_wait_ms=900), {EVENTS: ConsumerFetch(0)}).add_done_callback(use("fetch"))
    cluster.settle()
    assert stuck == []
    late = produce(a, messages(b"x"), ACKS_ALL)
    late.add_done_callback(use("deposed"))
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    cluster.lead("b")
    cluster.settle()
    assert late.done()
    assert stuck == []


# ---- how often a fetch that waits is looked at ------------------------------------------------------------------


def test_a_fetch_is_looked_at_when_a_partition_has_its_share() -> None:
    """Not at each append: the looks grow with the logarithm of its bytes."""
    min_bytes, partitions = 1 << 20, 8
    ends = [0] * partitions
    looks, wake = 0, wake_positions([FetchedPart(ORIGIN, ORIGIN, 1 << 30)] * partitions, min_bytes)
    appends = 0
    while wake is not None:
        ends[appends % partitions] += 64
        appends += 1
        if any(at is not None and end >= at for end, at in zip(ends, wake, strict=True)):
            looks += 1
            marks = [LogPosition(end, end // 64) for end in ends]
            wake = wake_positions([FetchedPart(ORIGIN, mark, 1 << 30) for mark in marks], min_bytes)
    assert appends == min_bytes // 64
    assert looks < 20


def test_bytes_above_a_partitions_limit_do_not_count() -> None:
    full, mark = FetchedPart(ORIGIN, LogPosition(5000, 50), 100), LogPosition(10, 1)
    assert wake_positions([full, FetchedPart(mark, mark, 1000)], 100) is None
    assert wake_positions([full, FetchedPart(mark, mark, 1000)], 300) == [None, 210]
    assert wake_positions([full, FetchedPart(mark, mark, 50)], 300) == [None, 60]
    assert wake_positions([full], 300) == [None]
    above = FetchedPart(LogPosition(500, 5), LogPosition(100, 1), 1000)
    assert wake_positions([above], 50) == [550], "an offset above the high watermark"


def test_a_fetch_that_is_late_takes_no_place_of_the_next_one(tmp_path: Path) -> None:
    """Two threads tell a replica of two leaders; the first one comes to its fetch when the second one is done."""
    cluster = Cluster(tmp_path)
    try:
        cluster.elect()
        cluster.inbox.clear()
        broker, (version, led) = cluster.brokers["c"], cluster.states[EVENTS]
        is_late, goes_on = threading.Event(), threading.Event()

        def told(_: TopicPartition, __: int | None) -> None:
            if not is_late.is_set():
                is_late.set()
                assert goes_on.wait(PATIENCE_S)

        broker.partition.watch_role(told)
        thread = threading.Thread(target=broker.partition.state_changed, args=(version, led))
        thread.start()
        assert is_late.wait(PATIENCE_S)
        after = led.led_by("b" if led.leader == "a" else "a")
        broker.partition.state_changed(version + 1, after)
        goes_on.set()
        thread.join()
        assert broker.last_fetch is not None and broker.last_fetch.epoch == after.epoch
    finally:
        cluster.close()
