"""Memory of a process that reads a task: what an executor's worker does."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.spark.rows import write_log

_SEGMENTS = 2


def memory(plan: Plan) -> Section:
    """Private memory at its highest, keys and values of a whole log in one task."""
    section = Section("spark-memory", "Private memory of a task, by the size of segments")
    small, large = plan.segment_bytes // 4, plan.segment_bytes * 4
    with plan.folder() as folder:
        counts = [
            write_log(folder / f"{size}", 1024, plan, _SEGMENTS * large // plan.segment_bytes, segment_bytes=size)
            for size in (small, large)
        ]
        found = [_peak(folder / f"{size}", count) for size, count in zip((small, large), counts, strict=True)]
    section.comparisons.append(
        Comparison(
            "keys and values, 1 KiB",
            Figure(f"segments of {large >> 20} MiB", found[1], "B", "reading"),
            Figure(f"segments of {small >> 10} KiB", found[0], "B", "reading"),
            Goal("at most", 1.1),
            f"{counts[1]:,} rows, by each",
        )
    )
    return section


def _peak(log: Path, count: int) -> int:
    with job("read_task", str(log)) as reading:
        rows, peak = reading.answer()
        reading.wait()
    if rows != count:
        raise ValueError(f"{log}: {rows} of {count} rows were read")
    return int(peak)
