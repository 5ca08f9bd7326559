"""The embedded cluster with the ledger and its bookies taken out of it: one encoding, and three logs that take it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import SPARES, turn_entries
from benchmarks.logs import recycled, settle
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave
from pyreplog._native.ledger_log.entries import Entries, encode_entries
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig

_SIZE = 1024
_COPIES = 3


def copies(plan: Plan) -> Section:
    """`LedgerLog.stage` of each batch into three logs, one behind the other."""
    section = Section("bound-copies", f"What bounds the embedded cluster: {_COPIES} verified copies of a batch")
    with plan.folder() as folder, ExitStack() as stack, recycled(plan, _SIZE) as log:
        values = log.values * (BATCH // len(log.values))

        def encoded(ledger: int, first: int) -> Entries:
            return encode_entries(values, ledger=ledger, first=first, lac=first - 1, time=1)

        logs = Copies(plan, folder, stack, encoded, turn_entries(plan, _SIZE, BATCH))

        found = interleave(plan, {"copies": logs.turn, "log": log.batches})
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
    """Logs of many ledgers, which give their space back after each turn of `entries`.

    encode: of a ledger, the next entries from one on.
    """

    def __init__(
        self, plan: Plan, folder: Path, stack: ExitStack, encode: Callable[[int, int], Entries], entries: int
    ) -> None:
        config = LogConfig(durability="appended", segment_bytes=plan.segment_bytes, spare_segments=SPARES)
        self.checked, self._ledger, self._encode, self._entries = 0, 0, encode, entries
        self._logs = [stack.enter_context(LedgerLog(folder / f"log-{n}", config)) for n in range(_COPIES)]

    def turn(self) -> float:
        """Entries per second."""
        begin, first = time.perf_counter(), 0
        while first < self._entries:
            made = self._encode(self._ledger, first)
            for log in self._logs:
                log.stage(made.view)
            first += len(made)
        took = time.perf_counter() - begin
        self._check(first)
        return first / took

    def _check(self, entries: int) -> None:
        """Every log has all of the turn; then it goes."""
        for log in self._logs:
            if log.last_entry(self._ledger) != entries - 1:
                raise ValueError(f"{log}: ledger {self._ledger} ends at {log.last_entry(self._ledger)}")
            self.checked += entries
            log.trim(log.end_position)
            settle(log._log)
        self._ledger += 1
