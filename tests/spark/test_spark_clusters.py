"""Clusters in Spark itself: the plan, executors that open what they read, and errors that reach the user."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from tests.spark.clusters import KEPT, Nodes, embedded, fill, value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("pyreplog").options(**options)
    return reader.load() if path is None else reader.load(str(path))


def publish(cluster: pyreplog.Cluster) -> None:
    topic = cluster.topic("orders", durability="appended", roll_entries=5, compression="zstd", **KEPT)
    for n in range(20):
        topic.publish_batch([b"%d.%d" % (n, k) for k in range(5)], properties=[{"n": b"%d" % k} for k in range(5)])
    topic.create_subscription("late", start=90)
    topic.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clusters") / "data"
    with embedded(path) as cluster:
        fill(cluster, [3000, 5, 400], (3, 2, 2))
        publish(cluster)
    return path


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan())  # type: ignore[operator]


def test_each_entry_once_without_a_shuffle(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "bookie-1")
    frame = load(spark, tmp_path / "data", ledgers="0-2", columns="ledgerId,entryId,value", minPartitions="4")
    assert "Exchange" not in physical_plan(frame)
    assert frame.rdd.getNumPartitions() == 4
    rows = sorted((row.ledgerId, row.entryId, row.value) for row in frame.collect())
    wanted = [(ledger, entry) for ledger, count in enumerate((3000, 5, 400)) for entry in range(count)]
    assert rows == [(*place, value_of(*place)) for place in wanted]


def test_spark_reads_topics_of_a_cluster(spark: SparkSession, path: Path) -> None:
    frame = load(spark, path, topics="orders", includeHeaders="true")
    assert "Exchange" not in physical_plan(frame)
    rows = frame.orderBy("offset").collect()
    assert [(row.offset, row.value) for row in rows] == [(n, b"%d.%d" % divmod(n, 5)) for n in range(100)]
    assert [(row.headers[0].key, row.headers[0].value) for row in rows[:2]] == [("n", b"0"), ("n", b"1")]
    assert load(spark, path, topics="orders", subscription="late").count() == 10


def test_a_view_in_sql_reads_a_topic(spark: SparkSession, path: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW o USING pyreplog OPTIONS (path '{path}', topicsPattern 'ord.*')")
    assert spark.sql("SELECT topic, count(*), max(offset) FROM o GROUP BY topic").collect()[0][:] == ("orders", 100, 99)


def test_spark_reads_a_cluster_over_tcp(spark: SparkSession, tmp_path: Path) -> None:
    with Nodes(tmp_path, ("b0", "b1", "b2"), secret=b"swordfish-and-more") as nodes:
        with pyreplog.Cluster.connect(nodes.url, secret=b"swordfish-and-more") as cluster:
            fill(cluster, [500], (3, 2, 2))
            publish(cluster)
        options = {"cluster": nodes.url, "secret": "swordfish-and-more"}
        frame = load(spark, ledgers="0", columns="entryId,value", minPartitions="2", **options)
        assert sorted(map(tuple, frame.collect())) == [(n, value_of(0, n)) for n in range(500)]
        assert load(spark, topics="orders", columns="offset", **options).count() == 100
        assert load(spark, ledgers="0", columns="bookie", replica="all", **options).count() == 1000


def test_directory_missing_on_executors_raises_an_error_that_names_the_host(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    shutil.copytree(path, tmp_path / "data")
    frame = load(spark, tmp_path / "data", ledgers="0", columns="value")
    assert frame.limit(1).count() == 1
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(PySparkException, match=f"{tmp_path}/data: no such directory on host {socket.gethostname()}"):
        frame.collect()


def test_missing_topic_raises_analysis_exception(spark: SparkSession, path: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="topic nobody: it does not exist"):
        load(spark, path, topics="nobody").count()
