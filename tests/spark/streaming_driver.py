"""A whole Spark that copies a log into Parquet files until it is killed: `python -m tests.spark.streaming_driver FOLDER`.

FOLDER has `log`; the rest is made: `sink`, `checkpoint`, and Spark's own files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.spark_home import JAVA, socket_settings

ROWS = 300
"""In a batch, at most."""


def start(spark: SparkSession, folder: Path, *, available_now: bool) -> StreamingQuery:
    """The query, which goes on where the one before it was killed."""
    stream = spark.readStream.format("pyreplog").option("maxOffsetsPerTrigger", ROWS).option("minPartitions", 2)
    writer = stream.load(str(folder / "log")).select("offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "sink"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").appName("driver")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **socket_settings(folder),
    }.items():
        builder = builder.config(name, value)
    start(builder.getOrCreate(), folder, available_now=False).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
