"""Streams in Spark itself: its triggers, sinks and checkpoints, and errors that reach the user."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyreplog
from pyreplog.spark import acknowledge
from tests.spark.clusters import embedded
from tests.spark.streams import append, open_log, value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT_S = 600


class Collected:
    """What a query gives to foreachBatch: the offsets of each batch, and rows."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.rows: list[Any] = []

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        self.rows += rows
        self.batches.append(sorted(row.offset for row in rows))

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.readStream.format("pyreplog")
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.load(str(path))


def run(frame: DataFrame, checkpoint: Path, take: Any) -> StreamingQuery:
    """All that is available now."""
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return query


def failure(frame: DataFrame, checkpoint: Path) -> str:
    """What a query says when it fails."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run(frame, checkpoint, lambda frame, _: frame.collect())
    return str(caught.value)


def test_available_now_stream_ends_and_the_next_run_continues(spark: SparkSession, tmp_path: Path) -> None:
    """The log grows and rolls while the query runs; the next one goes on there, and the third has nothing to do."""
    with open_log(tmp_path / "log") as log:
        append(log, 1000)
        collected = Collected()

        def take(frame: DataFrame, batch: int) -> None:
            collected.take(frame, batch)
            append(log, 1000)

        run(load(spark, log.path, maxOffsetsPerTrigger=400), tmp_path / "checkpoint", take)
        assert collected.batches == [list(range(400)), list(range(400, 800)), list(range(800, 1000))]
        assert all(row.value == value_of(row.offset) for row in collected.rows)
        again = Collected()
        run(load(spark, log.path), tmp_path / "checkpoint", again.take)
        assert again.batches == [list(range(1000, 4000))]
        run(load(spark, log.path), tmp_path / "checkpoint", again.take)
        assert len(again.batches) == 1


@pytest.fixture
def live(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[pyreplog.CommitLog, StreamingQuery]]:
    with open_log(tmp_path / "log") as log:
        frame = load(spark, log.path, columns="offset", startingOffsets="latest", maxBytesPerTrigger="1m")
        query = frame.writeStream.format("memory").queryName("live").start()
        yield log, query
        query.stop()


def test_stream_delivers_records_as_they_are_appended(
    spark: SparkSession, live: tuple[pyreplog.CommitLog, StreamingQuery]
) -> None:
    log, query = live
    query.processAllAvailable()
    for count in (50, 2000, 100):
        append(log, count)
        query.processAllAvailable()
        actual = spark.sql("SELECT count(*), count(DISTINCT offset), max(offset) FROM live").collect()[0]
        assert tuple(actual) == (log.end, log.end, log.end - 1)
    (source,) = json.loads(query.recentProgress[-1].json)["sources"]
    for name in ("endOffset", "latestOffset"):
        offset = source[name] if isinstance(source[name], dict) else json.loads(source[name])
        ((_, position),) = offset["logs"].items()
        assert position == {"name": "log", "offset": log.end}


@pytest.mark.parametrize("lenient", [False, True])
def test_a_query_over_a_trimmed_log_fails_or_goes_on(spark: SparkSession, tmp_path: Path, lenient: bool) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 3000)
        collected = Collected()
        options = {"maxOffsetsPerTrigger": 500, "failOnDataLoss": lenient is False}

        def take(frame: DataFrame, batch: int) -> None:
            collected.take(frame, batch)
            log.trim(2000)

        frame = load(spark, log.path, **options)
        if lenient:
            run(frame, tmp_path / "checkpoint", take)
            assert collected.offsets == [*range(500), *range(log.start, 3000)]
        else:
            from pyspark.errors import StreamingQueryException

            with pytest.raises(
                StreamingQueryException, match=f"offset 500 was removed, the first one is {log.start or '.*'}"
            ):
                run(frame, tmp_path / "checkpoint", take)
            assert collected.offsets == list(range(500))
        assert 500 < log.start <= 2000


def test_a_query_reads_topics_from_their_subscription(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topics = [cluster.topic(f"orders-partition-{n}", durability="appended", roll_entries=3) for n in (0, 1)]
        for topic in topics:
            topic.create_subscription("spark", start="earliest")
        collected = Collected()

        def publish(*_: object) -> None:
            for topic in topics:
                for n in range(7):
                    topic.publish_batch([b"%d" % n] * 10)

        def take(frame: DataFrame, batch: int) -> None:
            collected.take(frame, batch)
            publish()

        publish()
        frame = load(spark, path, topics="orders", subscription="spark", maxOffsetsPerTrigger=50)
        query = run(frame, tmp_path / "checkpoint", take)
        assert all(len(batch) <= 50 for batch in collected.batches)
        read = {n: sum(row.partition == n for row in collected.rows) for n in (0, 1)}
        assert all(count >= 60 for count in read.values())
        assert query.lastProgress is not None
        moved = acknowledge(cluster, query.lastProgress, "spark")
        assert moved == {f"orders-partition-{n}": count for n, count in read.items()}
        for topic, count in zip(topics, moved.values(), strict=True):
            assert topic.stats().subscriptions[0].backlog_messages == topic.end - count
            topic.close()
    rest = Collected()
    run(load(spark, path, topics="orders"), tmp_path / "checkpoint", rest.take)
    rows = sorted((row.partition, row.offset) for row in collected.rows + rest.rows)
    assert rows == [(n, offset) for n in (0, 1) for offset in range(topics[n].end)]


def test_checkpoints_of_other_sources_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 100)
    with embedded(tmp_path / "data") as cluster:
        cluster.topic("orders", durability="appended").close()
    checkpoint, collected = tmp_path / "checkpoint", Collected()
    run(load(spark, tmp_path / "log"), checkpoint, collected.take)
    other_kind = failure(load(spark, tmp_path / "data", topics="orders"), checkpoint)
    assert (
        "CheckpointError: the checkpoint belongs to a stream of logs, and the query reads topics; "
        "begin with a new checkpoint" in other_kind
    )
    shutil.rmtree(tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        append(log, 100)
    anew = failure(load(spark, tmp_path / "log"), checkpoint)
    assert "CheckpointError: the checkpoint belongs to other logs (log)" in anew
    for file in (checkpoint / "offsets").iterdir():
        if file.name.isdecimal():
            file.write_text(file.read_text().replace('"v": 1', '"v": 9').replace('"v":1', '"v":9'))
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    newer = failure(load(spark, tmp_path / "log"), checkpoint)
    assert "offsets of version 9, this build reads 1" in newer


def test_batch_and_stream_options_are_refused_in_the_other_mode(spark: SparkSession, tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        append(log, 100)
    said = failure(load(spark, tmp_path / "log", endingOffsets=5), tmp_path / "checkpoint")
    assert "endingOffsets, endingTimestamp: expected with read, found with readStream" in said
    with pytest.raises(Exception, match="maxOffsetsPerTrigger: expected with readStream"):
        spark.read.format("pyreplog").option("maxOffsetsPerTrigger", 5).load(str(tmp_path / "log")).count()
