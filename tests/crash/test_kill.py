"""kill -9 in the middle of appends. `python -m tests.crash` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thorough import one_in

from . import kill
from .runner import repeat_command


@pytest.mark.parametrize("part", range(3))
def test_appended_records_survive_kill_9(part: int, tmp_path: Path, seed: int) -> None:
    try:
        kill.run(seed + part, tmp_path / "log", rounds=20 // one_in(2))
    except AssertionError as error:
        raise AssertionError(f"{repeat_command('kill', seed + part)}\n{error}") from None
