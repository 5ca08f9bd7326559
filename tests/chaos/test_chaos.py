"""The chaos programs for a few seconds each: they write, disturb, and read back. `python -m tests.chaos` runs them for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import transactions
from tests.chaos.__main__ import SERVICES


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "transactions"])  # below
def test_nothing_that_was_acknowledged_is_lost(service: str, tmp_path: Path, seed: int) -> None:
    outcome = SERVICES[service](tmp_path, 6.0, seed)
    assert outcome.acknowledged and not outcome.lost and not outcome.missing


def test_transactions_survive_the_loss_of_each_broker(tmp_path: Path, seed: int) -> None:
    outcome = transactions.run(tmp_path, None, seed)
    assert outcome.acknowledged and not outcome.lost and not outcome.missing
