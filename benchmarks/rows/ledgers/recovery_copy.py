"""What a worker of auto-recovery copies in a second, beside reading the same bytes and adding them to one bookie."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.ledgers import WINDOW_BYTES, Bookies, bookies, verify_ledger
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from pyreplog.autorecovery.leased_keys import LocalKeys
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.protocol.copy_check import CopyCheck, CopyReport
from pyreplog.autorecovery.worker import ReplicationWorker, Workload
from pyreplog.clock import SystemClock
from pyreplog.ledger.driver import Driver

_SIZES = (100, 1024)
_ENTRIES = 240 << 10
"""Of the largest ledger, 100 B; a multiple of 5 * BATCH."""
_STRIPES = {"E=3 Qw=3": (3, 3, 2), "E=5 Qw=3": (5, 3, 2)}


class Copied:
    """Ledgers of one size and shape. entries: of a ledger."""

    def __init__(self, side: Bookies, size: int, quorums: tuple[int, int, int], entries: int) -> None:
        self._side, self._values, self._quorums, self._entries = side, make_values(size), quorums, entries
        self._size = size
        ensemble, copies, _ = quorums
        self._share = entries * copies // ensemble  # what one member of a ledger holds of it
        self.read_back = 0

    def _fill(self, quorums: tuple[int, int, int], entries: int) -> int:
        ensemble, copies, acks = quorums
        batch = self._values * (BATCH // len(self._values))
        with self._side.cluster.create_ledger(ensemble, copies, acks, window_bytes=WINDOW_BYTES) as ledger:
            for _ in range(entries // BATCH):
                ledger.submit_batch(batch)
        return ledger.id

    def _forget(self, ledger: int, entries: int) -> None:
        """Verify a ledger, delete it, and wait until its space has come back."""
        self.read_back += verify_ledger(self._side.cluster, ledger, self._values, entries)
        self._side.cluster.delete_ledger(ledger)
        self._side.collect()

    def copy(self) -> float:
        """Bytes of values per second, that a worker gives to another bookie in the place of a lost one."""
        cluster, ledger = self._side.cluster, self._fill(self._quorums, self._entries)
        lost = frozenset({cluster.ledger_metadata(ledger).last_fragment.ensemble[0]})
        scan = LedgerScan(cluster.metadata)
        worker = ReplicationWorker(cluster.runtime, LocalKeys("benchmark"), scan, SystemClock())
        worker.run(Workload(frozenset(), frozenset(), frozenset()), 1)  # it has read all metadata before
        begin = time.perf_counter()
        worker.run(Workload(lost, lost, frozenset()), 1)
        took = time.perf_counter() - begin
        if (counters := worker.counters).entries != self._share or counters.failures:
            raise ValueError(f"ledger {ledger}: {counters} where {self._share} entries were to be copied")
        self._check_copies(ledger, lost)
        self._forget(ledger, self._entries)
        return self._share * self._size / took

    def _check_copies(self, ledger: int, lost: frozenset[str]) -> None:
        """Compare what all members hold, the new one, too."""
        cluster = self._side.cluster
        metadata = cluster.ledger_metadata(ledger)
        check = CopyCheck(metadata)
        driver = Driver(ledger, check, cluster.runtime)
        driver.post(check.start)
        report: CopyReport = cluster.runtime.wait(driver.done)
        if not report.is_complete or lost & metadata.bookies():
            raise ValueError(f"ledger {ledger} has not all its copies: {report}")

    def read_and_add(self) -> float:
        """Bytes of values per second, from a ledger of the same shape to one of one copy, synced as well."""
        cluster, source = self._side.cluster, self._fill(self._quorums, self._share)
        begin = time.perf_counter()
        with (
            cluster.open_ledger(source) as reader,
            cluster.create_ledger(1, 1, 1, window_bytes=WINDOW_BYTES) as target,
        ):
            for batch in reader.read():
                target.submit_batch(batch.values())
        took = time.perf_counter() - begin
        for ledger in (source, target.id):
            self._forget(ledger, self._share)
        return self._share * self._size / took


def recovery_copy(plan: Plan) -> Section:
    """One worker, no limit, one ledger."""
    section = Section("recovery-copy", "Copies of a lost bookie made again, one worker without a limit, synced")
    part = plan.shared(len(_STRIPES) * len(_SIZES))
    for title, quorums in _STRIPES.items():
        with bookies(part, "synced", count=quorums[0] + 1) as side:
            for size in _SIZES:
                unit = quorums[0] * BATCH
                entries = max(plan.scaled(_ENTRIES if size == 100 else _ENTRIES // 4) // unit, 1) * unit
                copied = Copied(side, size, quorums, entries)
                found = interleave(part, {"copy": partial(copied.copy), "plain": partial(copied.read_and_add)})
                section.comparisons.append(
                    Comparison(
                        f"one member's share of a ledger, {SIZES[size]}, {title}",
                        Figure("worker", found["copy"], "B/s", "synced"),
                        Figure("read() and submit_batch()", found["plain"], "B/s", "synced"),
                        Goal("at least", 0.5),
                        f"{copied.read_back:,} entries, and all copies of each ledger compared",
                    )
                )
    section.notes.append(
        "The worker's time has all that a ledger costs: reading its metadata, the copies, the proof that they are on "
        "disk, and the change of the metadata."
    )
    return section
