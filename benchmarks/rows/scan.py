"""Scans to columns beside a bare CRC pass, and iteration over records beside making the bytes objects alone."""

from __future__ import annotations

import pyreplog
from benchmarks.areas import MappedLog, mapped
from benchmarks.entries import BATCH, SIZES, make_values, stride, verify
from benchmarks.logs import fill
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave, timed
from pyreplog import CommitLog

_SEGMENTS = 4
_SCAN_LIMIT, _RECORDS_LIMIT = 0.8, 3.0


class Scans:
    """Four ways through the same records; each returns seconds per entry."""

    def __init__(self, log: CommitLog, bare_log: MappedLog, count: int) -> None:
        self._log, self._bare, self._count = log, bare_log, count

    def columns(self) -> float:
        return timed(lambda: self._all(self._to_columns()), self._count)

    def records(self) -> float:
        return timed(lambda: self._all(self._to_records()), self._count)

    def bare(self) -> float:
        return timed(lambda: self._all(self._bare.scan()), self._count)

    def built(self) -> float:
        return timed(lambda: self._all(self._bare.build()), self._count)

    def _to_columns(self) -> int:
        found = 0
        for batch in self._log.read():
            columns = batch.entry, batch.size
            found += len(columns[0])
        return found

    def _to_records(self) -> int:
        found = 0
        for batch in self._log.read():
            for record in batch:
                value = record.value
            found += len(batch)
        return found if value else 0

    def _all(self, found: int) -> None:
        if found != self._count:
            raise ValueError(f"{found} of {self._count} entries were read")


def scan(plan: Plan) -> Section:
    """`scan`, warm."""
    section = Section("scan", "Scans with CRC, warm")
    for size in (100, 1024, 65536):
        values = make_values(size)
        count = max(_SEGMENTS * plan.segment_bytes // stride(size) // BATCH, 1) * BATCH
        with (
            plan.folder() as folder,
            pyreplog.open(folder / "log", segment_bytes=plan.segment_bytes) as log,
        ):
            fill(log, values, count)
            checked = verify(log, values, count)
            with mapped(folder / "log", log.start_position, log.end_position) as bare_log:
                scans = Scans(log, bare_log, count)
                ways = {"columns": scans.columns, "bare": scans.bare, "records": scans.records, "built": scans.built}
                found = interleave(plan.shared(3), ways)
            log.trim(log.end)
        section.comparisons += _comparisons(size, found, checked)
    return section


def _comparisons(size: int, found: dict[str, float], checked: str) -> list[Comparison]:
    return [
        Comparison(
            f"scan to columns {SIZES[size]}",
            Figure("scan(): entry, size", 1 / found["columns"], "/s", "reading", size),
            Figure("mapping + CRC in C", 1 / found["bare"], "/s", "reading", size),
            Goal("at least", _SCAN_LIMIT),
            checked,
        ),
        Comparison(
            f"iterate records {SIZES[size]}",
            Figure("for record in batch: record.value", found["records"], "s", "reading", size),
            Figure("building the bytes objects alone", found["built"], "s", "reading", size),
            Goal("at most", _RECORDS_LIMIT),
            checked,
        ),
    ]
