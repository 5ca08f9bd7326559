"""`pyreplog top`: the rows, how they look, and the command with and without a terminal."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyreplog.autorecovery.health import ClusterHealth, Colour, Finding
from pyreplog.autorecovery.overview import OrderOverview, RecoveryOverview
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.cli import top
from pyreplog.cli.live import top_screen, top_view
from pyreplog.cli.live.top_view import Frame, TopicRow
from pyreplog.cli.shared import tables
from pyreplog.cli.shared.tables import Table
from pyreplog.cluster import Cluster
from pyreplog.errors import MetadataUnavailableError
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.status import BookieStatus, ClusterStatus, LedgerStatus
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import ConsumerStats, SubscriptionStats, TopicStats
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import COMMAND, Run
from tests.waiting import until

NOW_US = 1_800_000_000_000_000

SLOW = SubscriptionStats(
    name="slow", at_us=NOW_US, type="shared", mark=TopicPosition(10, 1, 100), backlog_messages=1990, backlog_bytes=1 << 20,
    oldest_us=NOW_US - 90_000_000, unacked=7, delayed=5, rate_delivered=12.5, drain_s=30.0, blocked=True, stalled=True,
    consumers=(ConsumerStats(name="c", consumer=1), ConsumerStats(name="d", consumer=2)),
)  # fmt: skip
QUICK = SubscriptionStats(
    name="quick", at_us=NOW_US, type="exclusive", mark=TopicPosition(2000, 20, 2 << 20), drain_s=0.0
)
PASSING = SubscriptionStats(name="a reader", at_us=NOW_US, durable=False, backlog_messages=5000)
ORDERS = TopicStats(
    name="orders", at_us=NOW_US, owner="10.0.0.1:99", start=TopicPosition(500, 5, 10), end=TopicPosition(2000, 20, 2 << 20),
    rate_published=0.25, rate_delivered=12.5, publishing="held", quota_exceeded=("bytes",),
    subscriptions=(SLOW, PASSING, QUICK),
)  # fmt: skip


# ---- rows -------------------------------------------------------------------------------------------------------


def test_a_topic_as_a_row() -> None:
    row = top_view.topic_row(ORDERS)
    assert (row.name, row.owner, row.messages, row.backlog) == ("orders", "10.0.0.1:99", 1500, 1990)
    assert row.backlog_bytes == (2 << 20) - 100 and row.oldest_s == 90.0
    assert row.states == ("held", "quota of bytes")
    assert [sub.name for sub in row.subscriptions] == ["a reader", "quick", "slow"]
    slow = row.subscriptions[2]
    assert (slow.type, slow.consumers, slow.backlog, slow.unacked, slow.delayed) == ("shared", 2, 1990, 7, 5)
    assert (slow.lag_s, slow.drain_s, slow.states) == (90.0, 30.0, ("stalled", "blocked"))
    assert row.subscriptions[0].type == "" and row.subscriptions[1].states == ()


def test_top_lists_held_and_stalled_topics_first() -> None:
    def topic(name: str, backlog: int = 0, *states: str) -> TopicRow:
        return TopicRow(name=name, backlog=backlog, states=states)

    stalled = replace(topic("stalled"), subscriptions=(top_view.subscription_row(SLOW),))
    rows = [topic("b", 5), topic("a", 5), topic("c", 9), topic("held", 0, "held"), stalled]
    assert [row.name for row in top_view.by_backlog(rows)] == ["held", "stalled", "c", "a", "b"]


def test_ledgers_that_are_written_to_or_lack_copies() -> None:
    ledgers = [
        LedgerStatus(1, State.CLOSED, 1, 99, 99, 0),
        LedgerStatus(2, State.CLOSED, 2, 99, 99, 40),
        LedgerStatus(3, State.OPEN, 1, 10, 17, 0),
    ]
    rows = top_view.ledger_rows(ClusterStatus([], ledgers))
    assert [(row.ledger, row.confirmed, row.behind, row.missing) for row in rows] == [(2, 99, 0, 40), (3, 10, 7, 0)]


def test_bookies_that_do_not_run_are_missing() -> None:
    running = [BookieStatus("b2@x", "h:2", "", True, 10), BookieStatus("b1@y", "h:1", "", False, 20)]
    rows = top_view.bookie_rows(running, ["b1", "b2", "b3"])
    assert [(row.bookie, row.state) for row in rows] == [("b1@y", ""), ("b2@x", "read-only"), ("b3", "missing")]


RECOVERY = RecoveryOverview(
    at_us=NOW_US,
    health=ClusterHealth(
        Colour.RED,
        (Finding("entries-lost", Colour.RED, "2 entries are lost", "bring back the disk"),
         Finding("hold", Colour.AMBER, "on hold", "pyreplog cluster hold --end")),
        "host:1", 3, 9, 5,
    ),
    orders=(
        OrderOverview("b2@x", "away", "it has been away", NOW_US - 60_000_000, 7, 3 << 20, 1 << 20, 3.0),
        OrderOverview("b3@x", "", "an operator drains it", 0, 1, 0, 0.0, None),
    ),
    one_copy_entries=1200, lost_entries=2, rack_violations=1, hold=TimedReason(NOW_US - 7_200_000_000, "upgrade"),
    bookies=(), progress=(),
)  # fmt: skip


def test_top_has_rows_of_auto_recovery() -> None:
    row = top_view.recovery_row(RECOVERY)
    assert (row.colour, row.auditor, row.one_copy_entries, row.lost_entries, row.rack_violations) == (
        "red", "host:1", 1200, 2, 1,
    )  # fmt: skip
    assert (row.hold, row.hold_s) == ("upgrade", 7200.0)
    assert [(finding.code, finding.next_step) for finding in row.findings][1] == ("hold", "pyreplog cluster hold --end")
    assert [(order.bookie, order.why, order.eta_s) for order in row.orders] == [
        ("b2@x", "away: it has been away", 3.0), ("b3@x", "an operator drains it", None),
    ]  # fmt: skip


def test_bookies_that_left_for_good_are_not_shown() -> None:
    running = [BookieStatus("b1@y", "h:1", "", True, 20, BookiePhase.DRAINING)]
    absent = [BookieStatus(f"b{n}@x", "", "", False, 0, phase) for n, phase in enumerate(BookiePhase, 2)]
    rows = top_view.bookie_rows(running, ["b1", "b2", "b3", "b4", "b5", "b6"], 0, absent)
    states = {row.bookie: row.state for row in rows}
    assert states.pop("b1@y") == "draining, read-only" and states.pop("b6") == "missing"
    assert states == {f"b{n}": str(phase) for n, phase in enumerate(BookiePhase, 2) if phase != "retired"}


def test_bookie_rows_show_seconds_since_verification() -> None:
    running = [
        BookieStatus("b1@y", "h:1", "", False, 20, verified_since_us=NOW_US - 5_000_000),
        BookieStatus("b2@y", "", "", False, 1),
    ]
    assert [row.verified_s for row in top_view.bookie_rows(running, [], NOW_US)] == [5.0, None]


# ---- how they look ----------------------------------------------------------------------------------------------

FRAME = Frame(
    at_us=NOW_US,
    topics=(top_view.topic_row(ORDERS), TopicRow(name="lonely", states=("no owner",))),
    ledgers=top_view.ledger_rows(ClusterStatus([], [LedgerStatus(3, State.OPEN, 1, 10, 17, 2)])),
    bookies=top_view.bookie_rows([BookieStatus("b1@y", "h:1", "", False, 1 << 30)], ["b1", "b2"]),
)


def test_top_prints_a_frame_as_text() -> None:
    assert top_screen.heading(FRAME) == ["2027-01-15T08:00:00Z  2 topics, 3 subscriptions, 0.2/s in, 12/s out"]
    topics, ledgers, bookies, *_ = top_screen.tables(FRAME)
    assert topics.plain() == [
        "topic       owner, type  consumers  in/s  out/s  backlog     size  unacked  delayed  oldest  drained in  state",
        "orders      10.0.0.1:99              0.2     12    1,990  2.0 MiB                      1:30              held, quota of bytes",
        "  a reader                       0            0    5,000      0 B        0        0       -           -",
        "  quick     exclusive            0            0        0      0 B        0        0   0.0 s       0.0 s",
        "  slow      shared               2           12    1,990  1.0 MiB        7        5    1:30      30.0 s  stalled, blocked",
        "lonely" + " " * 99 + "no owner",
    ]  # fmt: skip
    assert topics.marked == {0, 3, 4}
    assert ledgers.plain() == [
        "ledger  state  LAC  LAP-LAC  missing copies",
        "     3  open    10        7               2",
    ]
    assert ledgers.marked == {0}
    assert [line.split() for line in bookies.plain()[1:]] == [["b1@y", "h:1", "1.0", "GiB"], ["b2", "missing"]]
    assert bookies.marked == {1}


def test_top_prints_auto_recovery_as_text() -> None:
    frame = replace(FRAME, recovery=top_view.recovery_row(RECOVERY))
    assert top_screen.heading(frame)[1] == (
        "cluster red (entries-lost), 1,200 entries at one copy, 2 entries lost, 1 ledger in one rack, "
        "on hold for 2:00:00: upgrade"
    )
    orders, findings = top_screen.tables(frame)[3:]
    assert [re.split("  +", line.strip()) for line in orders.plain()] == [
        ["copied again", "ledgers left", "bytes left", "rate", "time left", "since", "why"],
        ["b2@x", "7", "3.0 MiB", "1.0 MiB/s", "3.0 s", "2027-01-15T07:59:00Z", "away: it has been away"],
        ["b3@x", "1", "0 B", "0 B/s", "-", "-", "an operator drains it"],
    ]
    assert orders.marked == {1}, "nothing is copied"
    assert findings.rows[0] == ("red", "entries-lost", "2 entries are lost", "bring back the disk")
    assert findings.marked == {0}
    bare = replace(frame, recovery=replace(top_view.recovery_row(RECOVERY), hold=None, findings=(), colour="green"))
    assert top_screen.heading(bare)[1].startswith("cluster green, ") and "hold" not in top_screen.heading(bare)[1]


REPLICATIONS = [
    ReplicatorStatus("t", "b", "running", 100, 100, 0, 0),
    ReplicatorStatus(
        "u", "b", "connecting", 10, 1510, 1500, 3 << 20, oldest_unsent_us=NOW_US - 90_000_000, error="away"
    ),
    ReplicatorStatus("t", "c", "detached", 1, 8, 7, 70, alarm="order `geo resync`"),
]


def test_top_prints_geo_replication_as_text() -> None:
    frame = replace(FRAME, replications=top_view.replication_rows(REPLICATIONS, NOW_US))
    assert top_screen.heading(frame)[1] == "geo-replication: 2 targets, 1,507 messages unsent, 1 alarm"
    table = top_screen.tables(frame)[-1]
    assert [re.split("  +", line.strip()) for line in table.plain()] == [
        ["replicated", "target", "state", "unsent", "bytes", "age", "alarm or error"],
        ["t", "c", "detached", "7", "70 B", "-", "order `geo resync`"],
        ["u", "b", "connecting", "1,500", "3.0 MiB", "1:30", "away"],
        ["t", "b", "running", "0", "0 B", "-"],
    ]
    assert table.marked == {0}
    assert "replicated" not in top_screen.tables(FRAME)[-1].plain()[0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (200, "3 min"), (86_400, "24 h"), (14 * 86_400, "14 d"), (172_800, "2 d")]
)
def test_ages_are_printed_in_one_unit(seconds: float, text: str) -> None:
    assert top_screen.age(seconds) == text


def test_top_draws_a_frame_with_rich() -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO(), force_terminal=True)
    console.print(top_screen.tables(FRAME)[0].rich())
    shown = console.export_text(styles=True)
    assert [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()] == [
        line.split() for line in top_screen.tables(FRAME)[0].plain()
    ]
    assert "\x1b[1;31m  slow" in shown and "\x1b[1;31m  quick" not in shown


def test_a_table_without_rows_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_tables([Table(("a", "b"), []), Table(("a", "b"), [("x", "1")])])
    assert capsys.readouterr().out == "\na  b\nx  1\n"


# ---- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    with Cluster.embedded(path, segment_bytes=64 << 10) as cluster:
        topic = cluster.topic("orders")
        topic.create_subscription("work", start="earliest", type="shared")
        topic.publish_batch([b"value"] * 5)
    return path


def test_top_prints_one_table_with_once(run: Run, folder: Path) -> None:
    done = run("top", "--once", folder)
    assert done.code == 0 and "1 topic, 1 subscription" in done.out
    rows = [line.split() for line in done.out.splitlines()]
    assert ["work", "shared", "0", "0", "5"] in [row[:5] for row in rows]
    assert len([row for row in rows if row and row[0].startswith("bookie-")]) == 3
    report = run("top", "--once", "--json", folder).json
    assert (report["topics"][0]["name"], report["topics"][0]["backlog"]) == ("orders", 5)
    assert report["topics"][0]["subscriptions"][0]["type"] == "shared"
    assert report["recovery"]["colour"] == "green" and "cluster green, 0 entries at one copy" in done.out


def test_top_does_not_open_topics_without_an_owner(run: Run, folder: Path) -> None:
    """Of a cluster that others use, too."""
    report = run("top", "--once", "--json", f"sqlite:{folder}/metadata.sqlite").json
    assert report["topics"][0]["states"] == ["no owner"]
    assert [bookie["state"] for bookie in report["bookies"]] == ["missing"] * 3
    assert {"no-auditor", "copies-missing"} <= {reason["code"] for reason in report["recovery"]["findings"]}
    assert report["recovery"]["one_copy_entries"] > 0


def test_replications_are_shown_of_a_directory_and_of_a_server(run: Run, folder: Path) -> None:
    with Cluster.embedded(folder) as cluster:
        cluster.geo.add_cluster("b", "pyreplog://b.invalid:1", uuid="0b" * 16)
        cluster.geo.set_policy("orders", targets=["b"])
        with TopicServer(cluster) as server:
            until(lambda: len(cluster.geo.status()) == 1)
            for target in (f"pyreplog://{server.address}", f"sqlite:{folder}/metadata.sqlite"):
                (row,) = run("top", "--once", "--json", target).json["replications"]
                assert (row["topic"], row["target"], row["state"], row["unsent"]) == ("orders", "b", "connecting", 5)
    done = run("top", "--once", folder)
    assert done.code == 0 and "geo-replication: 1 target, 5 messages unsent" in done.out


def test_top_continues_while_the_target_is_away(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = iter([MetadataUnavailableError("away"), None, KeyboardInterrupt()])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        coming = next(looks)
        if isinstance(coming, KeyboardInterrupt):
            raise coming
        monkeypatch.setattr(Cluster, "status", _failing(coming) if coming is not None else status)

    status = Cluster.status
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep))
    done = run("top", "--json", "--interval", 0.5, folder)
    frames = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 130 and [frame["notes"] for frame in frames] == [[], ["away"], []]
    assert frames[1]["topics"] == frames[0]["topics"], "what was known is still shown"


def _failing(error: Exception) -> object:
    def fail(_: Cluster) -> None:
        raise error

    return fail


def test_top_prints_frames_without_a_terminal(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        sleeps.append(1)
        if len(sleeps) == 2:
            raise KeyboardInterrupt

    sleeps: list[int] = []
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep))
    done = run("top", folder)
    assert done.code == 130 and done.out.count("1 topic, 1 subscription") == 2 and "\x1b" not in done.out


def test_top_draws_its_table_without_rich(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda _: None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for once in (False, True):
        with top._screen(argparse.Namespace(json=False, once=once)) as show:
            show(FRAME)
        assert capsys.readouterr().out.startswith("\x1b[H\x1b[2J2027" if not once else "2027")


@pytest.mark.parametrize("interval", [0, -1, "nan", "inf"])
def test_an_interval_that_is_none(run: Run, folder: Path, interval: object) -> None:
    done = run("top", "--interval", interval, folder)
    assert done.code == 2 and "--interval" in done.error


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_top_draws_its_table_on_a_terminal(folder: Path, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen([*COMMAND, "top", str(folder)], stdout=theirs, stderr=subprocess.PIPE, env=environment) as it:
        shown = b""
        while b"bookie-2" not in shown:
            shown += os.read(ours, 1 << 16)
        it.send_signal(signal.SIGINT)
        _, error_text = it.communicate(timeout=30)
    assert it.returncode == 130 and error_text == b""
    assert re.search(r"orders .* 5 ", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(errors="replace")))
