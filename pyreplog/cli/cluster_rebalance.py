"""`pyreplog cluster rebalance`: moves copies from full bookies to empty ones, and out of racks that have all copies."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.key_waiter import KeyWaiter
from pyreplog.autorecovery.protocol.rebalance import NoMoveReason
from pyreplog.autorecovery.rebalance_moves import REBALANCE, RebalanceMoves
from pyreplog.autorecovery.rebalancer import RebalanceProposal, Rebalancer, run_rebalance
from pyreplog.cli.shared import cluster_options
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.clock import SystemClock

REBALANCE_HELP = "move copies of closed ledgers from full bookies to empty ones, and mend racks"

_POLL_S = 10.0
_SHOWN_MAX = 20
_WHY = {
    NoMoveReason.NO_TARGET: "each emptier bookie is a member already, or takes no copies",
    NoMoveReason.NO_SPACE: "no emptier bookie has room for them",
    NoMoveReason.RACKS: "entries would have copies in fewer racks",
    NoMoveReason.NO_GAIN: "they are so large that the other bookie would be the fuller one",
}


def add_actions(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser("rebalance", help=REBALANCE_HELP, description=REBALANCE_HELP)
    parser.add_argument("--dry-run", action="store_true", help="print the moves of the first plan, and change nothing")
    parser.add_argument("--max-bytes", metavar="N", type=int, help="bytes to move at most")
    parser.add_argument("--end", action="store_true", help="give up the moves that did not begin; what was moved stays")
    parser.set_defaults(action=_rebalance)


def _rebalance(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        rebalancer = Rebalancer(cluster.runtime, SystemClock())
        if arguments.end:
            return _end(arguments, rebalancer)
        if arguments.dry_run:
            _print_proposal(arguments, rebalancer.propose(bytes_max=arguments.max_bytes))
            return 0
        with ExitStack() as running:
            waiter = running.enter_context(KeyWaiter(cluster.metadata, [REBALANCE]))
            if cluster.runtime.embedded_bookies is not None:  # no other process can copy
                running.enter_context(AutoRecovery(cluster, SystemClock())).start()
            progress = _Progress(arguments, waiter)
            failed = run_rebalance(
                rebalancer, progress.wait, bytes_max=arguments.max_bytes, on_plan=progress.begin
            )  # fmt: skip
    if arguments.json:
        print_json({"failed": {str(ledger): why for ledger, why in failed.items()}})
    for ledger, why in () if arguments.json else sorted(failed.items())[:_SHOWN_MAX]:
        say(f"ledger {ledger} stays where it is: {why}")
    return 0


def _end(arguments: argparse.Namespace, rebalancer: Rebalancer) -> int:
    had_one = rebalancer.end()
    if arguments.json:
        print_json({"rebalance": None, "had_one": had_one})
    else:
        say("the rebalance is given up; moves that have begun are completed" if had_one else "there was no rebalance")
    return 0


class _Progress:
    """Prints plans, and how far they are, with the time left."""

    def __init__(self, arguments: argparse.Namespace, waiter: KeyWaiter) -> None:
        self._arguments, self._waiter = arguments, waiter
        self._size, self._began = 0, 0.0
        self._shown: tuple[int, int] | None = None

    def begin(self, proposal: RebalanceProposal) -> None:
        """A plan begins."""
        self._size, self._began, self._shown = proposal.plan.size, time.monotonic(), None
        _print_proposal(self._arguments, proposal)

    def wait(self, moves: RebalanceMoves) -> None:
        """Say what is left, and wait for a change."""
        left = len(moves.moves), moves.bytes_left
        if left != self._shown:
            self._shown = left
            self._print(*left)
        self._waiter.wait(_POLL_S)

    def _print(self, moves: int, size: int) -> None:
        done, seconds = self._size - size, time.monotonic() - self._began
        eta_s = size * seconds / done if done > 0 else None
        if self._arguments.json:
            print_json({"moves_left": moves, "bytes_left": size, "eta_s": eta_s})
            return
        line = f"{counted(moves, 'move')} left, {amount(size)}"
        say(line if eta_s is None else f"{line}, about {duration(eta_s)}")
        sys.stdout.flush()


def _print_proposal(arguments: argparse.Namespace, proposal: RebalanceProposal) -> None:
    plan = proposal.plan
    if arguments.json:
        print_json({**asdict(proposal), "bytes": plan.size})
        return
    for bookie, before in sorted(plan.before.items(), key=lambda pair: -pair[1]):
        say(f"  {bookie}: {before:.0%} of its share, {plan.after[bookie]:.0%} after the moves")
    if not plan.moves:
        say("nothing is moved")
    else:
        say(f"{counted(len(plan.moves), 'move')}, {amount(plan.size)}")
    for move in plan.moves[:_SHOWN_MAX]:
        why = f"; mends {counted(move.fixed_violations, 'write set')} in one rack" if move.fixed_violations else ""
        say(f"  ledger {move.ledger}: from {move.source} to {move.target}, {amount(move.size)}{why}")
    if len(plan.moves) > _SHOWN_MAX:
        say(f"  and {len(plan.moves) - _SHOWN_MAX:,} more")
    _print_kept(proposal)
    sys.stdout.flush()


def _print_kept(proposal: RebalanceProposal) -> None:
    """Say what is not done, and why."""
    for kept, count in sorted(proposal.plan.kept.items()):
        say(f"  not moved: copies of {counted(count, 'ledger')}: {_WHY[kept]}")
    if proposal.plan.violations_left:
        sets = counted(proposal.plan.violations_left, "write set")
        say(f"  {sets} stay in one rack: no single move mends them, or the plan is full")
    for bookie, why in sorted(proposal.left_out.items()):
        say(f"  left out: {bookie}: {why}")
    for count, why in (
        (proposal.open_ledgers, "they are open, and their writers choose their bookies"),
        (proposal.recovering, "members do not run or leave, and auto-recovery moves their copies"),
        (proposal.garbled, "their metadata cannot be read"),
    ):
        if count:
            say(f"  left out: {counted(count, 'ledger')}: {why}")
