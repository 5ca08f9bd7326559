"""Random reads of single entries."""

from __future__ import annotations

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyreplog
from benchmarks.entries import SIZES, make_values
from benchmarks.logs import fill
from benchmarks.plan import Plan

_PICKS = 2048
_ROUNDS = 20


@pytest.mark.parametrize("size", [100, 1024], ids=SIZES.get)
@pytest.mark.parametrize("way", ["item", "value", "view"])
def test_read(benchmark: BenchmarkFixture, plan: Plan, size: int, way: str) -> None:
    benchmark.group = f"{_PICKS} random reads, {SIZES[size]}"
    values, count = make_values(size), plan.scaled(100_000)
    with pyreplog.open(plan.directory / "log", segment_bytes=plan.segment_bytes) as log:
        fill(log, values, count)
        picks = random.Random(size).choices(range(count), k=_PICKS)
        read = {
            "item": lambda: [log[n] for n in picks],
            "value": lambda: [log.get(n).value for n in picks],
            "view": lambda: [log.get(n).value_view for n in picks],
        }[way]
        found = benchmark.pedantic(read, rounds=_ROUNDS, warmup_rounds=1)
        assert found == [values[n % len(values)] for n in picks]
