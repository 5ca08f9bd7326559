"""The slowest of many calls with the log taken out of them: what interrupts a thread that only copies."""

from __future__ import annotations

import time

from benchmarks.areas import recycled_area
from benchmarks.entries import SIZES, in_turn, make_values, stride
from benchmarks.limits import bare, calls
from benchmarks.logs import recycled
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section, Table
from benchmarks.sampling import collector_off

_SIZE = 1024
_EDGES_US = (1, 8, 32, 128, 1000)


def interruptions(plan: Plan) -> Section:
    """Calls of one thread, timed one by one: copies into a mapped file, and appends to a log under retention."""
    section = Section("bound-interruptions", f"What bounds p99.99 of single appends of {SIZES[_SIZE]}: interruptions")
    table = Table("Calls per second that took longer than", ["", *(f"{edge} us" for edge in _EDGES_US)], [])
    values = make_values(_SIZE)
    native = bare.Values(values)
    with recycled_area(plan) as area, recycled(plan, _SIZE) as ours:
        copying, appending = calls.Stopwatch(area.copy_one), calls.Stopwatch(ours.log.append)
        seconds = [0.0, 0.0]
        for _ in range(4):
            for i, watch in enumerate((copying, appending)):
                seconds[i] += _run(watch, values, plan.budget / 8)
        ours.written += appending.count
        checked = f"{area.check_copied(native):,} copies; {ours.verified()}"
    for name, watch, passed in zip(("copy", "append"), (copying, appending), seconds, strict=True):
        table.rows.append([name, *(f"{watch.longer_than(edge * 1000) / passed:,.0f}" for edge in _EDGES_US)])
        section.comparisons.append(
            Comparison(
                f"{name}, {watch.count * stride(_SIZE) / 2**30:.1f} GiB",
                Figure("p99.99", watch.quantile(0.9999) * 1e-9, "s", "appended"),
                Figure("median", watch.quantile(0.5) * 1e-9, "s", "appended"),
                None,
                checked,
            )
        )
    section.tables.append(table)
    section.notes.append(
        "One call in 10,000 is about one in a millisecond: a thousand interruptions a second decide about p99.99. On "
        "both sides the kernel's timer ticks and whatever else runs on these cores are among them."
    )
    return section


def _run(watch: calls.Stopwatch, values: list[bytes], seconds: float) -> float:
    """Call for so long; returns how long it was."""
    entries, call, begin = in_turn(values, 1 << 12), watch.time, time.monotonic()
    with collector_off():
        while (passed := time.monotonic() - begin) < seconds:
            for entry in entries:
                call(entry)
    watch.pause()
    return passed
