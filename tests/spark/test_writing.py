"""Spark writes to topics: what goes in comes out, tasks and drivers that die store nothing twice, mistakes are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyreplog.topic.owner.topic import Topic
from tests.topic.remoting import PLAIN, ServedCluster, serve_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[2]
PAIRS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema([
    ("key", pa.binary()), ("value", pa.binary()), ("eventTime", pa.timestamp("us", tz="UTC")), ("headers", PAIRS)
])  # fmt: skip
DRIVER_S = 600.0
"""Drivers and queries are as far as they get by then, wherever they run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "data"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServedCluster]:
    with serve_cluster(folder) as service:
        yield service


def make(server: ServedCluster, name: str, **settings: Any) -> Topic:
    return server.cluster.topic(name, **{"deduplicate": True, "retention_bytes": None, **PLAIN, **settings})


def write(server: ServedCluster, frame: DataFrame, **options: str) -> None:
    url = f"pyreplog://{server.server.address}"
    frame.write.format("pyreplog").mode("append").options(cluster=url, **options).save()


def save(table: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table, path)


def save_input(folder: Path, files: list[list[bytes]]) -> None:
    """What `dying.stream_of` reads: a batch of each."""
    for number, rows in enumerate(files):
        texts = pa.array([row.decode() for row in rows])
        save(pa.Table.from_arrays([texts], names=["value"]), folder / "input" / f"{number}.parquet")


def values(topic: Topic) -> list[bytes]:
    return [bytes(value) for batch in topic.read() for value in batch.values()]


def test_rows_of_parquet_are_written_and_read_back(
    spark: SparkSession, server: ServedCluster, folder: Path, tmp_path: Path
) -> None:
    start = datetime(2024, 2, 29, tzinfo=UTC)
    rows = [
        (
            None if n % 3 else b"key %d" % (n % 7),
            b"" if n % 11 == 0 else b"value %d" % n,
            None if n % 5 else start + timedelta(microseconds=n),
            [("trace", b"%d" % n), ("source", b"\x00\xff")] if n % 4 == 0 else None,
        )
        for n in range(500)
    ]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    for part in range(3):
        save(table.slice(part * 200, 200), tmp_path / "rows" / f"{part}.parquet")
    topic = make(server, "orders")
    write(server, spark.read.parquet(str(tmp_path / "rows")), topic="orders")
    assert topic.end == 500
    topic.close()  # what it has is on disk
    reader = spark.read.format("pyreplog").options(topics="orders", columns="key,value,eventTime,headers")
    rows_by_value = {row.value: row for row in reader.load(str(folder)).collect() if row.value}
    for key, value, moment, headers in rows:
        if value:
            row = rows_by_value.pop(value)
            at = None if row.eventTime is None else row.eventTime.replace(tzinfo=UTC)
            assert (row.key, at) == (key, moment)
            assert sorted(map(tuple, row.headers or ())) == sorted(headers or ())
    assert not rows_by_value


def test_text_topics_by_column_and_empty_partitions(spark: SparkSession, server: ServedCluster) -> None:
    topics = [make(server, f"column {n}") for n in range(2)]
    frame = spark.range(0, 40, 1, 3).selectExpr(
        "concat('column ', id % 2) topic", "cast(id as string) value", "cast(null as string) key"
    )
    write(server, frame.where("id < 10 or id > 30"))
    for n in range(2):
        assert sorted(values(topics[n]), key=int) == [b"%d" % i for i in [*range(10), *range(31, 40)] if i % 2 == n]
    write(server, frame.where("id < 0"), topic="column 0")  # the option wins, and nothing comes
    write(server, frame.where("id = 1"), topic="column 0")
    assert values(topics[0])[-1] == b"1"


