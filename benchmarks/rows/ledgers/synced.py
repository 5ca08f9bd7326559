"""Quorum appends that are confirmed when the disks have them."""

from __future__ import annotations

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import Bookies, Turns, bookies
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ledgers import latency, pipelined
from benchmarks.rows.ledgers.pipelined import QUORUMS
from benchmarks.sampling import interleave

_SIZE = 100
_ENTRIES = 512 * BATCH


def synced(plan: Plan) -> Section:
    """`append`, `append_batch` and `submit_batch` of synced bookies."""
    section = Section("ledgers-synced", "Ledger of three bookie processes, E=3 Qw=3 Qa=2, TCP, synced")
    part = plan.shared(3)
    with bookies(plan, "synced") as side:
        section.comparisons += [
            latency.compare(part, side, "synced", _SIZE, QUORUMS, 1.5),
            _batches(part, side),
            pipelined.compare(part, side, "synced", 1024, BATCH, 0.5),
        ]
    section.notes += [pipelined.window_note(), "Three bookies share one disk, as on the other side."]
    return section


def _batches(plan: Plan, side: Bookies) -> Comparison:
    """Batches one behind the other."""
    count = plan.scaled(_ENTRIES, 16 * BATCH) // BATCH
    with bare_ledger(plan, "synced", _SIZE, batch=BATCH, in_turn=True) as bare:
        turns = Turns(side, _SIZE, QUORUMS, "synced")
        found = interleave(
            plan,
            {
                "ours": lambda: count * BATCH / sum(turns.in_turn(count, BATCH)),
                "bare": lambda: bare.rate(count * BATCH),
            },
        )
        return Comparison(
            f"append_batch of {BATCH}, {SIZES[_SIZE]}, one outstanding",
            Figure("append_batch", found["ours"], "/s", "synced", _SIZE),
            Figure("C client and bookies", found["bare"], "/s", "synced", _SIZE),
            Goal("at least", 0.6),
            f"{turns.verified()}; {bare.verified()}",
        )
