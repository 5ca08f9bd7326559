"""`pyreplog cluster health`: one word, the reasons, and the next step of each."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pyreplog.autorecovery.health import ClusterHealth, Colour, check_health
from pyreplog.bookie.scrub_report import LastScrub
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import counted, duration, print_json, say
from pyreplog.clock import SystemClock

HEALTH = "say whether the cluster is green, amber or red, why, and what to do"

EXIT_CODES = {Colour.GREEN: 0, Colour.AMBER: 10, Colour.RED: 11}


def add_actions(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser("health", help=HEALTH, description=f"{HEALTH}; exit code 0, 10 or 11")
    parser.add_argument(
        "--scan",
        action="store_true",
        help="read the metadata of all ledgers, also if the auditor says that all is well",
    )
    parser.set_defaults(action=_health)


def _health(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        health = check_health(cluster.runtime, limbo=cluster.limbo, trust_auditor=not arguments.scan)
    if arguments.json:
        print_json(asdict(health))
    else:
        _print(health)
    return EXIT_CODES[health.colour]


def _print(health: ClusterHealth) -> None:
    say(f"{health.colour}: {counted(health.bookies, 'bookie')}, {counted(health.ledgers, 'ledger')}")
    print_findings(health)
    if not health.is_scanned:
        say("  copies are as the auditor says; --scan reads the metadata of all ledgers")
    for bookie, scrub in sorted(health.scrubs.items()):
        say(f"  {bookie}: {last_scrub(scrub, SystemClock().now_us())}")
    if unverified := health.bookies - len(health.scrubs):
        say(f"  {counted(unverified, 'bookie')} without a complete scrub yet")


def print_findings(health: ClusterHealth) -> None:
    """Print the reasons, each with its next step, and who the auditor is."""
    for finding in health.findings:
        say(f"  {finding.colour}  {finding.code}: {finding.text}")
        say(f"    next: {finding.next_step}")
    if health.auditor is not None:
        say(f"  auditor: {health.auditor}")


def last_scrub(last: LastScrub | None, now_us: int) -> str:
    """Say when the last complete pass of a bookie ended, and what it found."""
    if last is None:
        return "no complete scrub yet"
    age = duration(max(now_us - last.ended_us, 0) / 1e6)
    return f"scrubbed {age} ago, {counted(last.bad_records, 'bad record')}, {last.mended:,} mended"
