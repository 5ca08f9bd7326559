"""Every row of the goals, tiny: it runs, reads back what it wrote, and reports both sides. No times are looked at."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.peers import PEERS, Pyreplog, Work
from benchmarks.peers.contest import read_rates
from benchmarks.peers.queues import QUEUES, QueueTopic
from benchmarks.peers.replicated import REPLICATED, OurLedger
from benchmarks.plan import Plan
from benchmarks.result import Section
from benchmarks.rows import peers as peers_row
from benchmarks.rows.ledgers import peers as replicated_row
from benchmarks.rows.registry import BOUNDS, ROWS, measure
from benchmarks.rows.spark import minutes, reading, striped, writing
from benchmarks.rows.spark.warm import warm_spark


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our side of the peers' tables makes its files with the default size, which takes longer than all else here."""
    monkeypatch.setattr(Pyreplog, "segment_bytes", 1 << 20)
    monkeypatch.setattr(OurLedger, "settings", OurLedger.settings | {"segment_bytes": 1 << 20})
    monkeypatch.setattr(QueueTopic, "settings", QueueTopic.settings | {"segment_bytes": 1 << 20})


_IN_SPARK = ("reports", "spark-read", "spark-parsing", "spark-striped", "spark-write")
_APART = ("peers", "ledgers-peers", "topics-peers", *_IN_SPARK)


@pytest.mark.parametrize("name", [name for name in ROWS | BOUNDS if name not in _APART])
def test_each_row_runs_and_removes_its_files(name: str, tmp_path: Path) -> None:
    section = measure(name, Plan.tiny(tmp_path))
    check(section)
    assert section.name == name
    assert not list(tmp_path.iterdir()), "a row cleans up behind itself"


def test_rows_that_need_spark_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all of them: it takes longer to start than they do."""
    plan = Plan.tiny(tmp_path)
    monkeypatch.setattr(minutes, "_SIZES", (100,))
    monkeypatch.setattr(reading, "_GOALS", {100: 0.65})
    monkeypatch.setattr(writing, "_SIZES", (100,))
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for module in (minutes, reading, striped, writing):
            monkeypatch.setattr(module, "warm_spark", lambda plan, folder: nullcontext(spark))
        for name in _IN_SPARK:
            section = measure(name, plan)
            check(section)
            assert section.name == name
    assert not list(tmp_path.iterdir())


def test_the_row_of_peers_runs_every_kind_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_row, "_SIZES", (100,))
    section = measure("peers", Plan.tiny(tmp_path))
    check(section)
    assert [comparison.work for comparison in section.comparisons] == [f"{work.value} 100 B" for work in Work]
    rates, state = section.tables
    titles = [peer.title for peer in PEERS.values()]
    assert [row[0] for row in rates.rows] == ["pyreplog, recycled", *titles]
    assert [row[0] for row in state.rows] == titles
    assert all(int(row[1].replace(",", "")) >= 256 for row in state.rows), "each store held entries when it was killed"
    assert not list(tmp_path.iterdir())


def test_the_row_of_replicated_peers_runs_every_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_row, "_GOALS", {100: 10.0})
    section = measure("ledgers-peers", Plan.tiny(tmp_path))
    check(section)
    assert [(comparison.work, comparison.ours.durability) for comparison in section.comparisons] == [
        (work, durability) for durability in ("appended", "synced") for work in ("100 B, batches", "100 B, one append")
    ]
    for table, durability in zip(section.tables, ("appended", "synced"), strict=True):
        kinds = [kind for kind in REPLICATED.values() if durability in kind.durabilities]
        assert [row[0] for row in table.rows] == [kind.title for kind in kinds]
    assert not list(tmp_path.iterdir())


def test_the_row_of_queues_runs_every_durability_and_kind_of_work(tmp_path: Path) -> None:
    section = measure("topics-peers", Plan.tiny(tmp_path))
    check(section)
    assert len(section.comparisons) == 2 * 2 * 3, "durabilities, in this process and served, kinds of work"
    for table, durability in zip(section.tables, ("appended", "synced"), strict=True):
        kinds = [kind for kind in QUEUES.values() if durability in kind.durabilities]
        assert [row[0] for row in table.rows] == [kind.title for kind in kinds]
        assert [bool(row[3]) for row in table.rows] == [kind.waits for kind in kinds]
    assert not list(tmp_path.iterdir())


def test_rates_of_reads_as_views_cover_every_peer(tmp_path: Path) -> None:
    rates, disk, read_back = read_rates(Plan.tiny(tmp_path), 16384)
    assert rates[Work.SCAN].keys() == PEERS.keys() == disk.keys()
    assert rates[Work.READ].keys() == PEERS.keys() - {"PersistQueue"}
    assert all(used >= 16384 and allocated >= 256 * 16384 for used, allocated in disk.values())
    assert read_back >= 256 * len(PEERS)


def check(section: Section) -> None:
    assert section.comparisons
    for comparison in section.comparisons:
        assert math.isfinite(comparison.ours.value)
        assert comparison.ours.value >= 0
        assert comparison.other.value >= 0
        assert comparison.ours.durability == comparison.other.durability
        assert any(letter.isdigit() for letter in comparison.verified)
    text = report.markdown(section)
    assert all(
        each_comparison.work in text and each_comparison.ours.name in text and each_comparison.other.name in text
        for each_comparison in section.comparisons
    )
    assert json.loads(json.dumps(report.data(section)))["comparisons"][0]["work"] == section.comparisons[0].work
