"""Bookies are asked to scrub, and how far they are: over TCP and in the process; ones that do not know the request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.autorecovery.health import check_health
from pyreplog.autorecovery.scrubs import RATE_MAX, ask_scrubs
from pyreplog.bookie import node as bookie_node
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import FEATURES, ReplyStatus, Request, RequestKind
from pyreplog.bookie.registration import Availability
from pyreplog.bookie.scrub_report import LastScrub, ScrubReport
from pyreplog.bookie.scrub_state import NAME
from pyreplog.clock import ManualClock
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, InvalidMetadataError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE
from tests.bookie.test_local import ask
from tests.bookie.test_scrub import Lab, flip
from tests.waiting import PATIENCE_S, until

START_US = 1_700_000_000_000_000
BEGIN = Request(RequestKind.SCRUB, 0, 1, 0)
ASK = Request(RequestKind.SCRUB, 0, 0, 0)


def report_of(bookie: LocalBookie, request: Request = ASK) -> ScrubReport:
    reply = ask(bookie, request)
    assert reply.status == ReplyStatus.OK
    return ScrubReport.decode(reply.body)


def run_until_done(lab: Lab, clock: ManualClock, seconds: float = 3600) -> None:
    while report_of(lab.bookie).is_asked and seconds > 0:
        delay = max(lab.scrubber.step(), 0.05)
        clock.advance(int(delay * 1e6))
        seconds -= delay


def test_scrub_request_begins_a_pass_and_the_report_has_its_end(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0)
    lab.fill(range(200))
    lab.scrubber.step()
    assert report_of(lab.bookie) == ScrubReport(False, 0, report_of(lab.bookie).total_bytes, 0, 0, 0)
    assert report_of(lab.bookie, BEGIN).is_asked, "before any step"
    assert report_of(lab.bookie).is_asked
    path, offset = lab.place_of(1, 7)
    flip(path, offset + 70)
    run_until_done(lab, clock)
    report = report_of(lab.bookie)
    assert not report.is_asked
    assert report.last == LastScrub(report.last.ended_us if report.last else 0, 1, 0, 1)
    assert report.last.ended_us == clock.now_us() or START_US < report.last.ended_us < clock.now_us()
    again = report.last
    for _ in range(5):
        clock.advance(1_000_000)
        lab.scrubber.step()
        assert report_of(lab.bookie).last == again, "it is told in the registration, which should not change"
    lab.bookie.close()
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0)
    last = report_of(lab.bookie).last
    assert last is not None and abs(last.ended_us - again.ended_us) <= 1
    assert (last.bad_records, last.damaged_segments) == (1, 1)
    lab.bookie.close()


def test_a_pass_runs_at_the_rate_that_was_asked_for(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    lab = Lab(ram_path, clock=clock, scrub_bytes_per_s=1 << 30)
    lab.fill(range(300))
    lab.scrubber.step()
    report_of(lab.bookie, BEGIN._replace(limit=2_000))
    began_us = clock.monotonic_us()
    run_until_done(lab, clock)
    seconds = (clock.monotonic_us() - began_us) / 1e6
    size = lab.scrubber.verified_bytes
    assert size > 200_000
    assert seconds > 0.8 * size / 2_000 - 60 > 100
    lab.bookie.close()


def test_a_request_that_comes_while_a_pass_runs_begins_another(ram_path: Path) -> None:
    """Else whoever asked would take the end of the other pass for that of its own."""
    clock = ManualClock(START_US)
    lab = Lab(ram_path, clock=clock, scrub_bytes_per_s=50_000)
    lab.fill(range(300))
    report_of(lab.bookie, BEGIN)
    for _ in range(20):
        clock.advance(100_000)
        lab.scrubber.step()
    done = lab.scrubber.verified_bytes
    total = report_of(lab.bookie).total_bytes
    assert 0 < done < total
    report_of(lab.bookie, BEGIN)
    run_until_done(lab, clock)
    assert lab.scrubber.verified_bytes > done + 0.9 * total, "holes of segments are not read"
    lab.bookie.close()


def test_a_restart_goes_on_with_a_pass_that_was_asked_for(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0, scrub_bytes_per_s=50_000)
    lab.fill(range(300))
    report_of(lab.bookie, BEGIN)
    clock.advance(1_000_000)
    lab.scrubber.step()
    lab.bookie.close()
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0)
    assert report_of(lab.bookie).is_asked
    run_until_done(lab, clock)
    assert report_of(lab.bookie).last is not None
    lab.bookie.close()


def test_mended_places_are_counted_by_pass_and_kept(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0)
    lab.fill(range(200))
    flip(lab.file(lab.sealed[0]), 12)
    lab.scrubber.step()  # the segments are first seen
    clock.advance(1_000_000)
    lab.scrubber.run()
    assert report_of(lab.bookie).last == LastScrub(clock.now_us(), 0, 1, 0)
    lab.bookie.close()
    lab = Lab(ram_path, clock=clock, scrub_interval_ms=0)
    assert report_of(lab.bookie).last == LastScrub(clock.now_us(), 0, 1, 0)
    clock.advance(1_000_000)
    lab.scrubber.run()
    assert report_of(lab.bookie).last == LastScrub(clock.now_us(), 0, 0, 0)
    lab.bookie.close()
    assert b'"mended"' in (ram_path / NAME).read_bytes()


def test_a_request_that_makes_no_sense_is_refused(ram_path: Path) -> None:
    lab = Lab(ram_path)
    assert ask(lab.bookie, BEGIN._replace(first=2)).status == ReplyStatus.REFUSED
    assert not report_of(lab.bookie).is_asked
    lab.bookie.close()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"is_asked":1}', ScrubReport(True, 1, 2, 3, 4, 5).encode()[:-9]])
def test_reports_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="report of a scrub"):
        ScrubReport.decode(data)


def test_reports_and_registrations_as_bytes() -> None:
    last = LastScrub(5, 6, 7, 8)
    report = ScrubReport(True, 1, 2, 3, 4, 5, last)
    assert ScrubReport.decode(report.encode().replace(b'"is_asked"', b'"later": 1, "is_asked"')) == report
    told = Availability("here:1", "a", False, 1 << 20, last)
    assert Availability.decode(told.encode()) == told
    older = b'{"address": "here:1", "rack": "", "read_only": false, "free_bytes": 0}'
    assert Availability.decode(older).scrub is None
    with pytest.raises(InvalidMetadataError):
        Availability.decode(older.replace(b"}", b', "scrub": {"ended_us": 1}}'))


# ---- over TCP ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as sqlite_store:
        yield sqlite_store


def test_bookies_over_tcp_scrub_and_report_in_their_registrations(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is of an older version: it says so, and does nothing."""
    with ExitStack() as running:
        nodes = {}
        for name, features in (("new", FEATURES), ("old", FEATURES - {"scrub"})):
            monkeypatch.setattr(bookie_node, "FEATURES", features)
            config = BookieConfig(segment_bytes=1 << 20, **ANY_SPACE)
            node = BookieNode(store.path.parent / name, name, store, config, ledgers=StoredLedgers(store))
            nodes[name] = running.enter_context(node)
        new, old = (nodes[name].identity.id for name in ("new", "old"))
        cluster = running.enter_context(
            LedgerCluster.connect(f"sqlite:{store.path}", request_timeout_ms=round(PATIENCE_S * 1000))
        )
        nodes["new"].maintain()
        reports = ask_scrubs(cluster.runtime, [new, old, "gone@" + "0" * 32], begin=True)
        told = reports[new]
        assert isinstance(told, ScrubReport) and told.is_asked
        assert reports[old] == f"UNSUPPORTED, bookie {old} does not know 'scrub': upgrade it"
        assert "is not registered" in str(reports["gone@" + "0" * 32])

        def is_done() -> bool:
            nodes["new"].maintain()
            report = ask_scrubs(cluster.runtime, [new])[new]
            return isinstance(report, ScrubReport) and not report.is_asked

        until(is_done)
        nodes["new"].maintain()
        until(lambda: set(check_health(cluster.runtime).scrubs) == {new})
        assert check_health(cluster.runtime).scrubs[new].damaged_segments == 0
        assert nodes["old"].scrub_progress().since_complete_s is None


def test_an_embedded_cluster_scrubs_at_once(tmp_path: Path) -> None:
    """Not when the next step is due, a minute later."""
    with LedgerCluster.embedded(tmp_path, bookies=3, segment_bytes=1 << 20) as cluster:
        bookies = [status.bookie for status in cluster.status().bookies]
        ask_scrubs(cluster.runtime, bookies, begin=True, bytes_per_s=RATE_MAX)
        until(lambda: all(status.scrub is not None for status in cluster.status().bookies))
        with pytest.raises(InvalidArgumentError, match=f"expected 1 to {RATE_MAX}, found 0"):
            ask_scrubs(cluster.runtime, bookies, bytes_per_s=0)
