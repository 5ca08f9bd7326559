"""`pyreplog report` and `pyreplog export` of a real cluster: ZooKeeper, and bookies that are processes."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import pyreplog
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions
from tests.cli.support import COMMAND, Done
from tests.ledger.processes import ProcessGroup
from tests.metadata.zookeeper import Ensemble
from tests.waiting import until

COUNT, DONE = 240, 90
KEPT: dict[str, Any] = {"retention_bytes": None, "retention_ms": None, "durability": "appended"}
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory, zookeeper: Ensemble) -> Iterator[ProcessGroup]:
    folder = tmp_path_factory.mktemp("remote")
    with ProcessGroup(folder, f"zk://{zookeeper.hosts}/{folder.name}") as processes:
        processes.start_bookies("b0", "b1", "b2")
        yield processes


def command(*arguments: object) -> Done:
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, timeout=LIMIT_S, check=False)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def key(n: int) -> bytes:
    return b"hot" if n % 3 == 0 else b"%d" % (n % 40)


def fill(cluster: pyreplog.Cluster) -> pyreplog.Topic:
    """Topic "done" is closed; "orders" goes on, and has a subscription with a backlog."""
    with cluster.topic("done", **KEPT) as done:
        done.publish_batch([b"done"] * 30)
    orders = cluster.topic("orders", roll_entries=10, **KEPT)
    for n in range(0, COUNT, 8):
        orders.publish_batch([b"%d" % k for k in range(n, n + 8)], [key(k) for k in range(n, n + 8)])
    orders.create_subscription("billing", start="earliest")
    orders.skip("billing", DONE)
    orders.subscription("billing").flush_async().result(30.0)
    return orders


def snapshot(url: str) -> Snapshot:
    return gather(ReadOptions.of({"cluster": url}), 0)


def test_reports_on_a_remote_cluster_have_the_right_numbers(processes: ProcessGroup, tmp_path: Path) -> None:
    """Of a topic whose owner goes on; then with one bookie, when nobody can say how far that topic goes."""
    with pyreplog.Cluster.connect(processes.url) as cluster:
        topic = fill(cluster)
        until(
            lambda: (
                {each_topic.name: each_topic.end.offset for each_topic in snapshot(processes.url).topics}
                == {"done": 30, "orders": COUNT}
            )
        )
        check_report(processes, tmp_path)
        check_export(processes, tmp_path)
        for process in list(processes.bookies.values())[1:]:
            process.kill()
        check_without_most_bookies(processes, tmp_path)
        for name in ("b1", "b2"):  # closing the topic needs them
            processes.bookie(name).wait_for("bookie")
        topic.close()


def check_report(processes: ProcessGroup, tmp_path: Path) -> None:
    done = command("report", processes.url, "-o", tmp_path / "r.html", "--parquet", tmp_path / "rows", "--json")
    assert done.code == 0, done.error
    assert {name for name, report in done.json["reports"].items() if "error" in report or "warnings" in report} == set()
    tables = {file.stem: parquet.read_table(file) for file in (tmp_path / "rows").iterdir()}
    of = {name: [row for row in table.to_pylist() if row.get("topic") == "orders"] for name, table in tables.items()}
    (backlog,) = of["backlog_by_subscription"]
    assert (backlog["subscription"], backlog["backlog_entries"]) == ("billing", COUNT - DONE)
    assert (backlog["oldest_offset"], backlog["log_end_offset"]) == (DONE, COUNT)
    assert sum(row["entries"] for row in of["rate_by_minute"]) == COUNT
    assert sum(row["bytes"] for row in of["rate_by_minute"]) == sum(len(b"%d" % n) for n in range(COUNT))
    assert sum(row["entries"] for row in of["backlog_age_histogram"]) == COUNT - DONE
    hot = Counter(key(n) for n in range(COUNT)).most_common(1)[0]
    first = next(row for row in of["key_skew"] if row["rank"] == 1)
    assert (bytes.fromhex(first["key"]), first["entries"]) == hot
    assert first["distinct_keys"] == len({key(n) for n in range(COUNT)})
    assert [len(tables[name]) for name in ("log_gaps", "replica_divergence")] == [0, 0]
    assert "“billing” of orders lags by 150 messages" in (tmp_path / "r.html").read_text()


def check_export(processes: ProcessGroup, tmp_path: Path) -> None:
    done = command("export", processes.url, "--parquet", tmp_path / "out", "--topic", "orders", "--json")
    assert done.code == 0, done.error
    table = pa.concat_tables(parquet.read_table(file) for file in done.json["files"])
    assert table["offset"].to_pylist() == list(range(COUNT))
    assert table["value"].to_pylist() == [b"%d" % n for n in range(COUNT)]
    assert table["key"].to_pylist() == [key(n) for n in range(COUNT)]


def check_without_most_bookies(processes: ProcessGroup, tmp_path: Path) -> None:
    """What is closed is reported from the copy that is left."""
    which = [part for name in ("rate_by_minute", "backlog_by_subscription") for part in ("--only", name)]
    done = command("report", processes.url, "-o", tmp_path / "r.html", "--parquet", tmp_path / "less", "--json", *which)
    assert done.code == 0, done.error
    rates = parquet.read_table(tmp_path / "less" / "rate_by_minute.parquet").to_pylist()
    assert {row["topic"] for row in rates} == {"done"}
    assert sum(row["entries"] for row in rates) == 30
    for report in done.json["reports"].values():
        assert [text[: len("could not ask: topic orders: ")] for text in report["warnings"]] == [
            "could not ask: topic orders: "
        ], json.dumps(report)
    assert "Could not ask: topic orders: " in (tmp_path / "r.html").read_text()
