"""Progress of reports and exports, on standard error: a bar on a terminal with rich, otherwise a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from pyreplog.cli.shared.output import say


class StepProgress(Protocol):
    def begin(self, name: str) -> None:
        """Begin the next step."""

    def update(self, done: int, size: int) -> None:
        """Show about how many bytes of the step are done."""

    def end(self, text: str) -> None:
        """End the step. text: its result."""


class PlainSteps:
    """A line for each completed step."""

    def __init__(self, count: int) -> None:
        self._count, self._at, self._name = count, 0, ""

    def begin(self, name: str) -> None:
        self._at, self._name = self._at + 1, name

    def update(self, done: int, size: int) -> None:
        """Do nothing: lines are printed only for completed steps."""

    def end(self, text: str) -> None:
        say(f"{self._at}/{self._count} {self._name}: {text}", file=sys.stderr)
        sys.stderr.flush()

    def finish(self) -> None:
        """Do nothing: there is nothing to clear."""


class RichSteps:
    """A bar in which all steps have equal parts."""

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
def steps(count: int) -> Iterator[StepProgress]:
    """Show the progress of `count` steps while the block runs."""
    with_rich = sys.stderr.isatty() and find_spec("rich") is not None
    shown = RichSteps(count) if with_rich else PlainSteps(count)
    try:
        yield shown
    finally:
        shown.finish()
