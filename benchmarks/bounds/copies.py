"""The embedded cluster with the ledger and its bookies taken out of it: one encoding, and three logs that take it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import SPARES, turn_entries
from benchmarks.logs import recycled, settle
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave, timed
from pyreplog._native.entries import encode_entries
from pyreplog.config import LogConfig
from pyreplog.log.ledgerlog import LedgerLog

_SIZE = 1024
_COPIES = 3


def copies(plan: Plan) -> Section:
    """`LedgerLog.stage` of each batch into three logs, one behind the other."""
    section = Section("bound-copies", f"What bounds the embedded cluster: {_COPIES} verified copies of a batch")
    with plan.folder() as folder, ExitStack() as stack, recycled(plan, _SIZE) as log:
        logs = Copies(plan, folder, stack, log.values * (BATCH // len(log.values)))

        def of_log() -> float:
            count = max(log.lap(_SIZE) // BATCH, 1)
            log.written += count * BATCH
            took = timed(lambda: [log.log.append_batch(logs.values) for _ in range(count)], count * BATCH)
            settle(log.log)
            return 1 / took

        found = interleave(plan, {"copies": logs.turn, "log": of_log})
        section.comparisons.append(
            Comparison(
                f"batches of {BATCH} x {SIZES[_SIZE]}, {_COPIES} copies",
                Figure("encoded once, staged in each log", found["copies"], "/s", "appended", _SIZE),
                Figure("one CommitLog", found["log"], "/s", "appended", _SIZE),
                None,
                f"{logs.checked:,} entries; log: {log.verified()}",
            )
        )
    section.notes.append(
        "No quorum, acknowledgement or bookie takes part: every log copies the records, checks their checksums and "
        "indexes them, as a bookie's does. `append_batch` of a ledger cannot be quicker."
    )
    return section


class Copies:
    """Logs of many ledgers, which give their space back after each turn."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack, values: list[bytes]) -> None:
        config = LogConfig(durability="appended", segment_bytes=plan.segment_bytes, spare_segments=SPARES)
        self.values, self.checked, self._ledger = values, 0, 0
        self._logs = [stack.enter_context(LedgerLog(folder / f"log-{n}", config)) for n in range(_COPIES)]
        self._entries = turn_entries(plan, _SIZE, BATCH)

    def turn(self) -> float:
        """Entries per second."""
        begin = time.perf_counter()
        for first in range(0, self._entries, BATCH):
            made = encode_entries(self.values, ledger=self._ledger, first=first, lac=first - 1, time=1)
            for log in self._logs:
                log.stage(made.view)
        took = time.perf_counter() - begin
        self._check()
        return self._entries / took

    def _check(self) -> None:
        """Every log has all of the turn; then it goes."""
        for log in self._logs:
            if log.last_entry(self._ledger) != self._entries - 1:
                raise ValueError(f"{log}: ledger {self._ledger} ends at {log.last_entry(self._ledger)}")
            self.checked += self._entries
            log.trim(log.end_position)
            settle(log._log)
        self._ledger += 1
