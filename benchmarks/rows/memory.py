"""Private memory of a process whose log grows."""

from __future__ import annotations

from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section, Table

_SEGMENTS = 32
_SLACK = 1 << 20
"""What the allocator and the interpreter may come to hold meanwhile, whatever the log's size."""


def memory(plan: Plan) -> Section:
    """Anonymous memory before and after the log doubles, beside the bytes of index that may grow."""
    section = Section("memory", "Private memory while the log doubles")
    table = Table(
        "State", ["value", "entries", "in memory", "mapped .idx", "per million entries", "private, first half"], []
    )
    segments = _SEGMENTS if plan.budget >= 5 else 4
    for size in (100, 1024):
        with plan.folder() as folder, job("grow", str(folder / "log"), size, segments, plan.segment_bytes) as grown:
            found = grown.answer()
            grown.wait()
        first, before, after, mapped = found["first"], found["before"], found["after"], found["mapped"]
        entries = after["entries"]
        allowed = max(after["state"] - before["state"], 0) + _SLACK
        section.comparisons.append(
            Comparison(
                f"growth over {entries - before['entries']:,} entries of {size} B",
                Figure("anonymous memory", max(after["private"] - before["private"], 0), "B", "appended"),
                Figure("in-memory index + 1 MiB", allowed, "B", "appended"),
                Goal("at most", 1.0),
                f"{entries:,} entries counted",
            )
        )
        state = after["state"] + mapped
        table.rows.append(
            [
                f"{size} B", f"{entries:,}", f"{after['state']:,} B", f"{mapped:,} B",
                f"{state * 1e6 / entries:,.0f} B", f"{before['private'] - first['private']:+,} B",
            ]
        )  # fmt: skip
    section.tables.append(table)
    section.notes.append(
        "In the first half the process comes to hold what it needs whatever the log's size: the indexes of segments "
        "sealed in the last two seconds, which wait for their sync."
    )
    return section
