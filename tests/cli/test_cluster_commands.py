"""`pyreplog cluster health`, `audit`, `drain`, `lost`, `retire`, `hold` and `autorecovery`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.status import STATUS, AutoRecoveryStatus
from pyreplog.bookie.registration import AVAILABLE, Availability
from pyreplog.cli import cluster_bookies
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.ledger_store import load_ledger
from tests.cli.support import Done, Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    with LedgerCluster.embedded(path, bookies=5, segment_bytes=64 << 10) as cluster:
        with cluster.create_ledger(4, 2) as ledger:
            ledger.append_batch([b"value"] * 10)
    return path


@pytest.fixture
def cluster(run: Run, folder: Path) -> Callable[..., Done]:
    return lambda *arguments: run("cluster", "--embedded", folder, *arguments)


def test_health_has_an_exit_code_for_each_colour(cluster: Callable[..., Done], folder: Path) -> None:
    fine = cluster("health")
    assert (fine.code, fine.out) == (0, "green: 5 bookies, 1 ledger\n  5 bookies without a complete scrub yet\n")
    assert cluster("hold", "--reason", "upgrade").code == 0
    held = cluster("health")
    assert held.code == 10
    assert re.search(r"amber  hold: auto-recovery is on hold for \d+ s: upgrade", held.out)
    assert "next: pyreplog cluster hold --end" in held.out
    assert cluster("hold", "--end", "--json").json == {"hold": None, "had_one": True}
    assert cluster("hold", "--end").out == "auto-recovery was not on hold\n"
    report = cluster("health", "--json").json
    assert (report["colour"], report["findings"], report["bookies"]) == ("green", [], 5)


def test_an_audit_has_the_exit_codes_of_health(cluster: Callable[..., Done], folder: Path) -> None:
    fine = cluster("audit", "--check-copies")
    assert fine.code == 0
    assert fine.out.startswith("green: 5 bookies, 1 ledger (0 open), 10 entries\n  copies compared: 1 ledger, ")
    assert "complete 1" in fine.out
    document = cluster("audit", "--json").json
    assert (document["colour"], document["ledgers"], document["entries"], document["copies"]) == ("green", 1, 10, None)
    assert cluster("audit", "--check-copies", "7").code == 2
    with LedgerCluster.embedded(folder) as opened:
        bookie = opened.ledger_metadata(0).last_fragment.ensemble[0]
        right = opened.ledger_metadata(0)
        spare = ({status.bookie for status in opened.status().bookies} - right.bookies()).pop()
        fragment = right.last_fragment._replace(ensemble=(spare, *right.last_fragment.ensemble[1:]))
        wrong = dataclasses.replace(right, fragments=(fragment,))
        opened.metadata.put(metadata_key(0), wrong.encode(), load_ledger(opened.metadata, 0).version)
    lacking = cluster("audit", "--check-copies", "0", "--bytes-per-s", "1000000")
    assert lacking.code == 10
    assert f"ledger 0, {spare}: missing: entries 0 to 8 by 4, 3 to 7 by 4" in lacking.out
    assert "amber  copies-lacking: bookies lack copies of 1 ledger that" in lacking.out
    (report,) = cluster("audit", "--check-copies", "--json").json["copies"]["reports"]
    assert report["members"][spare]["missing"] == [[0, 9, 4], [3, 8, 4]]
    assert cluster("drain", bookie).code == 0
    assert cluster("audit", "--json").json["colour"] == "amber"


def test_an_audit_names_what_is_to_be_copied(run: Run, cluster: Callable[..., Done], folder: Path) -> None:
    cluster("autorecovery", "--set", "bytes_per_s=5")
    remote = run("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}", "audit")
    assert remote.code == 10
    assert "without a copy on bookies that run: 10 entries of 1 ledger: 0" in remote.out
    assert "no-copy: 10 entries of 1 ledger have no copy" in remote.out
    with LedgerCluster.embedded(folder) as opened:
        bookie = opened.ledger_metadata(0).last_fragment.ensemble[0]
    cluster("drain", bookie)
    output = cluster("audit").out
    assert f"to copy from {bookie}: 1 ledger (no order yet)" in output
    assert "to copy: 25 B, about 5.0 s at 5 B/s (1 worker)" in output


def test_a_metadata_store_without_an_auditor(run: Run, folder: Path) -> None:
    done = run("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}", "health")
    assert done.code == 10
    assert "no-auditor: no auditor runs" in done.out
    assert "not-running: not running: bookie-0@" in done.out


def test_a_bookie_is_drained_and_retired(cluster: Callable[..., Done], folder: Path) -> None:
    with LedgerCluster.embedded(folder) as opened:
        bookie = opened.ledger_metadata(0).last_fragment.ensemble[0]
    name = bookie.partition("@")[0]
    assert cluster("drain", "bookie-9").code == 2
    assert "1 ledger left" in cluster("drain", name, "--dry-run").out
    assert cluster("drain", name, "--end").code == 6
    assert cluster("drain", name, "--json").json["ledgers_left"] == 1
    assert cluster("drain", name, "--end").out == f"bookie {bookie} is an ordinary member again\n"
    assert cluster("drain", name).code == 0
    refused = cluster("retire", name)
    assert refused.code == 6 and "1 ledger names it" in refused.error
    assert cluster("drain", name, "--wait").out.endswith(" 0 ledgers left, 0 B\n"), "and no time"
    assert cluster("retire", name).out == f"bookie {bookie} is retired\n"


def test_cluster_lost_reports_what_the_loss_costs_before_it_is_declared(
    cluster: Callable[..., Done], folder: Path
) -> None:
    with LedgerCluster.embedded(folder) as opened:
        bookie = opened.ledger_metadata(0).last_fragment.ensemble[0]
    assert "every entry has a copy elsewhere" in cluster("lost", bookie, "--dry-run").out
    done = cluster("lost", bookie)
    assert done.code == 6 and "runs" in done.error
    lines = [f"bookie {bookie}: 1 ledger names it", "  every entry has a copy elsewhere"]
    assert cluster("lost", bookie, "--dry-run").out.splitlines() == lines
    done = cluster("lost", bookie, "--force")
    assert done.out.splitlines() == [*lines, f"bookie {bookie} counts as lost: its copies are made again"]
    assert done.error == ""
    assert cluster("lost", bookie, "--force", "--json").json["is_declared"] is True


def test_decisions_during_a_hold_say_that_nothing_is_copied(
    run: Run, cluster: Callable[..., Done], folder: Path
) -> None:
    with LedgerCluster.embedded(folder) as opened:
        first, second, *_ = opened.ledger_metadata(0).last_fragment.ensemble
    remote = ("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}")
    assert "nothing is copied: no auditor runs; start `pyreplog autorecovery run" in run(*remote, "lost", first).error
    cluster("lost", first, "--end")
    cluster("hold", "--reason", "upgrade")
    held = "nothing is copied: auto-recovery is on hold since 2"
    for decision in (("drain", second), ("lost", first, "--force")):
        error = cluster(*decision).error
        assert held in error and ": upgrade; end it with `pyreplog cluster hold --end`" in error
    assert held not in cluster("drain", second, "--dry-run").error


def test_entries_are_not_given_up_unasked(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with LedgerCluster.embedded(folder, segment_bytes=64 << 10) as opened:
        with opened.create_ledger(3, 1) as ledger:
            ledger.append_batch([b"value"] * 4)
        first, last = opened.ledger_metadata(0).last_fragment.ensemble[0::2]
    remote = ("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}", "lost")
    assert "  ledger 0: 2 entries would be lost" in run(*remote, "--dry-run", first).out
    assert "  ledger 0: 1 entry would be lost" in run(*remote, "--dry-run", last).out
    refused = run(*remote, first)
    assert (refused.code, refused.out) == (6, "")
    assert f"{first} has the only copies of entries of 1 ledger, ledger 0 first: " in refused.error
    assert "`cluster lost --dry-run`, give them up with --yes" in refused.error
    done = run(*remote, "--yes", last)
    assert done.code == 0 and "  ledger 0: 1 entry is lost\n" in done.out


def test_a_process_that_still_runs_is_named_when_it_is_retired(run: Run, folder: Path) -> None:
    with LedgerCluster.embedded(folder) as opened:
        members = opened.ledger_metadata(0).bookies()
        spare = next(status.bookie for status in opened.status().bookies if status.bookie not in members)
        remote = ("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}")
        opened.metadata.create(f"{AVAILABLE}/{spare}", Availability("127.0.0.1:1").encode())
        BookieOperations(opened.runtime, SystemClock()).begin_drain(spare)
        assert run(*remote, "retire", spare).out == f"bookie {spare} is retired; it still runs: stop its process\n"


def test_settings_are_shown_and_changed(cluster: Callable[..., Done]) -> None:
    assert cluster("autorecovery", "--json").json["bytes_per_s"] is None
    changed = cluster("autorecovery", "--set", "bytes_per_s=1000", "--set", "copies_at_once=2").out
    assert "bytes_per_s        1000" in changed
    assert cluster("autorecovery", "--set", "bytes_per_s=none", "--json").json["copies_at_once"] == 2
    assert cluster("autorecovery", "--set", "delay=3").code == 2
    assert cluster("autorecovery", "--set", "round_ms=0").code == 2


def test_copies_are_moved_to_empty_bookies(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with LedgerCluster.embedded(folder, bookies=3, segment_bytes=64 << 10) as opened:
        for _ in range(8):
            with opened.create_ledger(3, 2) as ledger:
                ledger.append_batch([b"value"] * 10)
    arguments = ("cluster", "--embedded", folder, "--bookies", "5", "rebalance")
    assert run(*arguments, "--end").out == "there was no rebalance\n"
    dry = run(*arguments, "--dry-run").out
    assert "  ledger 0: from bookie-" in dry and "% of its share, " in dry
    assert run(*arguments, "--dry-run", "--max-bytes", "0").out.endswith("nothing is moved\n")
    run("cluster", "--embedded", folder, "hold", "--reason", "upgrade")
    held = run(*arguments)
    assert held.code == 6 and "auto-recovery is on hold (upgrade)" in held.error
    run("cluster", "--embedded", folder, "hold", "--end")
    done = run(*arguments)
    assert done.code == 0
    assert "moves left, " in done.out
    assert "nothing is moved" in done.out
    first, last = map(json.loads, run(*arguments, "--json").out.splitlines())
    assert (first["plan"]["moves"], last) == ([], {"failed": {}})


def test_bookies_scrub_when_they_are_asked(cluster: Callable[..., Done], folder: Path) -> None:
    assert cluster("scrub", "--status").out.count("no complete scrub yet") == 5
    done = cluster("scrub", "bookie-1", "--bytes-per-s", "4000000000")
    assert done.code == 0
    assert " verified; 0 bad records, 0 mended" in done.out.splitlines()[0]
    assert "0 bad records, 0 mended" in done.out.splitlines()[-1] and " ago, " in done.out.splitlines()[-1]
    told = cluster("scrub", "--status", "--json").json["bookies"]
    assert sorted(bookie.partition("@")[0] for bookie, report in told.items() if report["last"]) == ["bookie-1"]
    assert cluster("scrub", "bookie-9").code == 2
    assert cluster("scrub", "--bytes-per-s", "0").code == 2
    assert "scrubbed " in cluster("health").out and "scrubbed " in cluster("status").out


def test_a_bookie_that_does_not_run_cannot_be_asked(run: Run, folder: Path) -> None:
    done = run("cluster", "--cluster", f"sqlite:{folder / 'metadata.sqlite'}", "scrub", "bookie-1")
    assert done.code == 10
    assert "is not registered" in done.out


def test_drain_that_cannot_continue_ends_with_the_reasons(
    cluster: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are not made here, and the auditor says that they failed: what was found is printed."""
    monkeypatch.setattr(cluster_bookies.AutoRecovery, "start", lambda recovery: None)
    with LedgerCluster.embedded(folder) as opened:
        metadata = opened.ledger_metadata(0)
        bookie = metadata.last_fragment.ensemble[0]
        wrong = metadata.last_fragment._replace(
            ensemble=tuple(metadata.last_fragment.ensemble[place] for place in (3, 2, 0, 1))
        )
        stored = dataclasses.replace(metadata, fragments=(wrong,)).encode()
        opened.metadata.put(metadata_key(0), stored, load_ledger(opened.metadata, 0).version)
        status = AutoRecoveryStatus("other", 0, {bookie: 1}, (), {0: "no copy of entry 3 can be read"}, ())
        opened.metadata.create(STATUS, status.encode())
    done = cluster("drain", bookie, "--wait", "--patience", "0")
    assert done.code == 6
    assert done.error.splitlines() == [
        "  ledger 0: no copy of entry 3 can be read; cannot be read: entries 0, 2, 4, 6, 8",
        f"pyreplog: bookie {bookie}: nothing can be moved, 1 ledger fails; it stays draining",
    ]


def test_a_wrong_loss_is_taken_back(cluster: Callable[..., Done]) -> None:
    assert cluster("lost", "bookie-1", "--end").code == 6
    assert cluster("lost", "bookie-1", "--force").code == 0
    assert "does not count as lost any more" in cluster("lost", "bookie-1", "--end").out
    assert cluster("health").code == 0
