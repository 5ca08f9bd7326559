"""Recovery of a ledger whose writer was killed, short and long ones."""

from __future__ import annotations

import time

from benchmarks.entries import make_values
from benchmarks.ledgers import Bookies, bookies, verify_ledger
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave

_SIZE = 100
_SHORT, _LONG = 10_000, 1_000_000
TAIL = 1024
"""Entries of the last batch: confirmed to the writer, which was killed before it told the bookies."""

_LIMIT = 1.5


class Abandoned:
    """Ledgers that a process writes and leaves behind, all with the same unconfirmed tail."""

    def __init__(self, side: Bookies) -> None:
        self._side, self._values = side, make_values(_SIZE)
        self.read_back = 0

    def recover(self, entries: int) -> float:
        """Seconds until a ledger of so many entries has its end, from opening it on."""
        with job("abandon", self._side.url, _SIZE, entries, TAIL) as writer:
            ledger = writer.answer()
            writer.wait(killed=True)
        self._side.sync()
        begin = time.perf_counter()
        self._side.cluster.open_ledger(ledger).close()
        took = time.perf_counter() - begin
        self.read_back += verify_ledger(self._side.cluster, ledger, self._values, entries)
        self._side.cluster.delete_ledger(ledger)
        self._side.collect()
        return took


def recovery(plan: Plan) -> Section:
    """`open_ledger` of a ledger that nobody closed."""
    section = Section("ledgers-recovery", f"Recovery of a ledger, {TAIL:,} entries in the unconfirmed tail, appended")
    short, long = plan.scaled(_SHORT, 4 * TAIL), plan.scaled(_LONG, 8 * TAIL)
    with bookies(plan, "appended") as side:
        abandoned = Abandoned(side)
        found = interleave(plan, {"long": lambda: abandoned.recover(long), "short": lambda: abandoned.recover(short)})
    section.comparisons.append(
        Comparison(
            "open_ledger after kill -9 of its writer",
            Figure(f"{long:,} entries", found["long"], "s", "appended"),
            Figure(f"{short:,} entries", found["short"], "s", "appended"),
            Goal("at most", _LIMIT),
            f"{abandoned.read_back:,} entries",
        )
    )
    section.notes.append(
        "The bookies had synced their logs before: the fence, which waits for the disk, is all that is synced here."
    )
    return section
