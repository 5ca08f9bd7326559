"""Scans, and the bare CRC pass over the same mapped segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyreplog
from benchmarks.areas import mapped
from benchmarks.entries import BATCH, SIZES, make_values, stride, verify
from benchmarks.logs import fill
from benchmarks.plan import Plan
from benchmarks.rows.scan import Scans

_ROUNDS = 10


@contextmanager
def scans(plan: Plan, size: int) -> Iterator[Scans]:
    """The ways through a segment full of entries."""
    values, count = make_values(size), max(plan.segment_bytes // stride(size) // BATCH, 1) * BATCH
    path = plan.directory / "log"
    with pyreplog.open(path, segment_bytes=plan.segment_bytes) as log:
        fill(log, values, count)
        verify(log, values, count)
        with mapped(path, log.start_position, log.end_position) as bare_log:
            yield Scans(log, bare_log, count)
        log.trim(log.end)


@pytest.mark.parametrize("way", ["columns", "bare", "records", "built"])
@pytest.mark.parametrize("size", [100, 1024, 65536], ids=SIZES.get)
def test_scan(benchmark: BenchmarkFixture, plan: Plan, size: int, way: str) -> None:
    benchmark.group = f"scan of a segment, {SIZES[size]}"
    with scans(plan, size) as ways:
        benchmark.pedantic(getattr(ways, way), rounds=_ROUNDS, warmup_rounds=1)
