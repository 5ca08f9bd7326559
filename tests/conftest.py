"""The seed of what is drawn at random: fresh in every run, printed, repeated with PYREPLOG_SEED."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator

import pytest

SEED = int(os.environ.get("PYREPLOG_SEED", secrets.randbelow(1 << 32)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"drawn at random with PYREPLOG_SEED={SEED}; set it to repeat this run")


@pytest.fixture(scope="session")
def seed() -> int:
    """Of everything a test draws at random."""
    return SEED


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: Ctrl-C in a callback of the collector, such as hypothesis has, is nobody's to catch."""
    gc.disable()
    yield
    gc.enable()
