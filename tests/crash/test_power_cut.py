"""Power cuts at random places of random work. `python -m tests.crash` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thorough import one_in

from . import lives
from .runner import repeat_command

RUNS = 32 // one_in(2)


@pytest.mark.parametrize("part", range(4))
def test_log_survives_power_cuts(part: int, ram_path: Path, seed: int) -> None:
    for number in range(part, RUNS, 4):
        try:
            lives.run(seed + number, ram_path / "run")
        except AssertionError as error:
            raise AssertionError(f"{repeat_command('power-cut', seed + number)}\n{error}") from None
