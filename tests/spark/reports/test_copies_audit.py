"""crc_audit, against plain Python that goes through the files byte by byte."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from pyreplog.errors import ConfigError
from pyreplog.reports import local_engine
from pyreplog.reports.copies.audit import CrcAudit
from pyreplog.reports.snapshot import Snapshot
from tests import samples
from tests.spark.reports.both import Row, check
from tests.spark.reports.striped import Striped, fill, flip_some, records_in, tear

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = Snapshot(as_of_us=0)
Ends = dict[tuple[str, str], int]
"""Bookie and segment -> where the records of that file end."""


@pytest.fixture
def cluster(tmp_path: Path, seed: int) -> Striped:
    striped = Striped.make(tmp_path / "data")
    fill(striped, random.Random(seed), 90, is_whole=True)
    return striped


def ends_of(cluster: Striped) -> Ends:
    return {
        (bookie, path.name): max((at + stride for at, stride in records_in(path)), default=4096)
        for bookie in cluster.names
        for path in cluster.segments(bookie)
    }


def rows_of(cluster: Striped, ends: Ends, torn: dict[str, int]) -> list[Row]:
    """ends: as they were before the damage. torn: bytes behind the end of a bookie's log."""
    rows = []
    for bookie in cluster.names:
        paths = [path for path in cluster.segments(bookie) if ends[bookie, path.name] > 4096]
        for path in paths:
            good = list(records_in(path))
            stop = ends[bookie, path.name]
            gaps, at = [], 4096
            for start, stride in [*good, (stop, 0)]:
                if start > at:
                    gaps.append((at, start))
                at = start + stride
            rows.append(
                {
                    "topic": None, "bookie": bookie, "segment": path.name, "records": len(good),
                    "bad_records": len(gaps), "first_bad_position": gaps[0][0] + int(path.stem) if gaps else None,
                    "torn_tail_bytes": torn.get(bookie, 0) if path == paths[-1] else 0,
                    "bytes_checked": sum(stride for _, stride in good) + sum(stop - start for start, stop in gaps),
                    "complete": True,
                }
            )  # fmt: skip
    return rows


def test_crc_audit_of_sound_bookies_finds_no_damage(cluster: Striped) -> None:
    rows = rows_of(cluster, ends_of(cluster), {})
    assert len(rows) > len(cluster.names)
    check(CrcAudit(), {"path": str(cluster.path)}, NOW, rows)
    assert not any(row["bad_records"] or row["torn_tail_bytes"] for row in rows)


def test_crc_audit_counts_damage_as_plain_python_does(cluster: Striped, seed: int, spark: SparkSession) -> None:
    rng = random.Random(seed)
    torn = {cluster.names[1]: tear(cluster, cluster.names[1])}
    ends = ends_of(cluster)
    flip_some(cluster, rng, 40, spared=cluster.names[1])  # where such a log ends is not known
    shutil.rmtree(cluster.folder(cluster.names[3]).parent)
    cluster.names.pop(3)
    rows = rows_of(cluster, ends, torn)
    assert sum(row["bad_records"] for row in rows) > 10
    check(CrcAudit(), {"path": str(cluster.path)}, NOW, rows, spark=spark)


def test_damage_in_front_of_a_blank(cluster: Striped) -> None:
    """It ends there: the rest of the segment is not damaged."""
    ends, path = ends_of(cluster), cluster.segments(cluster.names[0])[0]
    *_, (at, stride) = records_in(path)
    assert at + stride == ends[cluster.names[0], path.name] < path.stat().st_size
    samples.flip(path, at + 14, 0)
    check(CrcAudit(), {"path": str(cluster.path)}, NOW, rows_of(cluster, ends, {}))


def test_a_file_that_is_gone(cluster: Striped) -> None:
    bookie = cluster.names[0]
    gone = cluster.segments(bookie)[0]
    rows = rows_of(cluster, ends_of(cluster), {})
    gone.unlink()
    (row,) = [row for row in rows if (row["bookie"], row["segment"]) == (bookie, gone.name)]
    row |= {"records": 0, "bad_records": 1, "first_bad_position": int(gone.stem), "bytes_checked": 0}
    check(CrcAudit(), {"path": str(cluster.path)}, NOW, rows)


def test_crc_audit_reads_a_log_by_itself(tmp_path: Path) -> None:
    samples.make_log(tmp_path / "orders")
    rows = local_engine.run(CrcAudit(), {"path": str(tmp_path / "orders")}, NOW).to_pylist()
    assert sum(row["records"] for row in rows) == samples.ENTRIES
    assert {(row["topic"], row["bookie"], row["bad_records"]) for row in rows} == {("orders", None, 0)}
    (third,) = samples.segments(tmp_path / "orders")[2:3]
    position = samples.position_of(tmp_path / "orders", samples.first_entries(tmp_path / "orders")[2] + 3)
    samples.flip(third, position - int(third.stem) + 40)
    (bad,) = [row for row in local_engine.run(CrcAudit(), {"path": str(tmp_path / "orders")}, NOW).to_pylist()
              if row["bad_records"]]  # fmt: skip
    assert (bad["segment"], bad["bad_records"], bad["first_bad_position"]) == (third.name, 1, position)


def test_crc_audit_reports_a_torn_tail_alone(tmp_path: Path) -> None:
    """An empty log that was never closed: its first record was not finished."""
    with pyreplog.open(tmp_path / "live", durability="appended") as log:
        shutil.copytree(
            tmp_path / "live", tmp_path / "log", ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new")
        )
        log.append(b"first")
    source, target = (samples.segments(tmp_path / name)[0] for name in ("live", "log"))
    with target.open("r+b") as file:
        file.seek(4096)
        file.write(source.read_bytes()[4096:4120])
    (tmp_path / "log" / "tail").unlink()
    (row,) = local_engine.run(CrcAudit(), {"path": str(tmp_path / "log")}, NOW).to_pylist()
    assert (row["records"], row["bad_records"], row["bytes_checked"]) == (0, 0, 0)
    assert row["torn_tail_bytes"] > 0


def test_crc_audit_refuses_to_read_one_replica(cluster: Striped) -> None:
    with pytest.raises(ConfigError, match="crc_audit checks all copies"):
        local_engine.run(CrcAudit(), {"path": str(cluster.path), "replica": "bookie-1"}, NOW)
