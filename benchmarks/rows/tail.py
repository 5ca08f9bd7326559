"""How long the slowest appends take: rolls, faults, retention and writeback must not be in the caller's way."""

from __future__ import annotations

import shutil
import time

import pyreplog
from benchmarks.entries import SIZES, in_turn, make_values, stride, verify
from benchmarks.limits import calls
from benchmarks.logs import recycled
from benchmarks.plan import FULL_BYTES, Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import collector_off

_FRESH_BYTES = 2 << 30
"""Fresh segments are filled no further than this without `full`: they stay on the disk and in the page cache."""

_LAP = 1 << 12
_LIMIT = 200


def tail(plan: Plan) -> Section:
    """Single appends through many rolls; recycled, and fresh beside it."""
    section = Section("tail", "Tail latency of single appends, appended, through rolls with retention running")
    for size in (100, 1024):
        section.comparisons += [_recycled(plan.shared(4), size), _fresh(plan.shared(4), size)]
    section.notes.append(
        "Other side: the median of the same calls. A call's time ends when its caller goes on, so handing over the GIL "
        "and losing the core count."
    )
    if not plan.full:
        section.notes.append(f"Budgeted; `--full` writes {FULL_BYTES >> 30} GiB per line.")
    return section


def _recycled(plan: Plan, size: int) -> Comparison:
    with recycled(plan, size) as ours:
        watch = calls.Stopwatch(ours.log.append)
        _write(plan, watch, ours.values, FULL_BYTES if plan.full else 1 << 62)
        ours.written += watch.count
        return _comparison(watch, size, "recycled", Goal("at most", _LIMIT), ours.verified())


def _fresh(plan: Plan, size: int) -> Comparison:
    values, most = make_values(size), FULL_BYTES if plan.full else _FRESH_BYTES
    with plan.folder() as folder:
        if plan.full and shutil.disk_usage(folder).free < 2 * most:
            raise OSError(f"{folder}: {most >> 30} GiB of fresh segments need twice that much free space")
        with pyreplog.open(folder / "log", segment_bytes=plan.segment_bytes) as log:
            watch = calls.Stopwatch(log.append)
            _write(plan, watch, values, most)
            checked = verify(log, values, watch.count)
            log.trim(log.end)  # what is dropped need not be synced by close
    return _comparison(watch, size, "fresh", None, checked)


def _write(plan: Plan, watch: calls.Stopwatch, values: list[bytes], most: int) -> None:
    """Append until so many bytes are written, or (not with `full`) the budget is spent."""
    append, begin, written = watch.time, time.monotonic(), 0
    entries = in_turn(values, _LAP)
    lap_bytes = _LAP * stride(len(values[0]))
    with collector_off():
        while written < most and (plan.full or time.monotonic() - begin < plan.budget):
            for entry in entries:
                append(entry)
            written += lap_bytes
    watch.pause()


def _comparison(watch: calls.Stopwatch, size: int, kind: str, goal: Goal | None, checked: str) -> Comparison:
    return Comparison(
        f"append {SIZES[size]}, {kind}, {watch.count * stride(size) / 2**30:.1f} GiB",
        Figure("p99.99", watch.quantile(0.9999) * 1e-9, "s", "appended"),
        Figure("median", watch.quantile(0.5) * 1e-9, "s", "appended"),
        goal,
        checked,
    )
