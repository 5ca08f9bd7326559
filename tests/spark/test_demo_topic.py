"""The topic that the demo makes, read by Kafka's tools: kcat, and Spark's own source."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from tests.foreign.spark_kafka import load_kafka
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = [(b"N%d" % (number % 40), b"flight %d" % number) for number in range(2_000)]


def test_kcat_and_spark_read_the_topic_of_the_demo(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "flights"))
    from partitions import NAMES, PARTITIONS, lose_a_broker, start

    url = f"sqlite:{tmp_path / 'metadata'}"
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([value for _, value in FLIGHTS], keys=[key for key, _ in FLIGHTS])
    said = list(lose_a_broker(tmp_path / "log", tmp_path / "brokers", url))
    assert said[-1].startswith("2,000 flights were acknowledged, and all are there")

    with ExitStack() as stack:
        brokers = [stack.enter_context(closing(start(tmp_path / "brokers" / name, url))) for name in NAMES]
        addresses = ",".join(broker.wait_for("kafka") for broker in brokers)
        done = subprocess.run(
            ["kcat", "-q", "-C", "-b", addresses, "-t", "flights", "-e", "-f", "%p %k %s\\n"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
        assert sorted((key.encode(), value.encode()) for _, key, value in lines) == sorted(FLIGHTS)
        assert {partition for partition, _, _ in lines} <= {str(number) for number in range(PARTITIONS)}

        load_kafka(spark)
        options = {"kafka.bootstrap.servers": addresses, "subscribe": "flights", "startingOffsets": "earliest"}
        rows = spark.read.format("kafka").options(**options).load().collect()
        assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == sorted(FLIGHTS)
        assert sorted(
            [str(row.partition), bytes(row.key).decode(), bytes(row.value).decode()] for row in rows
        ) == sorted(lines)
