"""Groups of stock consumers: subscriptions, commits, members that come and go, a coordinator that goes."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_INVALID, Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.partition.metadata.topic_metadata import delete_topic, find_topic
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.kafka.test_confluent import produce_all
from tests.waiting import PATIENCE_S, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaConsumer

VALUES = [b"%d" % number for number in range(100)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path, rebalance_delay_ms=0, offsets_partitions=4) as cluster:
        cluster.start("1")
        cluster.create(partitions=2)
        yield cluster


def member(brokers: KafkaBrokers, group: str = "billing", **settings: Any) -> Consumer:
    consumer = Consumer({
        "bootstrap.servers": brokers.addresses, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 200, **settings,
    })  # fmt: skip
    consumer.subscribe(["events"])
    return consumer


def take(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"{len(values)} of {count}"
        for message in consumer.consume(count - len(values), 0.5):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    return values


def test_offsets_are_committed_and_found_again(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    first = member(brokers)
    assert take(first, 60) == VALUES[:60]
    first.commit(asynchronous=False)
    first.close()
    second = member(brokers)
    assert take(second, 40) == VALUES[60:]
    second.close()


def test_two_members_share_the_partitions(brokers: KafkaBrokers) -> None:
    first, second = member(brokers), member(brokers)

    def are_shared() -> bool:
        for consumer in (first, second):
            consumer.poll(0.05)
        return [len(consumer.assignment()) for consumer in (first, second)] == [1, 1]

    until(are_shared)
    second.close()

    def is_alone() -> bool:
        first.poll(0.05)
        return len(first.assignment()) == 2

    until(is_alone)
    first.close()


def test_topic_that_is_created_again_has_no_committed_offsets(brokers: KafkaBrokers) -> None:
    """Its consumers would else begin at offsets of the deleted topic, and miss records without an error."""
    produce_all(brokers, VALUES)
    with_group = Consumer({"bootstrap.servers": brokers.addresses, "group.id": "billing"})
    places = [TopicPartition("events", number, 40) for number in (0, 1)]
    with_group.commit(offsets=places, asynchronous=False)
    assert [each.offset for each in with_group.committed(places)] == [40, 40]
    with_group.close()
    admin = AdminClient({"bootstrap.servers": brokers.addresses})
    admin.delete_topics(["events"])["events"].result()
    admin.create_topics([NewTopic("events", 2, 1)])["events"].result()
    again = Consumer({"bootstrap.servers": brokers.addresses, "group.id": "billing"})
    until(lambda: all(each.offset < 0 for each in again.committed(places)))
    again.close()
    produce_all(brokers, VALUES)
    consumer = member(brokers)
    assert sorted(take(consumer, len(VALUES))) == sorted(VALUES)
    consumer.close()


def test_coordinator_that_was_down_while_a_topic_was_created_again_drops_its_offsets(tmp_path: Path) -> None:
    """It learns of no deletion by watching: only the id of the topic tells that it is another one."""
    with KafkaBrokers(tmp_path, rebalance_delay_ms=0, offsets_partitions=1) as brokers:
        brokers.start("1", "2")
        brokers.create("__consumer_offsets", assignment={0: ["1"]})
        for topic in ("events", "bills"):
            brokers.create(topic, assignment={0: ["2"]})
        places = [TopicPartition("bills", 0, 20), TopicPartition("events", 0, 40)]
        consumer = Consumer({"bootstrap.servers": brokers.addresses, "group.id": "billing"})
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        brokers.stop("1")
        delete_topic(brokers.store, "events")
        until(lambda: find_topic(brokers.store, "events") is None)
        brokers.create("events", assignment={0: ["2"]})
        brokers.start("1")
        consumer = Consumer({"bootstrap.servers": brokers.addresses, "group.id": "billing"})
        offsets = [each.offset for each in sorted(consumer.committed(places, PATIENCE_S), key=lambda at: at.topic)]
        consumer.close()
        assert offsets == [20, OFFSET_INVALID]


def test_consumer_with_an_instance_id_commits_offsets_of_partitions_that_it_has_chosen(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    settings = {"bootstrap.servers": brokers.addresses, "group.id": "billing", "group.instance.id": "i"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition("events", 0, 0)])
    consumer.commit(offsets=[TopicPartition("events", 0, 7)], asynchronous=False)
    assert consumer.committed([TopicPartition("events", 0)])[0].offset == 7
    consumer.close()


def test_librdkafka_administers_classic_groups(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    consumer = member(brokers)
    take(consumer, 10)
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": brokers.addresses})
    listed = admin.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert [group.group_id for group in listed.valid] == ["billing"] and not listed.errors
    described = admin.describe_consumer_groups(["billing"], request_timeout=PATIENCE_S)["billing"].result(PATIENCE_S)
    assert described.state.name == "STABLE" and len(described.members) == 1
    asked = ConsumerGroupTopicPartitions("billing", [TopicPartition("events", 0)])
    (future,) = admin.list_consumer_group_offsets([asked]).values()
    assert future.result(PATIENCE_S).topic_partitions[0].offset == 10
    consumer.close()
    admin.delete_consumer_groups(["billing"], request_timeout=PATIENCE_S)["billing"].result(PATIENCE_S)
    assert not admin.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S).valid


def test_kafka_python_resumes_at_its_committed_offset(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    for start in (0, 50):
        consumer = KafkaConsumer(
            "events", bootstrap_servers=brokers.addresses, group_id="python", auto_offset_reset="earliest",
            enable_auto_commit=False, max_poll_records=50,
        )  # fmt: skip
        values: list[bytes] = []

        def poll(consumer: Any = consumer, values: list[bytes] = values) -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                values.extend(record.value for record in records)
            return len(values) >= 50

        try:
            until(poll)
            assert values[:50] == VALUES[start : start + 50]
            consumer.commit()
        finally:
            consumer.close()


def test_aiokafka_resumes_at_its_committed_offset(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)

    async def run() -> None:
        for start in (0, 50):
            consumer = AIOKafkaConsumer(
                "events", bootstrap_servers=brokers.addresses, group_id="aio", auto_offset_reset="earliest",
                enable_auto_commit=False,
            )  # fmt: skip
            await consumer.start()
            try:
                assert [(await consumer.getone()).value for _ in range(50)] == VALUES[start : start + 50]
                await consumer.commit()
            finally:
                await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S))


def test_committed_offsets_survive_their_coordinator(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, rebalance_delay_ms=0, offsets_partitions=1) as brokers:
        brokers.start("1", "2", "3")
        brokers.create(replication_factor=3)
        produce_all(brokers, VALUES)
        first = member(brokers)
        assert take(first, 60) == VALUES[:60]
        first.commit(asynchronous=False)
        first.close()
        brokers.stop(brokers.leader("__consumer_offsets"))
        second = member(brokers)
        assert take(second, 40) == VALUES[60:]
        second.close()


def test_metrics_show_groups_and_their_lag(brokers: KafkaBrokers) -> None:
    def value(name: str, **labels: str) -> float | None:
        """Of the sample with these labels, besides that of the broker."""
        samples = {metric.name: metric.samples for metric in kafka_metrics(brokers.servers["1"])}[
            f"pyreplog_kafka_{name}"
        ]
        found = [value for has, value in samples if has == {"broker": "1", **labels}]
        return float(found[0]) if found else None  # type: ignore[arg-type]

    assert value("groups", state="Stable") == 0 and value("connections") == 0
    produce_all(brokers, VALUES)
    consumer = member(brokers)
    take(consumer, 60)
    consumer.commit(asynchronous=False)
    committed = {
        each.partition: each.offset for each in consumer.committed([TopicPartition("events", at) for at in (0, 1)])
    }
    assert value("groups", state="Stable") == 1 and value("group_members", group="billing") == 1
    assert (value("connections") or 0) > 0
    lags = 0.0
    for number, offset in committed.items():
        where = {"group": "billing", "topic": "events", "partition": str(number)}
        if offset >= 0:
            assert value("group_offset", **where) == offset
            lags += value("group_lag", **where) or 0
        else:
            assert value("group_lag", **where) is None
            lags += brokers.brokers["1"].partition("events", number).high_watermark.entry  # type: ignore[union-attr]
    assert lags == 40
    consumer.close()
    until(lambda: value("groups", state="Empty") == 1)
    assert value("group_members", group="billing") == 0
