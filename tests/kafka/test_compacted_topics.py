"""Topics with cleanup.policy=compact, for librdkafka: what a consumer reads from the beginning is the latest of each key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.kafka_brokers import KafkaBrokers
from tests.waiting import PATIENCE_S, until

SETTINGS = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "65536",
    "max.message.bytes": "30000",
}  # fmt: skip


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path, broker_settings={"cleaner_check_ms": 20}) as cluster:
        yield cluster.start("1")


def create(brokers: KafkaBrokers, replicas: int = 1, **changes: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.addresses})
    admin.create_topics([NewTopic("states", 1, replicas, config={**SETTINGS, **changes})])["states"].result(PATIENCE_S)
    brokers.leader("states")


def read_all(brokers: KafkaBrokers, start: int = 0) -> list[Message]:
    """From an offset to the end."""
    settings = {"bootstrap.servers": brokers.addresses, "group.id": "none", "enable.partition.eof": True}
    consumer, messages = Consumer({**settings, "auto.offset.reset": "error"}), list[Message]()
    try:
        consumer.assign([TopicPartition("states", 0, start)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return messages
            assert error is None, error
            messages.append(message)
    finally:
        consumer.close()


def test_a_consumer_reads_the_latest_value_of_each_key(brokers: KafkaBrokers, seed: int) -> None:
    rng = random.Random(seed)
    codec = rng.choice(("none", "gzip", "snappy", "lz4", "zstd"))
    create(brokers)
    producer = Producer(
        {"bootstrap.servers": brokers.addresses, "compression.type": codec, "batch.size": 20_000, "linger.ms": 5}
    )
    latest: dict[bytes, bytes | None] = {}
    for number in range(2500):
        key = b"key %d" % rng.randrange(50)
        value = None if rng.random() < 0.05 else rng.randbytes(200)
        producer.produce("states", value, key, partition=0)
        latest[key] = value
        if number % 100 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0

    until(lambda: len(read_all(brokers)) < 1000, 3 * PATIENCE_S, pause_s=0.2)  # each look takes the cleaner's time
    messages = read_all(brokers)
    found: dict[bytes, bytes | None] = {}
    for message in messages:
        key = message.key()
        assert isinstance(key, bytes)
        value = message.value()
        assert value is None or isinstance(value, bytes)
        found[key] = value
    assert {key: value for key, value in found.items() if value is not None} == {
        key: value for key, value in latest.items() if value is not None
    }
    offsets = [message.offset() for message in messages]
    assert offsets == sorted({*offsets})
    start = rng.randrange(2500)
    later = [message.offset() for message in read_all(brokers, start)]
    assert all(offset is not None and offset >= start for offset in later)
    assert not brokers.brokers["1"].cleaner.uncleanable


def test_a_record_without_a_key_is_refused(brokers: KafkaBrokers) -> None:
    create(brokers)
    outcomes = list[KafkaError | None]()
    producer = Producer({"bootstrap.servers": brokers.addresses})
    for key in (b"key", None):
        producer.produce("states", b"value", key, partition=0, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(PATIENCE_S) == 0
    assert outcomes[0] is None
    refusal = outcomes[1]
    assert refusal is not None and refusal.code() == KafkaError.INVALID_RECORD
    assert [message.key() for message in read_all(brokers)] == [b"key"]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_without_keys_are_named_one_by_one(brokers: KafkaBrokers, codec: str) -> None:
    """The client fails them as invalid, and the others of their batch as refused because of them."""
    create(brokers)
    # `flush` ends the linger: all records go in one batch
    producer = Producer({"bootstrap.servers": brokers.addresses, "compression.type": codec, "linger.ms": 60_000})
    failed: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is not None
        failed[message.value() or b""] = error.code()

    for number in range(20):
        producer.produce("states", b"%d" % number, None if number % 7 == 3 else b"key", 0, delivered)
    assert producer.flush(PATIENCE_S) == 0
    keyless = {value for value, code in failed.items() if code == KafkaError.INVALID_RECORD}
    assert keyless == {b"3", b"10", b"17"} and len(failed) == 20


def test_replicas_are_compacted_as_their_leader_is(brokers: KafkaBrokers, tmp_path: Path, seed: int) -> None:
    """Over TCP; then the leader goes."""
    rng = random.Random(seed)
    brokers.start("2")
    create(brokers, replicas=2)
    producer, latest = Producer({"bootstrap.servers": brokers.addresses, "acks": "all"}), dict[bytes, bytes]()
    for number in range(1000):
        key, value = b"key %d" % rng.randrange(30), rng.randbytes(200)
        producer.produce("states", value, key, partition=0)
        latest[key] = value
        if number % 100 == 0:
            assert producer.flush(PATIENCE_S) == 0
    assert producer.flush(PATIENCE_S) == 0
    leader = brokers.leader("states")
    other = "2" if leader == "1" else "1"
    until(lambda: len(read_all(brokers)) < 600, 3 * PATIENCE_S, pause_s=0.2)  # each segment takes several syncs
    until(lambda: closed_segments(tmp_path / leader) == closed_segments(tmp_path / other), 3 * PATIENCE_S, pause_s=0.05)
    assert brokers.brokers[other].cleaner.segments_copied > 0
    brokers.stop(leader)
    assert brokers.leader("states") == other
    messages = read_all(brokers)
    assert len(messages) < 1000
    assert {message.key(): message.value() for message in messages} == latest


def closed_segments(directory: Path) -> list[bytes]:
    """The content of the segments of a broker's replica: the first three, which are closed."""
    paths = sorted(path for path in directory.glob("*/*.log") if path.parent.name.endswith("-0"))
    return [path.read_bytes() for path in paths[:3]]
