"""`pyreplog report` by Spark, beside the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

import pyreplog
from pyreplog.cli.app import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("rate_by_minute", "key_skew")


def test_both_engines_keep_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=64 << 10) as log:
        log.append_batch([b"%d" % n for n in range(900)], [b"k%d" % (n % 7) for n in range(900)])
    only = [text for name in NAMES for text in ("--only", name)]
    for engine in ("spark", "local"):
        target = str(tmp_path / engine)
        page = ["-o", str(tmp_path / f"{engine}.html"), "--parquet", target, "--engine", engine]
        assert main(["report", str(tmp_path / "log"), *page, *only]) == 0
    for name in NAMES:
        tables, expected = (parquet.read_table(tmp_path / engine / f"{name}.parquet") for engine in ("spark", "local"))
        assert len(expected) > 0
        assert tables == expected
