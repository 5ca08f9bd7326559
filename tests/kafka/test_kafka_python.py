"""kafka-python and aiokafka against the listener."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

from tests.kafka.kafka_brokers import KafkaBrokers
from tests.waiting import PATIENCE_S, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
VALUES = [b"value %d" % number * 20 for number in range(300)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        cluster.start("1")
        cluster.create()
        yield cluster


def read(brokers: KafkaBrokers, count: int, start: int = 0) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=brokers.addresses, enable_auto_commit=False)
    try:
        partition = TopicPartition("events", 0)
        consumer.assign([partition])
        consumer.seek(partition, start)
        values: list[bytes] = []

        def take() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        until(take)
        return values
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "snappy"])  # it wants another package
def test_kafka_python_produces_and_fetches(brokers: KafkaBrokers, codec: str | None) -> None:
    """Its producer is idempotent unless it is told not to be."""
    producer = KafkaProducer(bootstrap_servers=brokers.addresses, compression_type=codec, linger_ms=5)
    try:
        futures = [producer.send("events", value, partition=0) for value in VALUES]
        producer.flush(PATIENCE_S)
        assert [future.get(PATIENCE_S).offset for future in futures] == list(range(len(VALUES)))
    finally:
        producer.close(PATIENCE_S)
    assert read(brokers, len(VALUES)) == VALUES
    assert read(brokers, 100, start=200) == VALUES[200:]


def test_kafka_python_asks_for_offsets(brokers: KafkaBrokers) -> None:
    producer = KafkaProducer(bootstrap_servers=brokers.addresses)
    for number in range(10):
        producer.send("events", b"x", partition=0, timestamp_ms=1_790_000_000_000 + number)
    producer.close(PATIENCE_S)
    consumer = KafkaConsumer(bootstrap_servers=brokers.addresses)
    try:
        partition = TopicPartition("events", 0)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        assert consumer.offsets_for_times({partition: 1_790_000_000_004})[partition].offset == 4
        assert consumer.offsets_for_times({partition: 1_790_000_000_011})[partition] is None
        assert "events" in consumer.topics() and consumer.partitions_for_topic("events") == {0}
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_produces_and_fetches(brokers: KafkaBrokers, codec: str | None) -> None:
    async def run() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": brokers.addresses}
        producer = AIOKafkaProducer(compression_type=codec, enable_idempotence=codec is None, **settings)
        await producer.start()
        try:
            pending = [await producer.send("events", value, partition=0) for value in VALUES]
            offsets = [(await future).offset for future in pending]
            assert offsets == list(range(len(VALUES)))
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(enable_auto_commit=False, **settings)
        await consumer.start()
        try:
            partition = AioTopicPartition("events", 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            assert [(await consumer.getone()).value for _ in VALUES] == VALUES
            assert await consumer.end_offsets([partition]) == {partition: len(VALUES)}
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
