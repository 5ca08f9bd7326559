"""A Spark whose executors are processes of their own: `python -m tests.spark.apart_driver FOLDER`.

FOLDER has `reads.json`, options of reads by their names, and `home`; `found.json` is made: values and plan of each read,
and what runs the tasks.
"""

from __future__ import annotations

import json
import os
import sys
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.spark_home import JAVA

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def process_above() -> str:
    """The command of the process that has started this one's."""
    above = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    return Path(f"/proc/{above}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local-cluster[1,2,1024]").appName("apart")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    reads = json.loads((folder / "reads.json").read_text())
    frames = {name: spark.read.format("pyreplog").options(**given).load() for name, given in reads.items()}
    plans = {name: str(frame._jdf.queryExecution()) for name, frame in frames.items()}
    named = [frame.select(f.lit(name).alias("name"), "value") for name, frame in frames.items()]
    rows = reduce(DataFrame.unionAll, named).collect()  # one job: starting executors is what takes time
    values = {name: sorted(row.value.hex() for row in rows if row.name == name) for name in reads}
    above = spark.sparkContext.parallelize(range(4), 4).map(lambda _: process_above()).collect()
    (folder / "found.json").write_text(json.dumps({"values": values, "plans": plans, "above": above}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
