"""Rows for partitioned topics: to the partition that any producer chooses, each once, whatever is tried again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyreplog.errors import ConfigError
from pyreplog.spark.write.columns import WrittenColumns
from pyreplog.spark.write.options import WriteOptions
from pyreplog.spark.write.publisher import RowPublisher
from pyreplog.spark.write.rows import rows_of
from pyreplog.topic.model.routing import key_hash
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from tests.topic.remoting import PLAIN, ServedCluster, serve_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")

COLUMNS = WrittenColumns(0, 1, None, None, None)
Row = tuple[bytes | None, bytes]
"""Key and value."""
QUERY_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with serve_cluster(tmp_path_factory.mktemp("served")) as service:
        yield service


def make(server: ServedCluster, name: str, partitions: int = 3) -> PartitionedTopic:
    return server.cluster.topic(name, partitions=partitions, deduplicate=True, **PLAIN)


def options(server: ServedCluster, topic: str | None) -> WriteOptions:
    return WriteOptions(cluster=f"pyreplog://{server.server.address}", topic=topic)


def publish(publisher: RowPublisher, topic: str, rows: list[Row], first: int = 0) -> None:
    keys, values = (pa.array(column, pa.binary()) for column in zip(*rows, strict=True))
    batch = pa.RecordBatch.from_arrays([values, keys], names=["value", "key"])
    for row in rows_of(batch, COLUMNS, topic, first):
        publisher.publish(row)


def attempt(
    server: ServedCluster, topic: str, rows: list[Row], step: int, stop: int | None = None, batch: int = 0, **more: Any
) -> int:
    """Publishes them a few at a time; fails behind `stop` of them, with some on their way. How many it stored."""
    given = rows if stop is None else rows[:stop]
    with RowPublisher(options(server, topic), "spark-q-0", batch, **more) as publisher:
        for at in range(0, len(given), step):
            publish(publisher, topic, given[at : at + step], at)
        if stop is None:
            publisher.finish()
    return publisher.stored


def stored(topic: PartitionedTopic) -> list[list[Row]]:
    """Of each partition."""
    rows: list[list[Row]] = []
    for partition in range(topic.partitions):
        topic.partition(partition).publisher.flush_async().result(30.0)
        rows.append([(message.key, message.value) for batch in topic.read(partition) for message in batch])
    return rows


def drawn(chance: random.Random, count: int, keyed: float) -> list[Row]:
    return [(b"key %d" % chance.randrange(9) if chance.random() < keyed else None, b"%d" % n) for n in range(count)]


def check(items: list[list[Row]], rows: list[Row]) -> None:
    """Each row once; those with a key where any producer puts them; those of a partition in their order."""
    assert Counter(row for part in items for row in part) == Counter(rows)
    for partition, part in enumerate(items):
        assert part == [row for row in rows if row in set(part)]
        assert {key_hash(key) % len(items) for key, _ in part if key is not None} <= {partition}


@pytest.mark.parametrize("keyed", [0.0, 0.5, 1.0])
def test_each_row_once_where_it_belongs(server: ServedCluster, seed: int, keyed: float) -> None:
    """Attempts that fail behind any row, and take other steps."""
    chance, name = random.Random(f"{seed} {keyed}"), f"keyed {keyed}"
    topic = make(server, name)
    wanted = list[Row]()
    for batch in range(4):
        rows = [(key, b"%d/%s" % (batch, value)) for key, value in drawn(chance, chance.randrange(30, 60), keyed)]
        for _ in range(2):
            attempt(server, name, rows, chance.randrange(1, 20), chance.randrange(1, len(rows)), batch)
        attempt(server, name, rows, chance.randrange(1, 20), batch=batch)
        wanted += rows
        check(stored(topic), wanted)
        assert attempt(server, name, rows, 7, batch=batch) == 0, "all is there"
    check(stored(topic), wanted)


def test_rows_without_a_key_are_spread(server: ServedCluster) -> None:
    """Those of one task, and the first rows of many that have only one."""
    topic = make(server, "even")
    attempt(server, "even", [(None, b"%d" % n) for n in range(30)], 30)
    assert [len(part) for part in stored(topic)] == [10, 10, 10]
    for batch in range(1, 4):
        attempt(server, "even", [(None, b"%d/0" % batch)], 1, batch=batch)
    assert [len(part) for part in stored(topic)] == [11, 11, 11]


def test_a_job_writes_to_the_partitions_at_its_start(server: ServedCluster) -> None:
    """A job goes on with those that there were when it began."""
    rows: list[Row] = [(b"key %d" % n, b"%d" % n) for n in range(40)]
    make(server, "grown", 2)
    attempt(server, "grown", rows, 7, 25, partitions=2)
    topic = make(server, "grown", 4)
    attempt(server, "grown", rows, 7, partitions=2)
    messages = stored(topic)
    assert messages[2:] == [[], []]
    check(messages[:2], rows)


def test_a_partition_by_its_name_beside_the_topic(server: ServedCluster) -> None:
    """Its numbers would not ascend."""
    make(server, "both")
    with RowPublisher(options(server, None), "spark-q-0", 0) as publisher:
        publish(publisher, "both", [(None, b"v")])
        publisher.finish()
        with pytest.raises(ConfigError, match="topic both-partition-1: expected rows for it, or for the topic"):
            publish(publisher, "both-partition-1", [(None, b"v")], 1)


def test_partitions_that_do_not_know_duplicates(server: ServedCluster) -> None:
    server.cluster.topic("plain", partitions=2, **PLAIN)
    with pytest.raises(ConfigError, match="topic plain-partition-0: expected a topic with deduplicate=True"):
        attempt(server, "plain", [(None, b"v")], 1)


def test_spark_writes_rows_to_the_partitions_of_their_keys(spark: SparkSession, server: ServedCluster) -> None:
    topic = make(server, "jobs")
    rows: list[Row] = [(None if n % 4 == 0 else b"key %d" % (n % 7), b"%d" % n) for n in range(80)]
    frame = spark.range(0, 80, 1, 2).selectExpr(
        "if(id % 4 = 0, null, concat('key ', id % 7)) key", "cast(id as string) value", "'jobs' topic"
    )
    url = f"pyreplog://{server.server.address}"
    frame.drop("topic").write.format("pyreplog").mode("append").options(cluster=url, topic="jobs").save()
    messages = stored(topic)
    assert Counter(row for part in messages for row in part) == Counter(rows)
    assert all(key is None or key_hash(key) % 3 == n for n, part in enumerate(messages) for key, _ in part)
    frame.write.format("pyreplog").mode("append").options(cluster=url).save()
    assert sum(map(len, stored(topic))) == 160


def test_tasks_of_a_query_that_fail(spark: SparkSession, server: ServedCluster, tmp_path: Path) -> None:
    """When half of their rows are there, and the query goes on: each row is there once."""
    from pyarrow import parquet
    from pyspark.errors import StreamingQueryException

    from tests.spark.failing import FailingSink

    topic = make(server, "query")
    rows = drawn(random.Random(7), 60, 0.5)
    (tmp_path / "input").mkdir()
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(("key", "value"))})
    parquet.write_table(table, tmp_path / "input" / "0.parquet")
    spark.dataSource.register(FailingSink)
    stream = spark.readStream.schema("key binary, value binary").parquet(str(tmp_path / "input")).coalesce(1)
    writer = stream.writeStream.format("failing-once").trigger(availableNow=True)
    (tmp_path / "checkpoint").mkdir()
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.options(cluster=f"pyreplog://{server.server.address}", topic="query")
    with pytest.raises(StreamingQueryException, match="half of its rows are there"):
        writer.start().awaitTermination(QUERY_S)
    assert sum(map(len, stored(topic))) == 30
    assert writer.start().awaitTermination(QUERY_S)
    check(stored(topic), rows)
