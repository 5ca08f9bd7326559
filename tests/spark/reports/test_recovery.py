"""Reports on auto-recovery: health, orders, the curve of what is left, disks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import reports
from pyreplog.autorecovery.health import ClusterHealth, Colour, Finding
from pyreplog.autorecovery.hold import begin_hold
from pyreplog.autorecovery.orders import place_order
from pyreplog.autorecovery.overview import OrderOverview, RecoveryOverview
from pyreplog.autorecovery.protocol.absence import Alarm
from pyreplog.autorecovery.status import STATUS, AutoRecoveryStatus
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.ledger.status import BookieStatus
from pyreplog.reports import suite
from pyreplog.reports.gathering import gather
from pyreplog.reports.page.summary import questions
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions
from tests.spark.clusters import Nodes
from tests.spark.reports.pages import NOON_US, html, outcome

NAMES = ("cluster_health", "recovery_state", "recovery_orders", "recovery_progress", "bookie_disks")
SECOND = 1_000_000
DAY_US = 86_400 * SECOND

OVERVIEW = RecoveryOverview(
    at_us=NOON_US,
    health=ClusterHealth(
        Colour.RED,
        (Finding("entries-lost", Colour.RED, "2 entries are lost", "bring back the disk"),
         Finding("away", Colour.AMBER, "away: b2@x", "start it")),
        "host:1", 3, 9, 40,
    ),
    orders=(
        OrderOverview("b2@x", "away", "it has been away", NOON_US - 60 * SECOND, 7, 3 << 20, 1 << 20, 3.0),
        OrderOverview("b3@x", "", "an operator drains it", 0, 1, 5, 0.0, None),
    ),
    one_copy_entries=1200, lost_entries=2, rack_violations=1, hold=TimedReason(NOON_US - 7200 * SECOND, "upgrade"),
    bookies=(
        BookieStatus("b1@x", "h:1", "r1", False, 1 << 30, verified_since_us=NOON_US - 30 * DAY_US),
        BookieStatus("b4@x", "h:2", "", True, 5, BookiePhase.DRAINING),
    ),
    progress=((NOON_US - 90 * SECOND, 12), (NOON_US - 60 * SECOND, 8)),
)  # fmt: skip


def rows(name: str, overview: RecoveryOverview | None = OVERVIEW) -> list[dict[str, Any]]:
    snapshot = Snapshot(as_of_us=NOON_US, recovery=overview)
    return list(reports.run(name, "nowhere", snapshot=snapshot).to_pylist())


def us(value: Any) -> int:
    return round(value.timestamp() * 1e6)


def findings_of(name: str, values: list[dict[str, Any]]) -> list[tuple[str, str]]:
    (question,) = [
        each for each in questions({name: outcome(name, values)}) if each.title.startswith("Are lost copies")
    ]
    return [(finding.state, finding.text) for finding in question.findings]


def test_the_health_and_its_reasons() -> None:
    actual_rows = rows("cluster_health")
    assert [(row["health"], row["reason"], row["next_step"]) for row in actual_rows] == [
        ("red", "entries-lost", "bring back the disk"), ("amber", "away", "start it"),
    ]  # fmt: skip
    assert findings_of("cluster_health", actual_rows) == [
        ("bad", "2 entries are lost. Next: bring back the disk."), ("hot", "away: b2@x. Next: start it."),
    ]  # fmt: skip
    green = replace(OVERVIEW, health=replace(OVERVIEW.health, findings=(), colour=Colour.GREEN))
    assert findings_of("cluster_health", rows("cluster_health", green))[0][0] == "fine"


def test_the_state_in_one_row() -> None:
    (row,) = actual_rows = rows("recovery_state")
    assert row == {
        "health": "red", "auditor": "host:1", "bookies": 3, "ledgers": 9, "missing_copies": 40, "one_copy_entries": 1200,
        "lost_entries": 2, "one_rack_ledgers": 1, "hold": "upgrade", "hold_s": 7200.0,
    }  # fmt: skip
    assert [state for state, _ in findings_of("recovery_state", actual_rows)] == ["bad", "hot"]
    assert rows("recovery_state", replace(OVERVIEW, hold=TimedReason(0, "?")))[0]["hold_s"] is None
    assert rows("recovery_state", replace(OVERVIEW, hold=None))[0]["hold"] is None


def test_recovery_orders_are_reported_with_their_rates() -> None:
    first, other = actual_rows = rows("recovery_orders")
    assert (first["bookie"], first["phase"], us(first["since_ts"]), first["left_bytes"], first["left_s"]) == (
        "b2@x", "away", NOON_US - 60 * SECOND, 3 << 20, 3.0,
    )  # fmt: skip
    assert (other["since_ts"], other["left_s"]) == (None, None)
    assert findings_of("recovery_orders", actual_rows) == [
        ("hot", "Copies of bookie b2@x are made again: 7 ledgers and 3.0 MiB are left, about 3 s."),
        ("hot", "Copies of bookie b3@x are made again: 1 ledger and 5 B are left, and nothing is copied."),
    ]


def test_the_curve_lasts_until_the_moment_of_the_report() -> None:
    actual_rows = rows("recovery_progress")
    assert [(us(row["from_ts"]), us(row["until_ts"]), row["ledgers_left"]) for row in actual_rows] == [
        (NOON_US - 90 * SECOND, NOON_US - 60 * SECOND, 12), (NOON_US - 60 * SECOND, NOON_US, 8),
    ]  # fmt: skip
    assert "fine" not in {state for state, _ in findings_of("recovery_progress", actual_rows)}, "it is not over"
    done = replace(OVERVIEW, progress=((1, 30), (2, 0), *OVERVIEW.progress, (NOON_US - 50 * SECOND, 0)))
    ((state, text),) = findings_of("recovery_progress", rows("recovery_progress", done))
    assert state == "fine" and text.startswith("The last copies of 12 ledgers were made again within 40 s, until ")
    assert rows("recovery_progress", replace(OVERVIEW, progress=())) == []


def test_disks_that_were_not_verified_for_long() -> None:
    first, other = actual_rows = rows("bookie_disks")
    assert (first["rack"], first["state"], first["verified_s"]) == ("r1", None, 30 * 86_400.0)
    assert (other["rack"], other["state"], other["verified_ts"]) == (None, "draining, read-only", None)
    texts = [text for _, text in findings_of("bookie_disks", actual_rows)]
    assert "Bookie b4@x is read-only." in texts
    assert any(text.startswith("Bookie b1@x has segments that were not verified for") for text in texts)


def test_the_page_has_the_curve() -> None:
    text = html(outcome("recovery_progress", rows("recovery_progress")))
    figure = text.partition("<figure")[2].partition("</figure>")[0]
    assert figure.count("ledgers left") >= 1 and ": 12<" in text and ": 8<" in text, "with the number of each step"


@pytest.mark.parametrize("name", NAMES)
def test_reports_on_recovery_are_left_out_without_a_cluster(name: str) -> None:
    assert "TCP" in suite.left_out(name, Snapshot(as_of_us=0))
    assert suite.left_out(name, Snapshot(as_of_us=0, recovery=OVERVIEW)) == ""
    assert rows(name, None) == []


def test_recovery_of_a_cluster_is_reported_over_tcp(tmp_path: Path) -> None:
    with Nodes(tmp_path, ("b1", "b2", "b3")) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            with cluster.create_ledger(3, 2) as ledger:
                ledger.append_batch([b"entry"] * 9)
            member = cluster.ledger_metadata(ledger.id).last_fragment.ensemble[0]
            begin_hold(cluster.metadata, TimedReason(NOON_US, "upgrade"))
            place_order(cluster.metadata, member, TimedReason(NOON_US, "drained"))
            status = AutoRecoveryStatus("h", 5, {}, (Alarm("no-target", "none"),), {}, (), ((5, 1), (9, 0)))
            cluster.metadata.create(STATUS, status.encode())
        options = ReadOptions.of({"cluster": nodes.url})
        snapshot = gather(options, NOON_US)
        overview = snapshot.recovery
        assert overview is not None and pickle.loads(pickle.dumps(snapshot)).recovery == overview
        assert (overview.health.colour, overview.progress) == (Colour.AMBER, ((5, 1), (9, 0)))
        codes = {finding.code for finding in overview.health.findings}
        assert codes == {"hold-forgotten", "orders", "alarm-no-target", "no-auditor"} and overview.hold is not None
        (order,) = overview.orders
        assert (order.bookie, order.reason, order.ledgers_left) == (member, "drained", 1)
        assert [bookie.bookie.partition("@")[0] for bookie in overview.bookies] == ["b1", "b2", "b3"]
        assert gather(ReadOptions.of({"cluster": nodes.url, "ledgers": "0"}), NOON_US).recovery is None
