"""Quorum appends, as many on their way as the window takes."""

from __future__ import annotations

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import SIZES
from benchmarks.ledgers import WINDOW_BYTES, Bookies, Turns, bookies, turn_entries
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Goal, Section
from benchmarks.sampling import interleave

BATCHES = {100: 256, 1024: 256, 16384: 16}
_LIMITS = {100: 0.4, 1024: 0.55, 16384: 0.55}
QUORUMS = 3, 3, 2


def pipelined(plan: Plan) -> Section:
    """`submit_batch` to three bookies, two of which confirm."""
    section = Section("ledgers-pipelined", "Ledger of three bookie processes, E=3 Qw=3 Qa=2, TCP, pipelined, appended")
    part = plan.shared(len(_LIMITS))
    with bookies(plan, "appended") as side:
        for size, limit in _LIMITS.items():
            section.comparisons.append(compare(part, side, "appended", size, BATCHES[size], limit))
    section.notes.append(window_note())
    return section


def compare(plan: Plan, side: Bookies, durability: Durability, size: int, batch: int, limit: float) -> Comparison:
    """Entries per second of batches of both sides."""
    entries = turn_entries(plan, size, batch)
    with bare_ledger(plan, durability, size, batch=batch) as bare:
        turns = Turns(side, size, QUORUMS, durability)
        turns.warm_up(entries, batch)
        found = interleave(plan, {"ours": lambda: turns.pipelined(entries, batch), "bare": lambda: bare.rate(entries)})
        return Comparison(
            f"append {SIZES[size]} in batches of {batch}",
            Figure("submit_batch", found["ours"], "/s", durability, size),
            Figure("C client and bookies", found["bare"], "/s", durability, size),
            Goal("at least", limit),
            f"{turns.verified()}; {bare.verified()}",
        )


def window_note() -> str:
    """What both sides have in common."""
    return (
        f"Both sides: a window of {WINDOW_BYTES >> 20} MiB of entries that lack a copy, the same batches and records, "
        "CRC made by the client and checked by each bookie, logs whose memory is recycled."
    )
