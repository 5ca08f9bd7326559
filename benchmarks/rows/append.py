"""Appends into recycled segments, one by one and in batches, beside what C does with the same bytes."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.areas import recycled_area
from benchmarks.entries import BATCH, SIZES, in_turn
from benchmarks.limits import bare, calls
from benchmarks.logs import RecycledLog, recycled, settle
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import Run, interleave, timed

CALL = "call + C loop"
_SINGLE = {100: 1.7, 1024: 1.4, 65536: 1.1}
_BATCH = {100: 1.3, 1024: 1.6}


def single(plan: Plan) -> Section:
    """`append(value)`, value by value."""
    section = Section("append", "Single appends, appended, recycled segments")
    for size, limit in _SINGLE.items():
        with recycled(plan, size) as ours, recycled_area(plan) as area:
            runs = _single_runs(ours, area, size)
            found = interleave(plan.shared(len(_SINGLE)), runs)
            if size == 100:
                other = Figure("empty Cython call + C loop", found["call"] + found["bare"], "s", "appended", size)
            else:
                other = Figure("glibc memcpy", found["bare"], "s", "appended", size)
            section.comparisons.append(
                Comparison(
                    f"append {SIZES[size]}",
                    Figure("append(value)", found["ours"], "s", "appended", size),
                    other,
                    Goal("at most", limit),
                    f"{ours.verified()}; bare: {_check(area, ours.values, encoded=size == 100):,}",
                )
            )
            if size == 100:
                section.notes.append(
                    f"100 B apart: empty Cython call {found['call'] * 1e9:.1f} ns, C loop {found['bare'] * 1e9:.1f} ns."
                )
    section.notes.append(
        "Python's `for` loop is part of the append and of the empty call; rolls are part of the append."
    )
    return section


def _single_runs(ours: RecycledLog, area: bare.Area, size: int) -> dict[str, Run]:
    entries = in_turn(ours.values, ours.lap(size))
    values = bare.Values(ours.values)
    count = len(entries)

    def appends() -> float:
        ours.written += count
        took = timed(lambda: _each(ours.log.append, entries), count)
        settle(ours.log)
        return took

    if size != 100:
        return {"ours": appends, "bare": lambda: timed(lambda: area.copy(values, count), count)}
    empty = calls.Empty()
    return {
        "ours": appends,
        "call": lambda: timed(lambda: _each(empty.append, entries), count),
        "bare": lambda: timed(lambda: area.encode(values, count, 1), count),
    }


def _each(call: Callable[[bytes], object], entries: list[bytes]) -> None:
    for entry in entries:
        call(entry)


def _check(area: bare.Area, values: list[bytes], *, encoded: bool) -> int:
    known = bare.Values(values)
    return area.check_encoded(known) if encoded else area.check_copied(known)


def batches(plan: Plan) -> Section:
    """`append_batch` of 256 values."""
    section = Section("batch", f"append_batch({BATCH}), per record, appended, recycled segments")
    for size, limit in _BATCH.items():
        with recycled(plan, size) as ours, recycled_area(plan) as area:
            found = interleave(plan.shared(len(_BATCH)), _batch_runs(ours, area, size))
            section.comparisons.append(
                Comparison(
                    f"append_batch {SIZES[size]}",
                    Figure("append_batch(list)", found["ours"], "s", "appended", size),
                    Figure("C loop: header + fused copy and CRC", found["bare"], "s", "appended", size),
                    Goal("at most", limit),
                    f"{ours.verified()}; bare: {_check(area, ours.values, encoded=True):,}",
                )
            )
    return section


def _batch_runs(ours: RecycledLog, area: bare.Area, size: int) -> dict[str, Run]:
    batch = in_turn(ours.values, BATCH)
    values = bare.Values(ours.values)
    turns = max(ours.lap(size) // BATCH, 1)

    def appends() -> float:
        ours.written += turns * BATCH
        took = timed(lambda: _repeat(ours.log.append_batch, batch, turns), turns * BATCH)
        settle(ours.log)
        return took

    return {
        "ours": appends,
        "bare": lambda: timed(lambda: area.encode(values, turns * BATCH, BATCH), turns * BATCH),
    }


def _repeat(call: Callable[[list[bytes]], object], batch: list[bytes], turns: int) -> None:
    for _ in range(turns):
        call(batch)
