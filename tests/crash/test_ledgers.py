"""Power cuts in the life of a log of many ledgers, at random places and at every step of hollowing a segment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyreplog.log.fsck.check import check
from tests.thorough import one_in

from . import ledgers
from .disk import ORDERS
from .history import replay
from .ledgers import LedgerHistory, LedgerLife, Script
from .life import events_of, pass_moments, pass_through
from .moments import Moment, Moments, verify_each
from .process import in_process, piece
from .runner import repeat_command

RUNS = 24 // one_in(2)
RUNS_OF_SCRIPT = 6
"""All different in what the seed draws; the power is cut at every tick of one of them."""
STALE = "the bytes that follow from the segment"
"""How fsck begins what it expected of an index file that is intact and of other records. One that was never synced may be
torn, and is made again when it is needed; one that names records of a hollow segment must not be left."""


def test_ledgers_survive_power_cuts(ram_path: Path, seed: int) -> None:
    for number in range(RUNS):
        try:
            ledgers.run(seed + number, ram_path / "run")
        except AssertionError as error:
            raise AssertionError(f"{repeat_command('ledgers', seed + number)}\n{error}") from None


@pytest.mark.parametrize(
    ("script", "durability"),
    [
        (ledgers.punch_hole, "appended"),
        (ledgers.LedgerWork.punch_hole, "synced"),
        (ledgers.punch_hole_and_trim, "appended"),
    ],
)
def test_crash_at_every_step_of_hollowing(script: Script, durability: str, ram_path: Path, seed: int) -> None:
    history = _fill(ram_path, durability, seed)
    after = LedgerLife(seed=f"{seed} after", durability=durability, script=ledgers.LedgerWork.append, closes=True)
    folder, cuts = ram_path / "run", 0

    def verify(moment: Moment) -> None:
        known, lives = history.copy(), folder / "lives"
        replay(known, events_of(folder / "1"), moment.known)
        lives.mkdir()
        homes = [moment.left, lives / "1", lives / "2"]
        for number in (0, 1)[: 1 + again]:
            after.live_beside(homes[number], homes[number + 1], known)
            stale = [damage for damage in check(homes[number] / "log").damages if damage.expected.startswith(STALE)]
            assert not stale, stale
        shutil.rmtree(lives)
        shutil.rmtree(moment.left)

    share = one_in(3)
    for number in range(seed % share, RUNS_OF_SCRIPT, share):
        again = number == seed % share
        shutil.copytree(ram_path / "ready", folder / "0")
        moments = Moments(folder / "left", f"{seed}", first=1 + number, stride=RUNS_OF_SCRIPT)
        life = LedgerLife(
            seed=f"{seed} {number}",
            durability=durability,
            script=script,
            moments=moments,
            order=ORDERS[number % len(ORDERS)],
        )
        left = pass_moments(life, folder / "0", folder / "1", history)
        verify_each(left, verify, folder / "report")
        shutil.rmtree(folder)
        cuts += len(left) - 1
    assert cuts > 12


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_every_sync_of_hollowing_fails_once(durability: str, ram_path: Path, seed: int) -> None:
    history, folder = _fill(ram_path, durability, seed), ram_path / "run"

    def work() -> None:
        for number in range(1, 8):
            shutil.copytree(ram_path / "ready", folder / "0")
            lives = (
                LedgerLife(
                    seed=f"{seed}", durability=durability, script=ledgers.punch_hole, failing_sync=number, share=0.0
                ),
                LedgerLife(seed=f"{seed}", durability=durability, closes=True),
            )
            known = history.copy()
            with piece(f"sync {number}"):
                for i, life in enumerate(lives):
                    life.live_beside(folder / str(i), folder / str(i + 1), known)
            shutil.rmtree(folder)

    in_process(work, ram_path / "report")


def _fill(folder: Path, durability: str, seed: int) -> LedgerHistory:
    """A log with a few segments in `folder`/ready: what it must hold."""
    history = LedgerHistory()
    (folder / "start").mkdir()
    ready = LedgerLife(seed=f"{seed}", durability=durability, script=ledgers.fill, share=1.0)
    pass_through(ready, folder / "start", folder / "ready", history)
    return history
