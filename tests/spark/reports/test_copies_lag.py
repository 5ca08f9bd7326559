"""replication_lag: logs, topics of two clusters, and an HA master with its replica's directory."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyreplog
from pyreplog.errors import ConfigError
from pyreplog.reports import local_engine
from pyreplog.reports.copies.replication_lag import ReplicationLag
from pyreplog.reports.snapshot import Snapshot
from tests.ha.nodes import Lab, until
from tests.spark.clusters import KEPT, Nodes, embedded
from tests.spark.reading import read_table
from tests.spark.reports.both import Row, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = Snapshot(as_of_us=0)


def lag_of(rows: list[Row], is_there: Callable[[Row], bool], **same: Any) -> list[Row]:
    """Of each topic and partition, by going through all rows of the source."""
    actual = []
    for topic, partition in sorted({(row["topic"], row["partition"]) for row in rows}):
        own = [row for row in rows if (row["topic"], row["partition"]) == (topic, partition)]
        lost = [row for row in own if not is_there(row)]
        timestamps = [row["timestamp"] for row in own if is_there(row)]
        newest = max(row["timestamp"] for row in own)
        actual.append(
            {
                **same, "topic": topic, "partition": partition, "missing_entries": len(lost),
                "missing_bytes": sum(row["size"] for row in lost),
                "oldest_missing_ts": min((row["timestamp"] for row in lost), default=None),
                "lag_s": (newest - max(timestamps)).total_seconds() if timestamps else None,
            }
        )  # fmt: skip
    return actual


def rows_of(path: Path | None, **options: object) -> list[Row]:
    names = "topic,partition,offset,timestamp,size,producerName,sequenceId"
    return read_table(path, columns=names, **options).to_pylist()


# ---- logs ------------------------------------------------------------------------------------------------------


def write(path: Path, count: int, end: int = 0) -> None:
    with pyreplog.open(path, durability="appended", segment_bytes=1 << 16) as log:
        for n in range(end, end + count):
            log.append(b"%d" % n * (n % 90 + 1))


def test_replication_lag_compares_logs(tmp_path: Path, spark: SparkSession) -> None:
    """The copy has lost its first segments, and is behind."""
    write(tmp_path / "here", 3000)
    write(tmp_path / "there", 2200)
    with pyreplog.open(tmp_path / "there") as log:
        log.trim(700)
        start = log.start
    assert 0 < start <= 700
    source, target = str(tmp_path / "here"), str(tmp_path / "there")
    expected = lag_of(
        rows_of(tmp_path / "here"), lambda row: start <= row["offset"] < 2200, from_cluster=source, to_cluster=target
    )
    assert expected[0]["missing_entries"] == 800 + start
    check(ReplicationLag({"path": target}), {"path": source}, NOW, expected, spark=spark)


def test_complete_replica_has_no_lag(tmp_path: Path) -> None:
    write(tmp_path / "a", 50)
    write(tmp_path / "b", 60)
    (row,) = local_engine.run(
        ReplicationLag({"path": str(tmp_path / "b")}), {"path": str(tmp_path / "a")}, NOW
    ).to_pylist()
    assert (row["missing_entries"], row["missing_bytes"], row["oldest_missing_ts"], row["lag_s"]) == (0, 0, None, 0.0)


def test_empty_replica_lacks_all_entries(tmp_path: Path) -> None:
    write(tmp_path / "a", 50)
    write(tmp_path / "b", 0)
    (row,) = local_engine.run(
        ReplicationLag({"path": str(tmp_path / "b")}), {"path": str(tmp_path / "a")}, NOW
    ).to_pylist()
    assert (row["missing_entries"], row["lag_s"]) == (50, None)
    assert row["oldest_missing_ts"] <= datetime.now(UTC)
    empty = local_engine.run(ReplicationLag({"path": str(tmp_path / "a")}), {"path": str(tmp_path / "b")}, NOW)
    assert empty.num_rows == 0


def test_a_master_and_its_replica(tmp_path: Path) -> None:
    """The replica's directory as it was, and the master's as it is."""
    with ExitStack() as stack:
        lab = Lab(tmp_path, stack)
        master = lab.master(members="ab")
        replica = lab.replica("b", master)
        for n in range(200):
            master.append(b"%d" % n)
        until(lambda: replica.log.end == 200)
        shutil.copytree(
            tmp_path / "b", tmp_path / "earlier", ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new")
        )
        for n in range(30):
            master.append(b"behind %d" % n)
        until(lambda: replica.log.end == 230)
    source, as_it_was, as_it_is = ({"path": str(tmp_path / name)} for name in ("a", "earlier", "b"))
    (row,) = local_engine.run(ReplicationLag(as_it_is), source, NOW).to_pylist()
    assert (row["missing_entries"], row["lag_s"]) == (0, 0.0)
    (row,) = local_engine.run(ReplicationLag(as_it_was), source, NOW).to_pylist()
    assert (row["missing_entries"], row["missing_bytes"]) == (30, sum(len(b"behind %d" % n) for n in range(30)))
    assert row["lag_s"] > 0


# ---- topics ----------------------------------------------------------------------------------------------------


def test_replication_lag_compares_topics_of_two_clusters(tmp_path: Path, seed: int) -> None:
    """Messages with a producer's numbers, which come in another order; and without, by their original offsets."""
    rng = random.Random(seed)
    rows: set[tuple[str, Any]] = set()
    with embedded(tmp_path / "a") as here, embedded(tmp_path / "b") as away:
        for name in ("orders", "returns"):
            source, copy = (each_here.topic(name, durability="appended") for each_here in (here, away))
            producers = {item: (source.producer(item), copy.producer(item)) for item in ("p", "q")}
            for producer, (original, other) in producers.items():
                for n in range(60):
                    original.publish(b"x" * rng.randrange(30), sequence=n)
                for n in sorted(rng.sample(range(60), 40)):
                    other.publish(b"x", sequence=n)
                    rows.add((name, (producer, n)))
            offsets = [source.publish(b"plain %d" % n) for n in range(50)]
            for offset in rng.sample(offsets, 30):
                copy.publish(b"plain", properties={"original-offset": str(offset)})
                rows.add((name, offset))
            copy.publish(b"of its own", properties={"original-offset": "none"})
            for topic in (source, copy):
                topic.close()
    source_rows = rows_of(tmp_path / "a", topics="orders,returns")

    def is_there(row: Row) -> bool:
        name = row["offset"] if row["producerName"] is None else (row["producerName"], row["sequenceId"])
        return (row["topic"], name) in rows

    places = {"from_cluster": str(tmp_path / "a"), "to_cluster": str(tmp_path / "b")}
    expected = lag_of(source_rows, is_there, **places)
    assert all(row["missing_entries"] > 50 for row in expected)
    given = {"path": str(tmp_path / "a"), "topics": "orders,returns"}
    check(ReplicationLag({"path": str(tmp_path / "b")}), given, NOW, expected)
    mirror = ReplicationLag({"path": str(tmp_path / "b"), "topics": "orders"})
    check(mirror, {**given, "topics": "orders"}, NOW, [row for row in expected if row["topic"] == "orders"])


