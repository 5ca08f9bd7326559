"""The seed of what is drawn at random: fresh in every run, printed, repeated with PYREPLOG_SEED."""

from __future__ import annotations

import os
import secrets

import pytest

SEED = int(os.environ.get("PYREPLOG_SEED", secrets.randbelow(1 << 32)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"drawn at random with PYREPLOG_SEED={SEED}; set it to repeat this run")


@pytest.fixture(scope="session")
def seed() -> int:
    """Of everything a test draws at random."""
    return SEED
