"""Auto-recovery under kill -9, for a few seconds. `python -m tests.chaos.autorecovery` does it for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.autorecovery.__main__ import STORES, run


@pytest.mark.parametrize("store", STORES)
def test_acknowledged_entries_are_on_every_bookie_of_their_write_set(store: str, tmp_path: Path, seed: int) -> None:
    kills = run(tmp_path, store, seed, rounds=1, closed=3, disturbances=2)
    assert kills.checker.acked
