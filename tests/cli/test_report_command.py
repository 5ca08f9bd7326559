"""`pyreplog report` and `pyreplog export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import parquet

import pyreplog
from pyreplog.errors import NotALogError
from pyreplog.reports import local_engine
from pyreplog.reports.catalogue import REPORTS
from pyreplog.reports.records import gaps
from pyreplog.tables import planning
from pyreplog.tables.log_slices import Part
from pyreplog.tables.options import ReadOptions
from tests.cli.support import Run
from tests.spark.clusters import embedded
from tests.waiting import PATIENCE_S

FEW = ("--only", "rate_by_minute", "--only", "log_gaps")


@pytest.fixture
def filled(log: Path) -> Path:
    with pyreplog.open(log) as new_log:
        new_log.append_batch([b"%d" % n for n in range(500)], [b"k%d" % (n % 3) for n in range(500)])
    return log


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a topic with a subscription that lags, and one that does not."""
    path = tmp_path_factory.mktemp("topics") / "cluster"
    with embedded(path) as cluster:
        orders = cluster.topic("orders")
        with orders.subscribe("archive", start="earliest"), orders.subscribe("board", start="earliest") as board:
            for n in range(40):
                orders.publish(b"%d" % n, key=b"k")
            done = 0
            for batch in board.batches(timeout=PATIENCE_S):
                board.acknowledge(batch)
                done += len(batch)
                if done == 40:
                    break
    return path


def test_report_writes_every_report_on_a_log(run: Run, filled: Path, tmp_path: Path) -> None:
    done = run("report", filled, "-o", tmp_path / "r.html", "--parquet", tmp_path / "rows")
    assert done.code == 0, done.error
    assert done.out.strip() == str(tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text()
    assert "The source has no topics, and so no subscriptions." in html
    assert html.count('<li class="na">') == 7, (
        "of subscriptions, of consumer groups, of partitions, of copies, of auto-recovery, of replication to other "
        "clusters, and of fail-overs"
    )
    assert "<code>replica_holes</code>" in html.split('id="left-out"')[1]
    assert f"{len(REPORTS)}/{len(REPORTS)} " in done.error, "each report is told as it is done"
    rows = parquet.read_table(tmp_path / "rows" / "rate_by_minute.parquet")
    assert sum(rows["entries"].to_pylist()) == 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "r.html", "rows"], "no draft is left"


def test_report_writes_every_report_on_topics(run: Run, cluster: Path, tmp_path: Path) -> None:
    done = run("report", cluster, "-o", tmp_path / "r.html", "--parquet", tmp_path, "--json")
    assert done.code == 0, done.error
    assert {name: report.get("error") for name, report in done.json["reports"].items() if "error" in report} == {}
    html = (tmp_path / "r.html").read_text()
    assert "“archive” of orders lags by 40 messages" in html
    assert "Without a backlog: “board” of orders." in html
    behind = parquet.read_table(tmp_path / "backlog_by_subscription.parquet").to_pylist()
    assert {row["subscription"]: row["backlog_entries"] for row in behind} == {"archive": 40, "board": 0}


def test_report_selects_one_subscription(run: Run, cluster: Path, tmp_path: Path) -> None:
    which = ("--only", "backlog_by_subscription", "--parquet", tmp_path, "-o", tmp_path / "r.html")
    assert run("report", cluster, *which, "--subscription", "board", "--topic", "orders").code == 0
    rows = parquet.read_table(tmp_path / "backlog_by_subscription.parquet").to_pylist()
    assert [row["subscription"] for row in rows] == ["board"]
    done = run("report", cluster, *which, "--subscription", "bored")
    assert done.code == 2
    assert "expected one of archive, board, found 'bored'" in done.error


