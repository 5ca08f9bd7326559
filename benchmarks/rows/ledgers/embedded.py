"""Three bookies in this process beside one log."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import SPARES, Turns, segment_files, settings, turn_entries
from benchmarks.logs import recycled
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ledgers.pipelined import QUORUMS
from benchmarks.sampling import interleave
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.runtime import EmbeddedRuntime

_SIZE = 1024
_COLLECT_MS = 250
_COLLECT_S = 60.0


class EmbeddedBookies:
    """A cluster in a directory, as `Turns` needs it."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack) -> None:
        of_each = settings(plan, "appended") | {"collect_interval_ms": _COLLECT_MS if plan.budget >= 1 else 1}
        self.cluster = stack.enter_context(LedgerCluster.embedded(folder, bookies=3, **of_each))
        runtime = self.cluster._runtime
        assert isinstance(runtime, EmbeddedRuntime)
        self._bookies = list(runtime.bookies.values())

    def collect(self) -> None:
        """Wait until every bookie keeps nothing but the segment it writes, and has the next ones ready."""
        deadline = time.monotonic() + _COLLECT_S
        for bookie in self._bookies:
            log = bookie.log.log
            while len(log.segments()) > 1 or log._log.stats().ready_segments < SPARES:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{log}: its garbage was not collected for {_COLLECT_S} s")
                time.sleep(0.002)

    def files(self) -> set[tuple[str, int]]:
        return segment_files(bookie.path for bookie in self._bookies)


def embedded(plan: Plan) -> Section:
    """`append_batch` of a ledger in an embedded cluster."""
    section = Section("ledgers-embedded", f"Embedded cluster of three bookies, batches of {BATCH}, appended, recycled")
    entries = turn_entries(plan, _SIZE, BATCH)
    with plan.folder() as folder, ExitStack() as stack, recycled(plan, _SIZE) as log:
        turns = Turns(EmbeddedBookies(plan, folder, stack), _SIZE, QUORUMS, "appended")
        turns.warm_up(entries, BATCH)

        def of_ledger() -> float:
            return entries / sum(turns.in_turn(entries // BATCH, BATCH))

        found = interleave(plan, {"ours": of_ledger, "log": log.batches})
        section.comparisons.append(
            Comparison(
                f"append_batch {SIZES[_SIZE]}, three copies",
                Figure("ledger", found["ours"], "/s", "appended", _SIZE),
                Figure("one CommitLog", found["log"], "/s", "appended", _SIZE),
                Goal("at least", 0.25),
                f"{turns.verified()}; log: {log.verified()}",
            )
        )
    return section
