"""Fixtures of the pytest-benchmark suites. With --benchmark-disable all is tiny: only whether it works is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plan import Plan


@pytest.fixture
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    """What to measure with, below pytest's temporary directory (choose the file system with --basetemp)."""
    if request.config.getoption("benchmark_disable"):
        return Plan.tiny(tmp_path)
    return Plan(directory=tmp_path)