def test_failed_report_is_shown_in_the_page_and_sets_the_exit_code(
    run: Run, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk <b>is</b> gone")

    monkeypatch.setattr(gaps.LogGaps, "merge", fail)
    done = run("report", filled, "-o", tmp_path / "r.html", *FEW)
    assert done.code == 1
    html = (tmp_path / "r.html").read_text()
    assert "Failed.</strong> OSError: the disk &lt;b&gt;is&lt;/b&gt; gone" in html
    assert "All was appended in the minute" in html or "The busiest minute" in html, "the other stands"


def test_a_report_covers_its_time_range(run: Run, filled: Path, tmp_path: Path) -> None:
    run("report", filled, "-o", tmp_path / "r.html", *FEW, "--parquet", tmp_path, "--until", "2001-01-01")
    assert len(parquet.read_table(tmp_path / "rate_by_minute.parquet")) == 0
    assert "2001-01-01" in (tmp_path / "r.html").read_text(), "the page says what it is of"


def test_a_copy_that_is_behind(run: Run, filled: Path, tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "copy" / "log", segment_bytes=64 << 10) as copy:
        copy.append_batch([b"%d" % n for n in range(470)])
    which = ("--only", "replication_lag", "--parquet", tmp_path, "-o", tmp_path / "r.html")
    done = run("report", filled, *which, "--copy", tmp_path / "copy" / "log")
    assert done.code == 0, done.error
    assert parquet.read_table(tmp_path / "replication_lag.parquet")["missing_entries"].to_pylist() == [30]


def test_report_plans_again_when_its_log_is_trimmed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention goes on: what was planned first is removed before it is read."""
    plans = []
    with pyreplog.open(tmp_path / "busy", segment_bytes=64 << 10) as log:
        log.append_batch([b"%0500d" % n for n in range(1000)])

        def plan(options: ReadOptions) -> list[tuple[Part, ...]]:
            new_plan = planning.plan(options)
            plans.append(log.start)
            log.trim(log.start + 300)
            return new_plan

        monkeypatch.setattr(local_engine, "plan", plan)
        done = run("report", tmp_path / "busy", "-o", tmp_path / "r.html", *FEW[:2], "--parquet", tmp_path)
        assert done.code == 1, "it is trimmed each time"
        assert "TrimmedError" in done.error
        assert len(plans) == 3
        monkeypatch.setattr(
            local_engine, "plan", lambda options: planning.plan(options) if len(plans) > 3 else plan(options)
        )
        done = run("report", tmp_path / "busy", "-o", tmp_path / "r.html", *FEW[:2], "--parquet", tmp_path)
        assert done.code == 0, done.error
        assert parquet.read_table(tmp_path / "rate_by_minute.parquet")["entries"].to_pylist() == [log.end - log.start]


def test_report_of_a_directory_without_a_log_fails_and_writes_no_page(run: Run, tmp_path: Path) -> None:
    done = run("report", tmp_path, "-o", tmp_path / "r.html")
    assert done.code == 2
    assert not (tmp_path / "r.html").exists()


def test_metadata_that_are_not_there_are_not_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for missing in (tmp_path / "missing", tmp_path / "file" / "missing"):
        done = run("report", f"sqlite:{missing}", "-o", tmp_path / "r.html")
        assert (done.code, done.error.count("\n")) == (NotALogError.exit_code, 1)
        assert f"{missing}: no such file on host" in done.error
        assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_report_that_cannot_be_written_reads_nothing(run: Run, filled: Path, tmp_path: Path) -> None:
    for output in (tmp_path / "none" / "r.html", tmp_path):
        done = run("report", filled, "-o", output)
        assert done.code == 2
        assert "expected a file in an existing directory" in done.error
        assert "rate_by_minute" not in done.error
    (tmp_path / "rows").touch()
    done = run("report", filled, "-o", tmp_path / "r.html", "--parquet", tmp_path / "rows")
    assert done.code == 2
    assert "expected a directory or a new path, found a file" in done.error
    assert not (tmp_path / "r.html").exists()


def test_export_writes_records_of_a_log_to_parquet(run: Run, filled: Path, tmp_path: Path) -> None:
    done = run("export", filled, "--parquet", tmp_path / "out", "--columns", "offset,value", "--json")
    assert done.code == 0, done.error
    assert done.json["rows"] == 500
    rows = [row for file in done.json["files"] for row in parquet.read_table(file).to_pylist()]
    assert rows == [{"offset": n, "value": b"%d" % n} for n in range(500)]
    again = run("export", filled, "--parquet", tmp_path / "out")
    assert again.code == 2
    assert "expected an empty directory" in again.error
    assert run("export", filled, "--parquet", tmp_path / "out", "--overwrite").code == 0


def test_export_writes_messages_of_topics_to_parquet(run: Run, cluster: Path, tmp_path: Path) -> None:
    done = run("export", cluster, "--parquet", tmp_path / "out", "--json")
    assert done.json["rows"] == 40
