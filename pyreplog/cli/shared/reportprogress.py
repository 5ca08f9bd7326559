"""How far reports and exports are, on standard error: bars on a terminal with rich, else a line for each step done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from pyreplog.cli.shared.output import say


class Steps(Protocol):
    def begin(self, name: str) -> None:
        """The next step begins."""

    def update(self, done: int, size: int) -> None:
        """So many of its bytes are done, about."""

    def end(self, text: str) -> None:
        """It is done; text: how it went."""


class PlainSteps:
    """A line for each step that is done."""

    def __init__(self, count: int) -> None:
        self._count, self._at, self._name = count, 0, ""

    def begin(self, name: str) -> None:
        self._at, self._name = self._at + 1, name

    def update(self, done: int, size: int) -> None:
        """Lines are for what is done."""

    def end(self, text: str) -> None:
        say(f"{self._at}/{self._count} {self._name}: {text}", file=sys.stderr)
        sys.stderr.flush()

    def finish(self) -> None:
        """Nothing is left on the screen."""


class RichSteps:
    """A bar, to which each step adds an equal part."""

    def __init__(self, count: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=count, amount="")
        self._at = 0
        self._bar.start()

    def begin(self, name: str) -> None:
        self._bar.update(self._task, description=name, completed=self._at, amount="")

    def update(self, done: int, size: int) -> None:
        part = done / size if size else 0.0
        self._bar.update(self._task, completed=self._at + part, amount=f"{done >> 20:,} of {size >> 20:,} MiB")

    def end(self, text: str) -> None:
        self._at += 1
        self._bar.update(self._task, completed=self._at)

    def finish(self) -> None:
        self._bar.stop()


@contextmanager
def steps(count: int) -> Iterator[Steps]:
    """Show how far so many steps are while the block runs."""
    with_rich = sys.stderr.isatty() and find_spec("rich") is not None
    shown = RichSteps(count) if with_rich else PlainSteps(count)
    try:
        yield shown
    finally:
        shown.finish()
