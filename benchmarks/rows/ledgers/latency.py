"""One entry on its way at a time; on sleeping cores, and busy-polled."""

from __future__ import annotations

from statistics import median

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import SIZES
from benchmarks.ledgers import Bookies, Turns, bookies
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Durability, Figure, Goal, Section
from benchmarks.rows.ledgers.pipelined import QUORUMS
from benchmarks.sampling import interleave

_SIZE = 1024
_APPENDS = 1024
_BUSY_POLL_US = 10_000


def latency(plan: Plan) -> Section:
    """`append`, one behind the other."""
    section = Section("ledgers-latency", "Ledger, one entry outstanding, TCP, appended")
    half = plan.shared(2)
    with bookies(plan, "appended") as side:
        section.comparisons.append(compare(half, side, "appended", _SIZE, QUORUMS, 2.0))
    with bookies(plan, "appended", count=1, busy_poll_us=_BUSY_POLL_US) as side:
        section.comparisons.append(compare(half, side, "appended", _SIZE, (1, 1, 1), 1.5, spin=True))
    section.notes.append(
        "Medians, from before the call (bare: before the encoding) to the confirmation. Busy-polled: the client "
        "and the bookie of both sides."
    )
    return section


def compare(
    plan: Plan,
    side: Bookies,
    durability: Durability,
    size: int,
    quorums: tuple[int, int, int],
    limit: float,
    *,
    spin: bool = False,
) -> Comparison:
    """Median seconds of one append on both sides. spin: of the bare one; `side` was told so when it was made."""
    ensemble, _, acks = quorums
    count = plan.scaled(_APPENDS, 32)
    with bare_ledger(plan, durability, size, batch=1, count=ensemble, acks=acks, in_turn=True, spin=spin) as bare:
        turns = Turns(side, size, quorums, durability)
        found = interleave(
            plan, {"ours": lambda: median(turns.in_turn(count)), "bare": lambda: bare.latency(count)}
        )  # fmt: skip
        polled = ", busy-polled" if spin else ""
        return Comparison(
            f"one append of {SIZES[size]}, E={ensemble} Qa={acks}{polled}",
            Figure("append", found["ours"], "s", durability),
            Figure("C client and bookies", found["bare"], "s", durability),
            Goal("at most", limit),
            f"{turns.verified()}; {bare.verified()}",
        )
