"""A process in the life of a log on the modelled disk: it works until the power is cut, or takes what a cut would leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Generic, Protocol, TypeVar

from .disk import Disk, Order
from .history import replay
from .moments import Moment, Moments
from .process import in_process

Known = TypeVar("Known")
"""What is known of the log: fed with what happens to it."""


class Closable(Protocol):
    """An open log."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Life(ABC, Generic[Known]):
    """One process: opens what the last cut left, judges it, works on, and loses power at tick `cut_at` or at the end.

    share: chance that something unsynced is on disk then, None: drawn for each file. failing_sync: number of the sync
    that fails. closes: the log is closed in the end. moments: what a cut at each tick would have left.
    """

    seed: str
    steps: int = 0
    cut_at: int = 0
    share: float | None = None
    failing_sync: int = 0
    closes: bool = False
    moments: Moments | None = None
    order: Order = "first"

    @abstractmethod
    def _live(self, home: Path, target: Path, history: Known) -> tuple[Disk, Closable | None]:
        """The disk, and the log unless it is lost."""

    def live(self, home: Path, target: Path, history: Known) -> None:
        """In a process of its own, which it ends."""
        disk, _ = self._live(home, target, history)
        disk.power_cut(0)

    def live_beside(self, home: Path, target: Path, history: Known) -> int:
        """In a process that goes on with another life: what a cut would leave at the end is in `target`. How many syncs
        there were."""
        disk, log = self._live(home, target, history)
        disk.leave(target, Random(self.seed))
        syncs, disk.failing_sync = disk.syncs, 0
        if log is not None:
            log.close()
        return syncs


def events_of(target: Path) -> Path:
    return target.with_suffix(".events")


def pass_through(life: Life[Known], home: Path, target: Path, history: Known) -> bool:
    """Live a life in a process of its own: whether the power was cut. `history` then knows what happened in it."""
    cut = in_process(lambda: life.live(home, target, history), target.with_suffix(".report"))
    replay(history, events_of(target))
    return cut


def pass_moments(life: Life[Known], home: Path, target: Path, history: Known) -> list[Moment]:
    """Live a life with moments in a process of its own: them, and its end. `history` stays as it is."""
    assert life.moments is not None
    in_process(lambda: life.live(home, target, history), target.with_suffix(".report"))
    return life.moments.and_end(target, events_of(target))
