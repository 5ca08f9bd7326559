"""Consumers that name their rack read from a follower there (KIP-392); others read from leaders."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.kafka.node_ids import node_id_of
from pyreplog.kafka.wire.messages import FetchPartition, FetchRequest, FetchTopic
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, fetch, produce
from tests.waiting import PATIENCE_S, until

WAIT_MS, AT_ONCE_S = 30_000, 15.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    """The partition is led in rack A, followers are in B and C."""
    settings = {"transaction_state_partitions": 2}
    with KafkaBrokers(tmp_path, racks={"1": "A", "2": "B", "3": "C"}, broker_settings=settings) as brokers:
        brokers.start("1", "2", "3")
        brokers.create(assignment={0: ["1", "2", "3"]})
        assert brokers.leader() == "1"
        yield brokers


def records(value: bytes) -> bytes:
    return encode_batch(encode_records([value], None, [1000], None), 1, base_timestamp=1000, max_timestamp=1000)


def append(brokers: KafkaBrokers, *values: bytes) -> None:
    with RawClient(brokers.servers["1"]) as client:
        for value in values:
            answer = client.ask(ApiKey.PRODUCE, 9, produce(records(value)))
            assert answer.responses[0].partition_responses[0].error_code == 0


def ask(brokers: KafkaBrokers, name: str, request: FetchRequest, version: int = 12) -> Any:
    """The answer of a broker for the first partition."""
    with RawClient(brokers.servers[name]) as client:
        client.socket.settimeout(AT_ONCE_S)
        return client.ask(ApiKey.FETCH, version, request).responses[0].partitions[0]


def settled(brokers: KafkaBrokers) -> None:
    """Until the followers have told their leader that they have its records."""
    leader = brokers.brokers["1"].partition("events", 0)
    assert leader is not None
    end = leader.offsets().end
    until(lambda: leader.offsets().high_watermark == end)
    for name in "23":
        follower = brokers.brokers[name].partition("events", 0)
        assert follower is not None
        until(lambda follower=follower: follower.high_watermark.entry == end)


@pytest.mark.parametrize("version", [11, 12])
def test_leader_names_the_follower_in_the_rack_of_the_consumer(brokers: KafkaBrokers, version: int) -> None:
    """At once, although the fetch would wait, and without records."""
    append(brokers, b"one", b"two")
    settled(brokers)
    for offset in (0, 1, 2):
        request = fetch(offset, max_wait_ms=WAIT_MS, min_bytes=1 << 20, rack_id="C")
        answer = ask(brokers, "1", request, version)
        assert (answer.error_code, answer.preferred_read_replica) == (0, node_id_of("3"))
        assert not answer.records
        assert (answer.log_start_offset, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)


@pytest.mark.parametrize(("rack", "version"), [("A", 12), ("D", 12), ("", 12), ("C", 10)])
def test_leader_serves_consumers_of_its_rack_and_of_racks_without_a_replica(
    brokers: KafkaBrokers, rack: str, version: int
) -> None:
    """Requests of version 10 have no rack."""
    append(brokers, b"one")
    settled(brokers)
    answer = ask(brokers, "1", fetch(0, rack_id=rack if version > 10 else ""), version)
    assert answer.error_code == 0 and answer.preferred_read_replica == -1
    assert b"one" in bytes(answer.records)


def test_follower_serves_consumers_that_name_a_rack(brokers: KafkaBrokers) -> None:
    append(brokers, b"one")
    settled(brokers)
    answer = ask(brokers, "3", fetch(0, rack_id="C"))
    assert (answer.error_code, answer.high_watermark, answer.preferred_read_replica) == (0, 1, -1)
    assert b"one" in bytes(answer.records)
    for request, version in ((fetch(0), 12), (fetch(0), 10)):
        assert ask(brokers, "3", request, version).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(brokers, "3", fetch(2, rack_id="C")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_follower_answers_a_waiting_fetch_when_it_learns_that_records_are_committed(brokers: KafkaBrokers) -> None:
    append(brokers, b"one")
    settled(brokers)
    with RawClient(brokers.servers["3"]) as client:
        sent = client.send(ApiKey.FETCH, 12, fetch(1, max_wait_ms=WAIT_MS, rack_id="C"))
        append(brokers, b"two")
        (partition,) = client.answer(ApiKey.FETCH, 12, sent).responses[0].partitions
        assert b"two" in bytes(partition.records) and partition.high_watermark == 2


def test_leader_names_no_follower_that_is_away(brokers: KafkaBrokers) -> None:
    append(brokers, b"one")
    settled(brokers)
    brokers.stop("3")
    until(lambda: ask(brokers, "1", fetch(0, rack_id="C")).preferred_read_replica == -1)
    answer = ask(brokers, "1", fetch(0, rack_id="C"))
    assert answer.error_code == 0 and b"one" in bytes(answer.records)


def test_offset_out_of_range_is_told_by_the_leader(brokers: KafkaBrokers) -> None:
    append(brokers, b"one")
    settled(brokers)
    answer = ask(brokers, "1", fetch(7, rack_id="C"))
    assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_epoch_of_the_consumer_is_compared_before_a_follower_is_named(brokers: KafkaBrokers) -> None:
    append(brokers, b"one")
    settled(brokers)
    wanted = FetchPartition(0, 77, 0, partition_max_bytes=1 << 20)
    answer = ask(brokers, "1", FetchRequest(topics=(FetchTopic("events", partitions=(wanted,)),), rack_id="C"))
    assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)


def test_other_partitions_of_a_fetch_are_answered_as_well(brokers: KafkaBrokers) -> None:
    brokers.create("near", assignment={0: ["1", "2"]})
    append(brokers, b"one")
    settled(brokers)
    with RawClient(brokers.servers["1"]) as client:
        client.ask(ApiKey.PRODUCE, 9, produce(records(b"here"), topic="near"))
        topics = (fetch(0).topics[0], fetch(0, topic="near").topics[0])
        client.socket.settimeout(AT_ONCE_S)
        request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1 << 20, max_bytes=1 << 20, topics=topics, rack_id="C")
        far, near = (topic.partitions[0] for topic in client.ask(ApiKey.FETCH, 12, request).responses)
    assert far.preferred_read_replica == node_id_of("3") and not far.records
    assert near.preferred_read_replica == -1 and b"here" in bytes(near.records)


def test_follower_shows_no_aborted_transaction_to_consumers_of_committed_records(brokers: KafkaBrokers) -> None:
    producer = Producer({"bootstrap.servers": brokers.addresses, "transactional.id": "t"})
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    until(lambda: ask(brokers, "1", fetch(0)).last_stable_offset == 8)  # markers are written after the answer
    settled(brokers)
    request = fetch(0, rack_id="C", isolation_level=1)
    assert ask(brokers, "1", request).preferred_read_replica == node_id_of("3")
    partition = ask(brokers, "3", request)
    assert partition.last_stable_offset == partition.high_watermark == 8
    assert [each.first_offset for each in partition.aborted_transactions] == [2, 6]
    assert b"3" in bytes(partition.records), "clients leave out what is listed"


def test_librdkafka_reads_from_the_follower_in_its_rack_until_it_is_away(brokers: KafkaBrokers) -> None:
    """As its statistics say."""
    where = list[tuple[int, int]]()

    def note(text: str) -> None:
        for partition in json.loads(text)["topics"].get("events", {}).get("partitions", {}).values():
            if partition["partition"] == 0:
                where.append((partition["broker"], partition["leader"]))

    producer = Producer({"bootstrap.servers": brokers.addresses})
    consumer = Consumer({
        "bootstrap.servers": brokers.addresses, "group.id": "none", "enable.auto.commit": False, "client.rack": "C",
        "statistics.interval.ms": 50, "stats_cb": note, "fetch.wait.max.ms": 100, "topic.metadata.refresh.fast.interval.ms": 50,
    })  # fmt: skip
    seen = list[bytes]()

    def read_until(wanted: int, broker: str) -> None:
        """Until all that was produced so far is read, and the next message would come from a broker."""
        deadline_s = time.monotonic() + PATIENCE_S
        while len(seen) < wanted or not where or where[-1][0] != node_id_of(broker):
            assert time.monotonic() < deadline_s, (len(seen), where[-3:])
            for message in consumer.consume(100, 0.1):
                assert message.error() is None, message.error()
                seen.append(message.value() or b"")

    try:
        consumer.assign([TopicPartition("events", 0, 0)])
        for number in range(200):
            producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        read_until(200, "3")
        assert where[-1] == (node_id_of("3"), node_id_of("1"))
        for number in range(200, 400):
            producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        read_until(400, "3")
        brokers.stop("3")
        for number in range(400, 500):
            producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        read_until(500, "1")
    finally:
        consumer.close()
    assert seen == [b"%d" % number for number in range(500)]
