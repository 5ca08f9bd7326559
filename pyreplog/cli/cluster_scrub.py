"""`pyreplog cluster scrub`: has bookies verify all their segments now, and shows how far they are."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.health import Colour
from pyreplog.autorecovery.scrubs import ask_scrubs
from pyreplog.bookie.scrub_report import ScrubReport
from pyreplog.cli.cluster_health import EXIT_CODES, last_scrub
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster

SCRUB = "have bookies verify all their segments on the disk now, and show how far they are"

_POLL_S = 1.0
"""A bookie has its progress in memory: no key tells that it changed."""


def add_actions(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser("scrub", help=SCRUB, description=f"{SCRUB}; exit code 10: damage was found")
    parser.add_argument("bookie", metavar="BOOKIE", nargs="*", help="names or ids of bookies; none: all that run")
    parser.add_argument(
        "--bytes-per-s",
        metavar="N",
        type=int,
        help="bytes that each bookie verifies in a second (default: as it is set)",
    )
    parser.add_argument("--status", action="store_true", help="only show how far they are, and the last complete pass")
    parser.set_defaults(action=_scrub)


def _scrub(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        bookies = _bookies(cluster, arguments)
        begin = not arguments.status
        reports = ask_scrubs(cluster.runtime, bookies, begin=begin, bytes_per_s=arguments.bytes_per_s)
        _print(arguments, reports)
        answered = {bookie: report for bookie, report in reports.items() if isinstance(report, ScrubReport)}
        began = time.monotonic()
        while begin and any(isinstance(report, ScrubReport) and report.is_asked for report in reports.values()):
            time.sleep(_POLL_S)
            previous, reports = reports, ask_scrubs(cluster.runtime, answered)
            if reports != previous:
                _print(arguments, reports, time.monotonic() - began)
    bad = [report for report in reports.values() if isinstance(report, str) or report.damaged_segments]
    return EXIT_CODES[Colour.AMBER if bad or len(answered) < len(bookies) else Colour.GREEN]


def _bookies(cluster: LedgerCluster, arguments: argparse.Namespace) -> list[str]:
    """The ids of the bookies that are meant. Raises NoSuchBookieError."""
    if not arguments.bookie:
        return [status.bookie for status in cluster.runtime.bookie_statuses()]
    operations = BookieOperations(cluster.runtime, SystemClock())
    return list(dict.fromkeys(operations.find(bookie) for bookie in arguments.bookie))


def _print(
    arguments: argparse.Namespace, reports: Mapping[str, ScrubReport | str], seconds: float | None = None
) -> None:
    if arguments.json:
        errors = {bookie: {"error": report} for bookie, report in reports.items() if isinstance(report, str)}
        answered = {bookie: asdict(report) for bookie, report in reports.items() if isinstance(report, ScrubReport)}
        print_json({"bookies": {**answered, **errors}})
        return
    for bookie, report in sorted(reports.items()):
        say(f"{bookie}: {report if isinstance(report, str) else _line(report, seconds)}")
    sys.stdout.flush()


def _line(report: ScrubReport, seconds: float | None) -> str:
    parts = []
    if report.is_asked:
        part = f"{amount(report.done_bytes)} of {amount(report.total_bytes)} verified"
        if seconds and report.done_bytes:
            left_s = (report.total_bytes - report.done_bytes) * seconds / report.done_bytes
            part += f", about {duration(left_s)}"
        parts.append(f"{part}; {counted(report.bad_records, 'bad record')}, {report.mended:,} mended")
    else:
        parts.append(last_scrub(report.last, SystemClock().now_us()))
    if report.damaged_segments:
        parts.append(f"{counted(report.damaged_segments, 'segment')} damaged now")
    return "; ".join(parts)
