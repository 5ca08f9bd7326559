"""A Spark in a process of its own, which does one piece of work after another."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.unwaited import Unwaited, count_as_own

_STARTS_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_WARM = 1
"""So many times a piece of work is done before it is measured: Spark compiles meanwhile."""


class Spark:
    """One that runs."""

    def __init__(self, running: Job) -> None:
        self._running = running

    def do(self, work: str, *given: str) -> tuple[float, Any]:
        """A function of `works`: how many seconds it took, and what it gave."""
        self._running.ask(json.dumps([work, given]))
        took, found, workers_s = self._running.answer()
        count_as_own(self._running.pid, workers_s)
        return took, found

    def warm(self, plan: Plan, work: str, *given: str) -> Any:
        """Before it is measured; what it gave."""
        found = self.do(work, *given)[1]
        for _ in range(_WARM if plan.budget >= 1 else 0):
            self.do(work, *given)
        return found


@contextmanager
def warm_spark(plan: Plan, folder: Path) -> Iterator[Spark]:
    """One with two threads."""
    with job("warm_spark", str(folder / "spark"), plan.budget >= 1) as running:
        yield Spark(running)
        running.ask("stop")
        running.wait()


def serve(folder: str, is_long: bool) -> None:
    """Do what each line of standard input says, until "stop"; say how long it took, what it gave, and how many seconds
    of CPU its Python workers have had so far. is_long: what runs is compiled."""
    from pyspark.sql import SparkSession

    from benchmarks.rows.spark import works

    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers', too
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.local.dir": folder}
    settings |= {"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
    settings |= {"spark.python.unix.domain.socket.enabled": "true"}
    if not is_long:
        settings |= {"spark.driver.extraJavaOptions": _STARTS_FAST}
        settings |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.config("spark.sql.warehouse.dir", folder).config("spark.driver.memory", "2g").getOrCreate()
    workers = Unwaited()
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        work, given = json.loads(line)
        begin = time.perf_counter()
        found = getattr(works, work)(spark, *given)
        took = time.perf_counter() - begin
        print(json.dumps([took, found, workers.measure()]), flush=True)
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it removes its files