def test_replication_lag_compares_clusters_over_tcp(tmp_path: Path) -> None:
    """Each has a secret of its own."""
    secrets, urls = ("of the source, 16 bytes", "of the copy, 16 bytes"), list[str]()
    with ExitStack() as stack:
        for name, secret, count in zip("ab", secrets, (30, 20), strict=True):
            (tmp_path / name).mkdir()
            nodes = stack.enter_context(Nodes(tmp_path / name, name, secret=secret.encode()))
            urls.append(nodes.url)
            with pyreplog.Cluster.connect(nodes.url, secret=secret.encode()) as cluster:
                topic = cluster.topic("orders", ensemble=1, durability="appended", **KEPT)
                topic.producer("p").publish_batch([b"x" * n for n in range(count)], sequences=range(count))
                topic.close()
        given, to = ({"cluster": url, "secret": secret} for url, secret in zip(urls, secrets, strict=True))
        given["topics"] = "orders"
        rows = rows_of(None, **given)
        assert len(rows) == 30
        expected = lag_of(rows, lambda row: row["sequenceId"] < 20, from_cluster=urls[0], to_cluster=urls[1])
        check(ReplicationLag(to), given, NOW, expected, cuts=({"minPartitions": "2"},))


@pytest.mark.parametrize(
    ("to", "given", "says"),
    [
        ({}, {}, "to: replication_lag compares two sources; expected options that name the copy"),
        ({"path": "x", "colour": "red"}, {}, "unknown option 'colour'"),
        ({"path": "x"}, {"path": "data"}, "replication_lag compares topics or logs; expected the option topics for"),
    ],
)
def test_replication_lag_refuses_impossible_targets(
    tmp_path: Path, to: dict[str, str], given: dict[str, str], says: str
) -> None:
    with embedded(tmp_path / "data"):
        pass
    write(tmp_path / "log", 3)
    options = {"path": str(tmp_path / given.get("path", "log"))}
    with pytest.raises(ConfigError, match=says):
        local_engine.run(ReplicationLag(to), options, NOW)
