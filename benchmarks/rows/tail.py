"""How long the slowest appends take: rolls, faults, retention and writeback must not be in the caller's way."""

from __future__ import annotations

import shutil
import time

import pyreplog
from benchmarks.entries import SIZES, in_turn, make_values, stride, verify
from benchmarks.limits import calls
from benchmarks.logs import SPARES
from benchmarks.plan import FULL_BYTES, Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import collector_off

_FRESH_BYTES = 2 << 30
"""Fresh segments are filled no further than this without `full`: they stay on the disk and in the page cache."""

_RETAINED = 2
_WARM_SEGMENTS = 4 * (SPARES + _RETAINED)
_LAP = 1 << 12
_LIMIT = 200


def tail(plan: Plan) -> Section:
    """Single appends through many rolls; recycled, and fresh beside it."""
    section = Section("tail", "Tail latency of single appends, appended, through rolls with retention running")
    for size in (100, 1024):
        for recycle in (True, False):
            section.comparisons.append(_case(plan.shared(4), size, recycle=recycle))
    section.notes.append(
        "Other side: the median of the same calls. A call's time ends when its caller goes on, so handing over the GIL "
        "and losing the core count."
    )
    if not plan.full:
        section.notes.append(f"Budgeted; `--full` writes {FULL_BYTES >> 30} GiB per line.")
    return section


def _case(plan: Plan, size: int, *, recycle: bool) -> Comparison:
    values = make_values(size)
    most = FULL_BYTES if plan.full else (1 << 62) if recycle else _FRESH_BYTES
    with plan.folder() as folder:
        if plan.full and not recycle and shutil.disk_usage(folder).free < 2 * FULL_BYTES:
            raise OSError(f"{folder}: {FULL_BYTES >> 30} GiB of fresh segments need twice that much free space")
        with pyreplog.open(
            folder / "log", segment_bytes=plan.segment_bytes, spare_segments=SPARES,
            retention_bytes=_RETAINED * plan.segment_bytes if recycle else None,
        ) as log, collector_off():  # fmt: skip
            entries = in_turn(values, _LAP)
            warm = _WARM_SEGMENTS * plan.segment_bytes // stride(size) // _LAP * _LAP if recycle else 0
            for _ in range(warm // _LAP):
                log.append_batch(entries)
            watch = calls.Stopwatch(log.append)
            _write(watch, entries, most // stride(size), float("inf") if plan.full else plan.budget)
            checked = verify(log, values, warm + watch.count)
            log.trim(log.end)  # what is dropped need not be synced by close
    written = watch.count * stride(size) / 2**30
    return Comparison(
        f"append {SIZES[size]}, {'recycled' if recycle else 'fresh'}, {written:.1f} GiB",
        Figure("p99.99", watch.quantile(0.9999) * 1e-9, "s", "appended"),
        Figure("median", watch.quantile(0.5) * 1e-9, "s", "appended"),
        Goal("at most", _LIMIT) if recycle else None,
        checked,
    )


def _write(watch: calls.Stopwatch, entries: list[bytes], most: int, seconds: float) -> None:
    """Append until `most` entries are written or the time is over."""
    append, begin = watch.time, time.monotonic()
    for _ in range(-(-most // len(entries))):
        for entry in entries:
            append(entry)
        if time.monotonic() - begin > seconds:
            break
    watch.pause()
