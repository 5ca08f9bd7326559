"""Exactly once into Parquet: `kill -9` of Spark, driver and JVM, at random moments, while the log is written.

PYREPLOG_SPARK_KILLS says how many times (1).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from tests.spark import streaming_driver
from tests.spark.spark_home import python_path, spark_home
from tests.spark.streams import append, open_log, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("PYREPLOG_SPARK_KILLS", "1"))
LIMIT_S = 300.0


@contextmanager
def writer_of(log: pyreplog.CommitLog, most: int) -> Iterator[None]:
    """Appends go on meanwhile, slowly, up to so many entries."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.01) and log.end < most:
            append(log, 50)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def committed(folder: Path) -> int:
    """Batches that Spark knows to be done."""
    return sum(path.name.isdecimal() for path in (folder / "checkpoint" / "commits").glob("*"))


def run_and_kill(folder: Path, batches: int, delay_s: float) -> None:
    """A Spark that is killed so long after so many batches more."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(folder / "home")
    command = [sys.executable, "-m", "tests.spark.streaming_driver", str(folder)]
    before, deadline = committed(folder), time.monotonic() + LIMIT_S
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )  # fmt: skip
        try:
            while committed(folder) < before + batches:
                assert process.poll() is None, (folder / "output").read_text()
                assert time.monotonic() < deadline, (folder / "output").read_text()
                time.sleep(0.01)
            time.sleep(delay_s)
            assert process.poll() is None, (folder / "output").read_text()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_killed_stream_writes_each_row_once(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("kill")  # not too long a path for sockets
    spark_home(folder)
    with open_log(folder / "log") as log:
        append(log, 1000)
        with writer_of(log, 30_000):
            for _ in range(KILLS):
                run_and_kill(folder, rng.randrange(1, 4), rng.random() * 0.4)
        streaming_driver.ROWS = 100_000
        assert committed(folder) >= KILLS
        assert streaming_driver.start(spark, folder, available_now=True).awaitTermination(LIMIT_S)
        rows = spark.read.parquet(str(folder / "sink")).orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(log.end))
        assert all(row.value == value_of(row.offset) for row in rows)
