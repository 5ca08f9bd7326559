"""`pyreplog cluster drain`, `lost` and `retire`: what an operator decides about one bookie."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, TextIO

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.bookie_operations import BlockedLedger, BookieOperations, DrainProgress, LossForecast
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.key_waiter import KeyWaiter
from pyreplog.autorecovery.leased_keys import AUDITOR
from pyreplog.autorecovery.orders import ORDERS
from pyreplog.autorecovery.status import STATUS
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import amount, counted, duration, moment, print_json, say
from pyreplog.clock import SystemClock
from pyreplog.errors import DrainBlockedError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.plurals import agreeing

DRAIN = "have the copies of a bookie moved to others"
LOST = "declare that the data of a bookie are gone, so that its copies are made again at once"
RETIRE = "retire a bookie that was drained or lost, and that no ledger names"

_POLL_S = 5.0
"""Copies that workers make change keys of the auditor; a ledger that its writer changes does not."""
BLOCKED_S = 120.0
"""A drain without progress for so long, of which all ledgers that are left failed, ends the wait."""
_SHOWN_MAX = 20


def add_actions(actions: Any) -> None:
    """Add the parsers of the actions."""
    drain = actions.add_parser("drain", help=DRAIN, description=DRAIN)
    drain.add_argument("--end", action="store_true", help="make it an ordinary member again")
    drain.add_argument(
        "--wait", action="store_true",
        help="until no ledger names it, or nothing can be moved; Ctrl-C leaves the drain as it is",
    )  # fmt: skip
    drain.add_argument(
        "--patience", metavar="S", type=float, default=BLOCKED_S,
        help="seconds without progress, when all that is left fails, after which --wait ends (%(default)g)",
    )  # fmt: skip
    lost = actions.add_parser("lost", help=LOST, description=LOST)
    lost.add_argument("--yes", action="store_true", help="also if entries are lost with it")
    lost.add_argument("--force", action="store_true", help="also if it runs")
    lost.add_argument("--end", action="store_true", help="take it back: its data exist after all")
    retire = actions.add_parser("retire", help=RETIRE, description=RETIRE)
    for parser, action in ((drain, _drain), (lost, _lost), (retire, _retire)):
        parser.add_argument("bookie", metavar="BOOKIE", help="name or id of the bookie")
        parser.set_defaults(action=action)
    for parser in (drain, lost):
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")


def _print_scan(arguments: argparse.Namespace) -> None:
    """Say that the metadata of all ledgers are read, which takes a while in a large cluster."""
    if arguments.embedded is None:
        say("reading the metadata of all ledgers", file=sys.stderr)


def _print_hold(cluster: LedgerCluster) -> None:
    """Say why no copies are made at present, if that is so."""
    hold = find_hold(cluster.metadata)
    if hold is not None:
        say(
            f"nothing is copied: auto-recovery is on hold since {moment(hold.since_us)}: {hold.reason}; end it with "
            "`pyreplog cluster hold --end`",
            file=sys.stderr,
        )
    elif cluster.runtime.embedded_bookies is None and cluster.metadata.get(AUDITOR) is None:
        say("nothing is copied: no auditor runs; start `pyreplog autorecovery run URL`", file=sys.stderr)


def _drain(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        operations = BookieOperations(cluster.runtime, SystemClock())
        if arguments.end:
            bookie = operations.end_drain(arguments.bookie)
            if arguments.json:
                print_json({"bookie": bookie, "phase": None})
            else:
                say(f"bookie {bookie} is an ordinary member again")
            return 0
        _print_scan(arguments)
        progress = operations.begin_drain(arguments.bookie, dry_run=arguments.dry_run)
        _print_drain(arguments, progress)
        if progress.ledgers_left and not arguments.dry_run:
            _print_hold(cluster)
        if arguments.wait and not arguments.dry_run:
            with ExitStack() as running:
                if cluster.runtime.embedded_bookies is not None:  # no other process can copy
                    running.enter_context(AutoRecovery(cluster, SystemClock())).start()
                waiter = running.enter_context(KeyWaiter(cluster.metadata, [STATUS, ORDERS]))
                _wait(arguments, operations, waiter, progress)
    return 0


def _wait(arguments: argparse.Namespace, operations: BookieOperations, waiter: KeyWaiter, first: DrainProgress) -> None:
    began = moved = time.monotonic()
    progress = first
    while progress.ledgers_left:
        waiter.wait(min(_POLL_S, max(arguments.patience, 0.05)))
        previous, progress = progress, operations.drain_progress(first.bookie)
        now = time.monotonic()
        if progress != previous:
            moved = now
            _print_drain(arguments, progress, _eta_s(first, progress, now - began))
        elif now - moved >= arguments.patience and (blocked := operations.blocked(first.bookie)):
            for each in blocked:
                say(_blocked_line(each), file=sys.stderr)
            count = counted(len(blocked), "ledger", "fail")
            raise DrainBlockedError(f"bookie {first.bookie}: nothing can be moved, {count}; it stays draining")


def _blocked_line(blocked: BlockedLedger) -> str:
    line = f"  ledger {blocked.ledger}: {blocked.why}"
    if not blocked.unreadable:
        return line
    parts = [str(some[0]) if len(some) == 1 else f"{some[0]} to {some[-1]}" for some in blocked.unreadable[:_SHOWN_MAX]]
    hidden = len(blocked.unreadable) - len(parts)
    return f"{line}; cannot be read: entries {', '.join(parts)}" + (f" and {hidden} ranges more" if hidden else "")


def _eta_s(first: DrainProgress, now: DrainProgress, seconds: float) -> float | None:
    """Return the seconds that are left at the rate since the first look; None: nothing was moved."""
    done, left = first.bytes_left - now.bytes_left, now.bytes_left
    if not first.bytes_left:
        done, left = first.ledgers_left - now.ledgers_left, now.ledgers_left
    return None if done <= 0 else left * seconds / done


def _print_drain(arguments: argparse.Namespace, progress: DrainProgress, eta_s: float | None = None) -> None:
    if arguments.json:
        print_json({**asdict(progress), "eta_s": eta_s})
        return
    line = f"bookie {progress.bookie}: {counted(progress.ledgers_left, 'ledger')} left, {amount(progress.bytes_left)}"
    if progress.open_left:
        line += f", {progress.open_left} of them open: their writers replace it"
    say(line if not progress.ledgers_left or eta_s is None else f"{line}, about {duration(eta_s)}")
    sys.stdout.flush()


def _lost(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        operations = BookieOperations(cluster.runtime, SystemClock())
        if arguments.end:
            return _end_lost(arguments, operations)
        _print_scan(arguments)
        if arguments.dry_run:
            forecast = operations.forecast_loss(arguments.bookie)
        else:
            forecast = operations.declare_lost(arguments.bookie, accept_loss=arguments.yes, force=arguments.force)
        if arguments.json:
            print_json({**asdict(forecast), "is_declared": not arguments.dry_run})
        else:
            print_forecast(forecast, "would be" if arguments.dry_run else "are")
        if not arguments.dry_run:
            if not arguments.json:
                say(f"bookie {forecast.bookie} counts as lost: its copies are made again")
            _print_hold(cluster)
    return 0


def _end_lost(arguments: argparse.Namespace, operations: BookieOperations) -> int:
    bookie = operations.end_lost(arguments.bookie)
    if arguments.json:
        print_json({"bookie": bookie, "phase": None})
    else:
        say(f"bookie {bookie} does not count as lost any more")
    return 0


def print_forecast(forecast: LossForecast, verb: str, *, file: TextIO | None = None) -> None:
    """Print how many ledgers name a bookie, and the entries that have no other copy.

    Args:
        forecast: what is lost.
        verb: of the entries: "are", "would be".
        file: where to; None: standard output.
    """
    say(f"bookie {forecast.bookie}: {counted(forecast.ledgers, 'ledger', 'name')} it", file=file)
    for ledger, entries in sorted(forecast.entries.items())[:_SHOWN_MAX]:
        say(f"  ledger {ledger}: {counted(entries, 'entry')} {agreeing(entries, verb)} lost", file=file)
    for ledger in forecast.open_ledgers[:_SHOWN_MAX]:
        say(f"  ledger {ledger}: is not closed, and entries of its last fragment {verb} lost", file=file)
    hidden = max(len(forecast.entries) - _SHOWN_MAX, 0) + max(len(forecast.open_ledgers) - _SHOWN_MAX, 0)
    if hidden:
        say(f"  and {counted(hidden, 'ledger')} more", file=file)
    if not forecast.loses:
        say("  every entry has a copy elsewhere", file=file)


def _retire(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        _print_scan(arguments)
        bookie = BookieOperations(cluster.runtime, SystemClock()).retire(arguments.bookie)
        runs = cluster.runtime.embedded_bookies is None and any(
            status.bookie == bookie for status in cluster.runtime.bookie_statuses()
        )
    if arguments.json:
        print_json({"bookie": bookie, "phase": "retired"})
    else:
        say(f"bookie {bookie} is retired" + ("; it still runs: stop its process" if runs else ""))
    return 0
