"""Synced appends, alone and in groups, and a bare write with sync."""

from __future__ import annotations

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyreplog
from benchmarks.entries import in_turn, make_values, stride, verify
from benchmarks.logs import settle
from benchmarks.plan import Plan
from benchmarks.rows.synced import zeroed_file

_SIZE = 100
_ROUNDS = 200


@pytest.mark.parametrize("group", [1, 16, 256])
def test_append(benchmark: BenchmarkFixture, plan: Plan, group: int) -> None:
    benchmark.group = f"{group} synced, {_SIZE} B"
    value = make_values(_SIZE)[0]
    with pyreplog.open(plan.directory / "log", durability="synced", segment_bytes=plan.segment_bytes) as log:
        settle(log)
        if group == 1:
            benchmark.pedantic(log.append, (value,), rounds=_ROUNDS, warmup_rounds=5)
        else:
            benchmark.pedantic(log.append_batch, (in_turn([value], group),), rounds=_ROUNDS, warmup_rounds=5)
        assert log.synced_end == log.end > 0
        verify(log, [value], log.end)


@pytest.mark.parametrize("group", [1, 16, 256])
def test_bare_write(benchmark: BenchmarkFixture, plan: Plan, group: int) -> None:
    benchmark.group = f"{group} synced, {_SIZE} B"
    data = random.Random(group).randbytes(stride(_SIZE) * group)
    with zeroed_file(plan) as zeroed:
        benchmark.pedantic(zeroed.write, (data, 1), rounds=_ROUNDS, warmup_rounds=5)
