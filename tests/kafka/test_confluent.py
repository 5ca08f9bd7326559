"""librdkafka against the listener: each codec, idempotence, offsets, administration, and a leader that goes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from tests.kafka.kafka_brokers import KafkaBrokers
from tests.waiting import PATIENCE_S, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        yield cluster.start("1")


def admin(brokers: KafkaBrokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": brokers.addresses})


def produce_all(brokers: KafkaBrokers, values: list[bytes], topic: str = "events", **settings: Any) -> None:
    """Raises the first error of a delivery."""
    producer = Producer({"bootstrap.servers": brokers.addresses, "linger.ms": 5, **settings})
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(
                    topic, value, key=b"k%d" % number, partition=0, headers=[("h", b"v")], on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    if errors:
        raise KafkaException(errors[0])


def consume(brokers: KafkaBrokers, count: int, topic: str = "events", start: int = 0, **settings: Any) -> list[Message]:
    """Messages of partition 0, by assignment."""
    consumer = Consumer({
        "bootstrap.servers": brokers.addresses, "group.id": "none", "enable.auto.commit": False, **settings,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        messages: list[Message] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(messages) < count:
            assert time.monotonic() < deadline_s, f"{len(messages)} of {count}"
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, message.error()
                messages.append(message)
        return messages
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_consumed_messages_equal_the_produced_ones(
    brokers: KafkaBrokers, codec: str, idempotent: bool, seed: int
) -> None:
    brokers.create()
    rng = random.Random(seed)
    values = [rng.randbytes(rng.choice((0, 10, 300, 20_000))) for _ in range(500)]
    settings = {"compression.type": codec, "enable.idempotence": idempotent}
    produce_all(brokers, values, **settings)
    messages = consume(brokers, len(values))
    assert [message.value() or b"" for message in messages] == values
    assert [message.offset() for message in messages] == list(range(len(values)))
    assert messages[3].key() == b"k3" and messages[3].headers() == [("h", b"v")]
    start = rng.randrange(len(values))
    assert [m.value() or b"" for m in consume(brokers, len(values) - start, start=start)] == values[start:]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_librdkafka_produces_with_each_number_of_acks(brokers: KafkaBrokers, acks: str) -> None:
    brokers.create()
    produce_all(brokers, [b"%d" % number for number in range(100)], acks=acks)
    assert len(consume(brokers, 100)) == 100


def test_produce_creates_a_missing_topic(brokers: KafkaBrokers) -> None:
    produce_all(brokers, [b"a"], topic="unheard-of")
    assert consume(brokers, 1, topic="unheard-of")[0].value() == b"a"


def test_offsets_by_time_and_by_name(brokers: KafkaBrokers) -> None:
    brokers.create()
    produce_all(brokers, [b"x"] * 50)
    consumer = Consumer({"bootstrap.servers": brokers.addresses, "group.id": "none"})
    try:
        partition = TopicPartition("events", 0)
        assert consumer.get_watermark_offsets(partition, PATIENCE_S) == (0, 50)
        time_ms = consume(brokers, 50)[20].timestamp()[1]
        (found,) = consumer.offsets_for_times([TopicPartition("events", 0, time_ms)], timeout=PATIENCE_S)
        assert 0 <= found.offset <= 20
    finally:
        consumer.close()


def test_librdkafka_administers_topics(brokers: KafkaBrokers) -> None:
    client = admin(brokers)
    made = NewTopic("orders", 2, 1, config={"retention.ms": "60000", "max.message.bytes": "5000"})
    client.create_topics([made])["orders"].result(PATIENCE_S)
    topic = client.list_topics(timeout=PATIENCE_S).topics["orders"]
    assert [partition.leader for partition in topic.partitions.values()] == [1, 1]
    with pytest.raises(KafkaException) as failure:
        client.create_topics([made])["orders"].result(PATIENCE_S)
    assert failure.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    for name, value in (("no.such", "1"), ("cleanup.policy", "shrink")):
        with pytest.raises(KafkaException) as failure:
            client.create_topics([NewTopic("others", 1, 1, config={name: value})])["others"].result(PATIENCE_S)
        assert failure.value.args[0].code() == KafkaError.INVALID_CONFIG
    client.create_partitions([NewPartitions("orders", 4)])["orders"].result(PATIENCE_S)
    assert len(client.list_topics("orders", timeout=PATIENCE_S).topics["orders"].partitions) == 4

    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    (described,) = client.describe_configs([resource]).values()
    settings = described.result(PATIENCE_S)
    assert settings["retention.ms"].value == "60000" and not settings["retention.ms"].is_default
    assert settings["min.insync.replicas"].value == "1" and settings["min.insync.replicas"].is_default
    entry = ConfigEntry("max.message.bytes", "6000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    (altered,) = client.incremental_alter_configs([change]).values()
    altered.result(PATIENCE_S)

    (described,) = client.describe_configs([resource]).values()
    assert described.result(PATIENCE_S)["max.message.bytes"].value == "6000", "the broker knows when it answers"

    client.delete_topics(["orders"])["orders"].result(PATIENCE_S)
    assert "orders" not in client.list_topics(timeout=PATIENCE_S).topics
    client.create_topics([NewTopic("orders", 1, 1)])["orders"].result(PATIENCE_S)


def change_config(client: AdminClient, kind: ConfigResource.Type, name: str, setting: str, value: str | None) -> None:
    """Set a setting, or delete it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value or "", incremental_operation=operation)
    (altered,) = client.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values()
    altered.result(PATIENCE_S)


