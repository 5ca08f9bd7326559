"""Random reads of single entries beside LMDB's."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import lmdb

import pyreplog
from benchmarks.entries import BATCH, SIZES, make_values, verify
from benchmarks.logs import fill
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import Run, interleave, timed
from pyreplog import CommitLog

_COUNTS = {100: 400_000, 1024: 100_000}
_LIMITS = {100: 2.5, 1024: 1.7}
_PICKS = 20_000


def read(plan: Plan) -> Section:
    """`log[n]` and `read(n).value`, warm, on both sides by entry number."""
    section = Section("read", "Random reads, warm")
    for size, most in _COUNTS.items():
        values, count = make_values(size), plan.scaled(most)
        with (
            plan.folder() as folder,
            pyreplog.open(folder / "log", segment_bytes=plan.segment_bytes) as log,
            lmdb.open(str(folder / "lmdb"), map_size=4 << 30, sync=False) as store,
        ):
            fill(log, values, count)
            _fill_lmdb(store, values, count)
            checked = verify(log, values, count)
            found = interleave(plan.shared(2), _runs(log, store, values, count, plan))
        for name, label in (("item", "log[n]"), ("record", "log.get(n).value")):
            section.comparisons.append(
                Comparison(
                    f"random read {SIZES[size]}, {label}",
                    Figure(label, found[name], "/s", "reading", size),
                    Figure("LMDB get", found["lmdb"], "/s", "reading", size),
                    Goal("at least", _LIMITS[size]),
                    f"{checked}; LMDB: every value read",
                )
            )
    return section


def _fill_lmdb(store: lmdb.Environment, values: list[bytes], count: int) -> None:
    for start in range(0, count, BATCH):
        with store.begin(write=True) as transaction:
            for n in range(start, start + BATCH):
                transaction.put(n.to_bytes(8, "big"), values[n % len(values)], append=True)


def _runs(log: CommitLog, store: lmdb.Environment, values: list[bytes], count: int, plan: Plan) -> dict[str, Run]:
    picks = random.Random(count).choices(range(count), k=plan.scaled(_PICKS))

    def items() -> None:
        read = log.__getitem__
        for n in picks:
            read(n)

    def records() -> None:
        get = log.get
        for n in picks:
            _ = get(n).value

    def gets() -> None:
        with store.begin() as transaction:
            get = transaction.get
            for n in picks:
                get(n.to_bytes(8, "big"))

    def rate(way: Callable[[], None]) -> float:
        way()  # what went before may have left the caches to another side
        return 1 / timed(way, len(picks))

    with store.begin() as transaction:
        if any(transaction.get(n.to_bytes(8, "big")) != values[n % len(values)] for n in picks):
            raise ValueError("LMDB: an entry is not what was written")
    return {"item": partial(rate, items), "record": partial(rate, records), "lmdb": partial(rate, gets)}
