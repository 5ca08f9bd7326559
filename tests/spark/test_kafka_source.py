"""Spark's own source and sink of Kafka against the listener: batches and streams, record by record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.foreign.spark_kafka import close_producers, load_kafka
from tests.kafka.kafka_brokers import KafkaBrokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


QUERY_S = 240
SCHEMA = "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    """Brokers, and a Spark that knows the format."""
    load_kafka(spark)
    with KafkaBrokers(tmp_path_factory.mktemp("brokers"), rebalance_delay_ms=0) as brokers:
        yield brokers.start("1", "2")
        close_producers(spark)


def draw_rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Key, value, partition, headers; each value but null is another one."""
    rng = random.Random(seed)
    return [
        (
            rng.choice((None, b"", b"k%d" % rng.randrange(5))),
            rng.choice((None, b"%d " % number + rng.randbytes(rng.choice((0, 10, 2000))))),
            rng.randrange(2),
            rng.choice((None, [("h", b"1"), ("h", rng.randbytes(3))])),
        )
        for number in range(count)
    ]


def write(kafka: KafkaBrokers, spark: SparkSession, topic: str, rows: list[tuple[Any, ...]]) -> None:
    frame = spark.createDataFrame(rows, SCHEMA)
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": kafka.addresses, "topic": topic}).save()


def options(kafka: KafkaBrokers, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.addresses, "subscribe": topic, "includeHeaders": "true", **more}


def read(kafka: KafkaBrokers, spark: SparkSession, topic: str, **more: str) -> list[Any]:
    """The rows of a topic, ordered by partition and offset."""
    frame = spark.read.format("kafka").options(**options(kafka, topic, **more)).load()
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def content(row: Any) -> tuple[Any, ...]:
    headers = [(header.key, bytes(header.value)) for header in row.headers] if row.headers else None
    key, value = (None if data is None else bytes(data) for data in (row.key, row.value))
    return key, value, row.partition, headers


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_spark_reads_what_spark_wrote(kafka: KafkaBrokers, spark: SparkSession, codec: str, seed: int) -> None:
    topic = f"batch-{codec}"
    kafka.create(topic, 2, replication_factor=2, min_isr=2)
    rows = draw_rows(seed, 200)
    frame = spark.createDataFrame(rows, SCHEMA)
    settings = {"kafka.bootstrap.servers": kafka.addresses, "topic": topic, "kafka.compression.type": codec}
    frame.write.format("kafka").options(**settings).save()
    received = read(kafka, spark, topic)
    assert ordered([content(row) for row in received]) == ordered(rows)
    for partition in (0, 1):
        offsets = [row.offset for row in received if row.partition == partition]
        assert offsets == list(range(len(offsets)))
    assert {row.topic for row in received} == {topic} and {row.timestampType for row in received} == {0}


def test_spark_reads_ranges_and_times(kafka: KafkaBrokers, spark: SparkSession, seed: int) -> None:
    kafka.create("ranges", 2)
    write(kafka, spark, "ranges", draw_rows(seed, 100))
    received = [row for row in read(kafka, spark, "ranges") if row.partition == 0]
    low, high = sorted(random.Random(seed).sample(range(len(received) + 1), 2))
    bounds = {
        "startingOffsets": f'{{"ranges": {{"0": {low}, "1": -2}}}}',
        "endingOffsets": f'{{"ranges": {{"0": {high}, "1": -1}}}}',
    }
    assert [row for row in read(kafka, spark, "ranges", **bounds) if row.partition == 0] == received[low:high]
    time_ms = round(received[low].timestamp.timestamp() * 1000)
    later = read(kafka, spark, "ranges", startingTimestamp=str(time_ms), startingOffsetsByTimestampStrategy="latest")
    first = next(row.offset for row in received if row.timestamp >= received[low].timestamp)
    assert [row for row in later if row.partition == 0] == received[first:]
    split = read(kafka, spark, "ranges", minPartitions="7")
    assert [row for row in split if row.partition == 0] == received


@contextmanager
def running(query: Any) -> Iterator[Any]:
    try:
        yield query
    finally:
        query.stop()


def test_a_stream_from_topic_to_topic(kafka: KafkaBrokers, spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Each record once, although the query ends between two parts and another one goes on from its checkpoint."""
    kafka.create("here", 2)
    kafka.create("there", 2)
    rows = draw_rows(seed, 150)
    target = {
        "kafka.bootstrap.servers": kafka.addresses,
        "topic": "there",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }

    def copy() -> None:
        source: DataFrame = (
            spark.readStream.format("kafka")
            .options(**options(kafka, "here", startingOffsets="earliest", maxOffsetsPerTrigger="60"))
            .load()
        )
        columns = source.select("key", "value", "partition", "headers")
        with running(columns.writeStream.format("kafka").options(**target).trigger(availableNow=True).start()) as query:
            assert query.awaitTermination(QUERY_S)
            assert query.exception() is None

    write(kafka, spark, "here", rows[:100])
    copy()
    write(kafka, spark, "here", rows[100:])
    copy()
    here, there = read(kafka, spark, "here"), read(kafka, spark, "there")
    assert [content(row) for row in there] == [content(row) for row in here]
    assert ordered([content(row) for row in here]) == ordered(rows)