def test_throttles_that_were_never_set_can_be_deleted(brokers: KafkaBrokers) -> None:
    """As `kafka-reassign-partitions --verify` does, of topics and of brokers."""
    client, topic, broker = admin(brokers), ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
    client.create_topics([NewTopic("moved", 1, 1)])["moved"].result(PATIENCE_S)
    for kind, name, setting in (
        (topic, "moved", "leader.replication.throttled.replicas"),
        (broker, "1", "leader.replication.throttled.rate"),
    ):
        change_config(client, kind, name, setting, None)
        with pytest.raises(KafkaException) as failure:
            change_config(client, kind, name, setting, "1000")
        assert failure.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_segments_hold_the_largest_messages_of_a_topic(brokers: KafkaBrokers) -> None:
    """Whatever `segment_bytes` of the broker is, unless the topic says another size."""
    client, value = admin(brokers), bytes(range(256)) * (5 << 12)
    large = NewTopic("large", 1, 1, config={"max.message.bytes": str(6 << 20)})
    small = NewTopic("small", 1, 1, config={"max.message.bytes": str(6 << 20), "segment.bytes": str(1 << 20)})
    for made in client.create_topics([large, small]).values():
        made.result(PATIENCE_S)
    errors: dict[str, KafkaError | None] = {}
    producer = Producer({"bootstrap.servers": brokers.addresses, "message.max.bytes": 8 << 20})
    for topic in ("large", "small"):
        producer.produce(topic, value, on_delivery=lambda error, sent: errors.update({str(sent.topic()): error}))
    assert producer.flush(PATIENCE_S) == 0
    assert errors["large"] is None
    refused = errors["small"]
    assert refused is not None and refused.code() == KafkaError.RECORD_LIST_TOO_LARGE
    partition = brokers.brokers["1"].partition("large", 0)
    assert partition is not None and partition.high_watermark.entry == 1


def test_the_cluster_is_described(brokers: KafkaBrokers) -> None:
    brokers.start("2")
    client = admin(brokers)  # a future ends with its client
    described = client.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert {node.id for node in described.nodes} == {1, 2}
    assert {f"{node.host}:{node.port}" for node in described.nodes} == {*brokers.addresses.split(",")}
    assert len(described.cluster_id) == 22


def test_librdkafka_deletes_records(brokers: KafkaBrokers) -> None:
    brokers.create()
    produce_all(brokers, [b"x" * 100_000] * 40)
    client = admin(brokers)
    future = client.delete_records([TopicPartition("events", 0, 30)])
    (deleted,) = future.values()
    low = deleted.result(PATIENCE_S).low_watermark
    assert low == 30
    assert consume(brokers, 10, start=30)[0].offset() == 30


def test_a_preferred_leader_is_elected(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", "2")
        brokers.create(replication_factor=2)
        client = admin(brokers)
        first = brokers.leader()
        brokers.stop(first)
        assert brokers.leader() != first
        brokers.start(first)

        def elect() -> bool:
            """Again until the one that came back is in the ISR."""
            name = TopicPartition("events", 0)
            outcome = client.elect_leaders(ElectionType.PREFERRED, [name]).result(PATIENCE_S)
            return outcome[name] is None or outcome[name].code() == KafkaError.ELECTION_NOT_NEEDED

        until(elect, pause_s=0.1)
        until(lambda: brokers.leader() == first)


def test_a_leader_goes_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Three brokers; the producer and the consumer find the new leader by themselves."""
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", "2", "3")
        brokers.create(replication_factor=3, min_isr=2)
        settings = {
            "bootstrap.servers": brokers.addresses, "enable.idempotence": True, "linger.ms": 1,
            "message.timeout.ms": 1000 * int(PATIENCE_S), "retry.backoff.ms": 50, "topic.metadata.refresh.fast.interval.ms": 50,
        }  # fmt: skip
        producer = Producer(settings)
        delivered: list[bytes] = []
        errors: list[KafkaError] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                delivered.append(message.value() or b"")

        for number in range(300):
            if number == 100:
                assert producer.flush(PATIENCE_S) == 0
                brokers.stop(brokers.leader())
            producer.produce("events", b"%d" % number, partition=0, on_delivery=note)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        assert not errors and delivered == [b"%d" % number for number in range(300)]
        assert [message.value() for message in consume(brokers, 300)] == delivered
