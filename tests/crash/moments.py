"""What a power cut at each tick of a run would leave, so that the run is made once, and not anew for each of its ticks.

A cut only reads its disk: what it leaves is written down as the run passes the tick, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .disk import Disk
from .process import in_process, piece


@dataclass(frozen=True)
class Moment:
    """tick: None at the end of the run. left: what a cut leaves. known: so many bytes of what the run records were
    written by then."""

    tick: int | None
    left: Path
    known: int


@dataclass(frozen=True)
class Moments:
    """Of every tick of one run from `first` on, or of every `stride`-th, below `folder`. seed: of what is left."""

    folder: Path
    seed: str
    first: int = 1
    stride: int = 1

    def watch(self, disk: Disk, events: Path | None = None) -> None:
        """In the process that runs: from now on, counting ticks from here. events: what it records."""
        self.folder.mkdir()
        began = disk.ticks

        def at_tick() -> None:
            tick = disk.ticks - began
            if tick >= self.first and (tick - self.first) % self.stride == 0:
                known = events.stat().st_size if events is not None and events.exists() else 0
                disk.leave(self.folder / f"{tick}-{known}", Random(f"{self.seed} {tick}"))

        disk.at_tick = at_tick

    def taken(self) -> list[Moment]:
        """After the run, in the order of their ticks."""
        names = sorted(tuple(map(int, path.name.split("-"))) for path in self.folder.iterdir())
        return [Moment(tick, self.folder / f"{tick}-{known}", known) for tick, known in names]

    def and_end(self, left: Path, events: Path) -> list[Moment]:
        """All that were taken, and what the run left at its end."""
        return [*self.taken(), Moment(None, left, events.stat().st_size)]


def verify_each(moments: list[Moment], verify: Callable[[Moment], object], report: Path) -> None:
    """One after the other in one process; AssertionError names the first that is not right."""

    def work() -> None:
        for moment in moments:
            with piece(moment):
                verify(moment)

    in_process(work, report)