def test_another_job_is_not_the_same_job(spark: SparkSession, server: ServedCluster) -> None:
    topic = make(server, "jobs")
    frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) value")
    for _ in range(2):
        write(server, frame, topic="jobs")
    assert sorted(values(topic)) == sorted(2 * [b"%d" % n for n in range(10)])
    producers = {message.producer for batch in topic.read() for message in batch}
    assert len(producers) == 4
    assert {name.rpartition(b"-")[2] for name in producers if name} == {b"0", b"1"}


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("cast(id as string) value", {"topic": "nowhere"}, "NoSuchTopicError: topic nowhere: create it before"),
        ("cast(id as string) value", {"topic": "twice"}, "ConfigError: topic twice: expected a topic with deduplicate"),
        (
            "id value",
            {"topic": "orders"},
            "ConfigError: column value: expected the type binary or string, found bigint",
        ),
    ],
)
def test_invalid_write_options_raise_before_a_task_runs(
    spark: SparkSession, server: ServedCluster, columns: str, options: dict[str, str], says: str
) -> None:
    from pyspark.errors import AnalysisException

    make(server, "twice", deduplicate=False)
    with pytest.raises(AnalysisException, match=says):
        write(server, spark.range(3).selectExpr(columns), **options)


def test_topics_are_not_overwritten(spark: SparkSession, server: ServedCluster) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(AnalysisException, match="mode: rows are appended to topics"):
        frame.write.format("pyreplog").mode("overwrite").options(cluster="pyreplog://h:1", topic="orders").save()


def test_errors_of_tasks_say_where(spark: SparkSession, server: ServedCluster) -> None:
    from pyspark.errors import PySparkException

    make(server, "rows")
    frame = spark.range(0, 40, 1, 2).selectExpr("if(id = 33, null, cast(id as string)) value", "'rows' topic")
    with pytest.raises(PySparkException) as caught:
        write(server, frame)
    text = str(caught.value)
    assert "InvalidArgumentError: column value: expected a value in each row, found null in row 13" in text
    assert "in partition 1 of batch 0" in text
    with pytest.raises(PySparkException) as caught:
        write(server, frame.selectExpr("'x' value", "'nowhere' topic"))
    assert "NoSuchTopicError: topic nowhere" in str(caught.value)
    assert "while writing to topic nowhere as producer spark-" in str(caught.value)


def test_a_streaming_query_writes_each_row_once(spark: SparkSession, server: ServedCluster, tmp_path: Path) -> None:
    """Of several batches; one that was not committed comes again when the query goes on, and changes nothing."""
    from tests.spark.dying import stream_of

    topic = make(server, "stream")
    batches = [[b"%d/%d" % (file, n) for n in range(50)] for file in range(3)]
    save_input(tmp_path, batches)
    url = f"pyreplog://{server.server.address}"
    for again in (False, True):
        if again:  # as if the driver had died before it noted that the last batch was written
            for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
                file.unlink()
        query = stream_of(spark, tmp_path).writeStream.format("pyreplog").options(cluster=url, topic="stream")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert query.start().awaitTermination(int(DRIVER_S))
        assert sorted(values(topic)) == sorted(chain.from_iterable(batches))
    assert len({message.producer for batch in topic.read() for message in batch}) == 2  # one for each partition


def test_tasks_and_drivers_that_die(spark: SparkSession, server: ServedCluster, tmp_path: Path) -> None:
    """kill -9 of a driver when its tasks have stored a batch, which Spark does not know."""
    from tests.spark.dying import DEADLY_BATCH, FILES, PARTITIONS, ROWS, stream_of

    retried, killed = make(server, "retried"), make(server, "killed")
    files = [[b"%d/%d" % (file, n) for n in range(80)] for file in range(FILES)]
    save_input(tmp_path, files)
    url = f"pyreplog://{server.server.address}"
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.dying", url, str(tmp_path)],
        cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    try:
        ends = time.monotonic() + DRIVER_S
        stored = [tmp_path / "checkpoint" / f"stored-{partition}" for partition in range(PARTITIONS)]
        while driver.poll() is None and not all(path.exists() for path in stored):
            assert time.monotonic() < ends, "it did not come to the batch in which it dies"
            time.sleep(0.01)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(30.0)
    assert driver.returncode == -signal.SIGKILL
    assert sorted(map(int, values(retried))) == list(range(ROWS))
    assert len(values(killed)) == 80 * (DEADLY_BATCH + 1)
    query = stream_of(spark, tmp_path).writeStream.format("pyreplog").options(cluster=url, topic="killed")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start().awaitTermination(int(DRIVER_S))
    assert sorted(values(killed)) == sorted(chain.from_iterable(files))
