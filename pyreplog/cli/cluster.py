"""`pyreplog cluster status`: bookies, ledgers, and what lacks copies. `pyreplog cluster migrate`: an older store.

Other actions have modules of their own: `cluster_health`, `cluster_audit`, `cluster_bookies`,
`cluster_rebalance`, `cluster_scrub`, `cluster_recovery`, `cluster_plan`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from pyreplog.cli import (
    cluster_audit,
    cluster_bookies,
    cluster_health,
    cluster_plan,
    cluster_rebalance,
    cluster_recovery,
    cluster_scrub,
)
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import amount, counted, moment, print_json, say
from pyreplog.clock import SystemClock
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.migration import migrate, migrate_embedded
from pyreplog.ledger.status import BookieStatus, ClusterStatus, LedgerStatus
from pyreplog.metadata.layout import LAYOUT
from pyreplog.metadata.url import open_store

NAME = "cluster"
MIGRATE = "bring the metadata store of an older version to the present layout, while nothing uses it"
HELP = "show the bookies and ledgers of a cluster, and what lacks copies"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cluster_options.add_arguments(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("status", help=HELP, description=HELP).set_defaults(action=_status)
    migrating = actions.add_parser("migrate", help=MIGRATE, description=f"{MIGRATE}; may be repeated")
    migrating.set_defaults(action=_migrate)
    for module in (
        cluster_health, cluster_audit, cluster_bookies, cluster_rebalance, cluster_scrub, cluster_recovery,
        cluster_plan,
    ):  # fmt: skip
        module.add_actions(actions)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.action(arguments)
    return code


def _migrate(arguments: argparse.Namespace) -> int:
    if arguments.embedded is not None:
        moved = migrate_embedded(Path(arguments.embedded))
    elif arguments.cluster:
        with open_store(arguments.cluster) as store:
            moved = migrate(store)
    else:
        raise InvalidArgumentError(cluster_options.WHICH)
    if arguments.json:
        print_json({"layout": LAYOUT, "moved_ledgers": moved})
    else:
        say(f"layout {LAYOUT}: {counted(moved, 'ledger')} moved")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        status = cluster.status()
    if arguments.json:
        more = {"below_write_quorum": status.below_write_quorum, "health": status.health}
        print_json({**asdict(status), **more})
    else:
        _print(status)
    return 0


def _print(status: ClusterStatus) -> None:
    bookies, ledgers = counted(len(status.bookies), "bookie"), counted(len(status.ledgers), "ledger")
    say(f"{bookies}, {ledgers}; copies are {status.health}")
    for bookie in status.bookies:
        say(f"  {_bookie(bookie)}")
    for bookie in status.absent:
        say(f"  {bookie.bookie}  not running  {bookie.phase}")
    for ledger in status.ledgers:
        say(f"  {_ledger(ledger)}")
        if ledger.lacking:
            say(f"    degraded: its writer goes on without copies on {', '.join(ledger.lacking)}{_since(ledger)}")
    for repair in status.repairs:
        say(f"  to repair: entry {repair.entry} of ledger {repair.ledger} on {repair.bookie}")
    for number, where in status.limbo:
        say(f"  in limbo: ledger {number} on {where}, which may have lost entries of it")
    for key, why in status.garbled:
        say(f"  garbled: {key}: {why}")
    missing = status.below_write_quorum
    if missing:
        say(f"{counted(missing, 'copy')} below the write quorum")
    elif not status.limbo and not status.garbled:
        say("every entry has all its copies")


def _bookie(bookie: BookieStatus) -> str:
    rack, state = f"rack {bookie.rack}" if bookie.rack else "", "read-only" if bookie.read_only else ""
    scrub = cluster_health.last_scrub(bookie.scrub, SystemClock().now_us())
    parts = (
        bookie.bookie, bookie.address, rack, f"{amount(bookie.free_bytes)} free", state, bookie.phase or "", scrub,
    )  # fmt: skip
    return "  ".join(part for part in parts if part)


def _since(ledger: LedgerStatus) -> str:
    return f", since {moment(ledger.lacking_since_us)}" if ledger.lacking_since_us else ""


def _ledger(ledger: LedgerStatus) -> str:
    line = f"ledger {ledger.ledger}  {ledger.state}  LAC {ledger.last_add_confirmed}, {ledger.distance} behind LAP"
    line += f"  {counted(ledger.fragments, 'fragment')}"
    return line + (f"  {counted(ledger.below_write_quorum, 'copy')} missing" if ledger.below_write_quorum else "")
