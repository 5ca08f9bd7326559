"""An operation with the power cut at every one of its steps: what it had reported by then holds in all that may be left."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from pyreplog.log import housekeeper
from tests.thorough import one_in

from .disk import Disk, Order, PowerCutFiles
from .moments import Moment, Moments, verify_each
from .process import in_process

Report = Callable[[str], None]
"""Says that something holds from now on, whatever happens."""


class Way(NamedTuple):
    """In which a cut takes what was not synced. share: of it that is on disk nevertheless, None: drawn for each file.
    stride: a cut at every so many steps, or an eighth as many where tests are not thorough."""

    share: float | None
    order: Order
    stride: int = 1


WAYS = (Way(0.0, "first"), Way(1.0, "first"), Way(None, "last"), Way(None, "first", 3), Way(None, "any", 3))


class Operation(ABC):
    """prepare: what is on disk before it. act: the operation. verify: AssertionError, or another one, when what a cut has
    left is not right. `home` is all of the disk; `left` stands in its place after the cut."""

    @abstractmethod
    def prepare(self, home: Path) -> None:
        """On the real disk, in a process of its own, without housekeeping."""

    @abstractmethod
    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None: ...

    @abstractmethod
    def verify(self, left: Path, reports: list[str]) -> None: ...


def cut_at_every_step(operation: Operation, folder: Path, seed: int, ways: tuple[Way, ...] = WAYS) -> int:
    """About how many steps there are, of all ways together."""
    start, home, cuts = folder / "start", folder / "home", 0
    _prepare(operation, start, folder / "report")
    for number, way in enumerate(ways):
        shutil.copytree(start, home)
        events, end = folder / "events", folder / "end"
        events.touch()
        stride = way.stride * one_in(8)
        moments = Moments(folder / "left", f"{seed} {number}", first=1 + seed % stride, stride=stride)
        in_process(lambda: _pass(operation, way, home, end, events, moments), folder / "report")  # noqa: B023
        taken = moments.and_end(end, events)
        said = events.read_bytes()

        def verify(moment: Moment) -> None:
            operation.verify(moment.left, said[: moment.known].decode().split("\n")[:-1])  # noqa: B023
            shutil.rmtree(moment.left)

        verify_each(taken, verify, folder / "report")
        cuts += stride * len(taken)
        shutil.rmtree(home)
        shutil.rmtree(moments.folder)
        events.unlink()
    return cuts


def _prepare(operation: Operation, start: Path, report: Path) -> None:
    start.mkdir()

    def work() -> None:
        housekeeper.THREADS = False
        operation.prepare(start)

    in_process(work, report)


def kill_at_every_step(operation: Operation, folder: Path, seed: int, stride: int = 1) -> int:
    """The process is killed at a step, and `act` begins again, on what the page cache shows. What that reports, without
    having done it perhaps, holds when the power is cut then, and nothing is on disk that was not synced. stride: one in
    three times as many steps; all of them where tests are thorough. How many there are."""
    start, home, left = folder / "start", folder / "home", folder / "left"
    _prepare(operation, start, folder / "report")
    stride = one_in(3 * stride)
    for step in range(1 + seed % stride, _STEPS_MAX, stride):
        shutil.copytree(start, home)
        left.mkdir()
        in_process(lambda: _pass_twice(operation, home, left, step), folder / "report")  # noqa: B023

        def verify(number: int) -> None:
            said = (folder / "left" / f"{number}.reports").read_text().split("\n")[:-1]
            operation.verify(folder / "left" / str(number), said)

        taken = sorted(int(path.stem) for path in left.glob("*.reports"))
        in_process(lambda: [verify(number) for number in taken], folder / "report")  # noqa: B023
        shutil.rmtree(home)
        was_killed = (left / "killed").exists()
        shutil.rmtree(left)
        if not was_killed:
            return step - 1
    raise AssertionError(f"more than {_STEPS_MAX} steps")


_STEPS_MAX = 1000


class Killed(BaseException):
    """The process is gone: nothing that it does from now on reaches the disk."""


def _pass_twice(operation: Operation, home: Path, left: Path, step: int) -> None:
    housekeeper.THREADS = False
    disk = Disk(home, left / "end", Random(step))
    disk.share = 0.0

    def at_tick() -> None:
        if disk.ticks >= step:
            (left / "killed").touch()
            raise Killed

    disk.at_tick = at_tick
    with suppress(Killed):
        operation.act(home, PowerCutFiles(disk), lambda _: None)
    disk.at_tick = None
    said: list[str] = []

    def report(subject: str) -> None:
        said.append(f"{subject}\n")
        disk.leave(left / str(len(said)), Random(step))
        (left / f"{len(said)}.reports").write_text("".join(said))

    operation.act(home, PowerCutFiles(disk), report)


def _pass(operation: Operation, way: Way, home: Path, end: Path, events: Path, moments: Moments) -> None:
    """In a process of its own."""
    housekeeper.THREADS = False
    rng = Random(moments.seed)
    disk = Disk(home, end, rng)
    disk.share, disk.order = way.share, way.order
    moments.watch(disk, events)

    def report(subject: str) -> None:
        with events.open("a") as file:
            file.write(f"{subject}\n")

    operation.act(home, PowerCutFiles(disk), report)
    disk.leave(end, rng)
