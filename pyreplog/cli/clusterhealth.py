"""`pyreplog cluster health`: one word, the reasons, and the next step of each."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pyreplog.autorecovery.health import ClusterHealth, Colour, check_health
from pyreplog.cli.shared import clusteroptions
from pyreplog.cli.shared.output import counted, print_json, say

HEALTH = "say whether the cluster is green, amber or red, why, and what to do"

EXIT_CODES = {Colour.GREEN: 0, Colour.AMBER: 10, Colour.RED: 11}


def add_actions(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser("health", help=HEALTH, description=f"{HEALTH}; exit code 0, 10 or 11")
    parser.set_defaults(action=_health)


def _health(arguments: argparse.Namespace) -> int:
    with clusteroptions.cluster(arguments) as cluster:
        health = check_health(cluster.runtime, limbo=cluster.limbo)
    if arguments.json:
        print_json(asdict(health))
    else:
        _print(health)
    return EXIT_CODES[health.colour]


def _print(health: ClusterHealth) -> None:
    say(f"{health.colour}: {counted(health.bookies, 'bookie')}, {counted(health.ledgers, 'ledger')}")
    print_findings(health)


def print_findings(health: ClusterHealth) -> None:
    """Print the reasons, each with its next step, and who the auditor is."""
    for finding in health.findings:
        say(f"  {finding.colour}  {finding.code}: {finding.text}")
        say(f"    next: {finding.next_step}")
    if health.auditor is not None:
        say(f"  auditor: {health.auditor}")
