"""Power cuts in the life of a log of many ledgers, at random places and at every step of hollowing a segment."""

from __future__ import annotations

import copy
import itertools
import shutil
from pathlib import Path

import pytest

from . import ledgers
from .ledgers import LedgerHistory, LedgerLife, Script, pass_through
from .runner import repeat_command

RUNS = 24


def test_ledgers_survive_power_cuts(ram_path: Path, seed: int) -> None:
    for number in range(RUNS):
        try:
            ledgers.run(seed + number, ram_path / "run")
        except AssertionError as error:
            raise AssertionError(f"{repeat_command('ledgers', seed + number)}\n{error}") from None


@pytest.mark.parametrize(
    ("script", "durability"),
    [(ledgers.hollow, "appended"), (ledgers.LedgerWork.hollow, "synced"), (ledgers.hollow_and_trim, "appended")],
)
def test_crash_at_every_step_of_hollowing(script: Script, durability: str, ram_path: Path, seed: int) -> None:
    history = LedgerHistory()
    (ram_path / "start").mkdir()
    ready = LedgerLife(seed=f"{seed}", durability=durability, script=ledgers.fill, share=1.0)
    pass_through(ready, ram_path / "start", ram_path / "ready", history)
    for tick in itertools.count(1):
        folder, known = ram_path / "run", copy.deepcopy(history)
        shutil.copytree(ram_path / "ready", folder / "0")
        life = LedgerLife(seed=f"{seed} {tick}", durability=durability, script=script, cut_in_script=tick)
        after = LedgerLife(seed=f"{seed} after", durability=durability, script=ledgers.LedgerWork.append, closes=True)
        try:
            cut = pass_through(life, folder / "0", folder / "1", known)
            for number in (1, 2)[: 1 + (tick % 6 == seed % 6)]:
                pass_through(after, folder / str(number), folder / str(number + 1), known)
        except AssertionError as error:
            raise AssertionError(f"cut at tick {tick}: {error}") from None
        shutil.rmtree(folder)
        if not cut:
            break
    assert tick > 12


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_every_sync_of_hollowing_fails_once(durability: str, ram_path: Path, seed: int) -> None:
    for number in range(1, 8):
        history, folder = LedgerHistory(), ram_path / str(number)
        (folder / "0").mkdir(parents=True)
        lives = (
            LedgerLife(seed=f"{seed}", durability=durability, script=ledgers.fill, share=1.0),
            LedgerLife(seed=f"{seed}", durability=durability, script=ledgers.hollow, failing_sync=number, share=0.0),
            LedgerLife(seed=f"{seed}", durability=durability, closes=True),
        )
        for i, life in enumerate(lives):
            pass_through(life, folder / str(i), folder / str(i + 1), history)
