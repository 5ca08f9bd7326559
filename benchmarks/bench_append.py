"""Appends into recycled segments, and the same records encoded by C alone."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.areas import recycled_area
from benchmarks.entries import BATCH, SIZES, in_turn, make_values
from benchmarks.limits import bare
from benchmarks.logs import recycled, settle
from benchmarks.plan import Plan

_BYTES = 16 << 20
_ROUNDS = 20

sizes = pytest.mark.parametrize("size", [100, 1024, 65536], ids=SIZES.get)


def _count(size: int) -> int:
    """Entries of one round, in whole batches."""
    return min(_BYTES // size // BATCH, 16) * BATCH


@sizes
def test_append(benchmark: BenchmarkFixture, plan: Plan, size: int) -> None:
    benchmark.group = f"{_count(size)} appends of {SIZES[size]}, appended"
    with recycled(plan, size) as ours:
        entries = in_turn(ours.values, _count(size))

        def append() -> None:
            call = ours.log.append
            for entry in entries:
                call(entry)
            ours.written += _count(size)

        benchmark.pedantic(append, setup=lambda: settle(ours.log), rounds=_ROUNDS, warmup_rounds=1)
        ours.verified()


@sizes
def test_append_batch(benchmark: BenchmarkFixture, plan: Plan, size: int) -> None:
    benchmark.group = f"{_count(size)} appends of {SIZES[size]}, appended"
    with recycled(plan, size) as ours:
        entries = in_turn(ours.values, BATCH)

        def append() -> None:
            for _ in range(_count(size) // BATCH):
                ours.log.append_batch(entries)
            ours.written += _count(size)

        benchmark.pedantic(append, setup=lambda: settle(ours.log), rounds=_ROUNDS, warmup_rounds=1)
        ours.verified()


@sizes
def test_c_loop(benchmark: BenchmarkFixture, plan: Plan, size: int) -> None:
    benchmark.group = f"{_count(size)} appends of {SIZES[size]}, appended"
    values = bare.Values(make_values(size))
    with recycled_area(plan) as area:
        benchmark.pedantic(lambda: area.encode(values, _count(size), 1), rounds=_ROUNDS, warmup_rounds=1)
        assert area.check_encoded(values) > 0
