"""Spark reads the backlog of a subscription and groups it by key.

    python examples/backlog_spark.py DIRECTORY

It needs the extra `spark` and Java. The program publishes visits to a topic and acknowledges some of them. Spark then
reads the others from the files, without a server; reading acknowledges nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

import pyreplog

PAGES = [b"/", b"/docs", b"/pricing"]


def publish(directory: Path) -> None:
    with pyreplog.Cluster.embedded(directory, bookies=1, segment_bytes=16 << 20) as cluster:
        visits = cluster.topic("visits")
        visits.create_subscription("counter", start="earliest")
        numbers = range(3000)
        visits.publish_batch([b"visit %d" % n for n in numbers], keys=[PAGES[n % 3] for n in numbers])
        with visits.subscribe("counter") as consumer:
            message = consumer.receive(timeout=30.0)
            assert message is not None
            consumer.acknowledge_cumulative(message.offset + 1199)  # 1,200 messages are done with, 1,800 are left


def backlog_by_page(spark: SparkSession, directory: Path) -> DataFrame:
    backlog = (
        spark.read.format("pyreplog")
        .options(topics="visits", subscription="counter", columns="key,timestamp,size")  # values stay unread
        .load(str(directory.resolve()))
    )
    return (
        backlog.groupBy(functions.col("key").cast("string").alias("page"))
        .agg(functions.count("*").alias("visits"), functions.sum("size").alias("bytes"))
        .orderBy("page")
    )


def main(directory: Path) -> None:
    publish(directory)
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    backlog_by_page(spark, directory).show()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
