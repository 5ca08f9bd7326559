"""Progress of a long command, on standard error: a bar on a terminal with rich, otherwise a line at intervals."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from pyreplog.cli.shared.output import amount, counted, duration

_TERMINAL_S = 0.2
_FILE_S = 5.0


class ProgressBar(Protocol):
    def update(self, done: int, entries: int) -> None:
        """Show progress. done: bytes of the source; entries: rows in them."""


class PlainProgress:
    """A line that is overwritten on a terminal; a line every few seconds in a file."""

    def __init__(self, label: str, start: int, total: int | None) -> None:
        self._label, self._start, self._total = label, start, total
        self._terminal = sys.stderr.isatty()
        self._every = _TERMINAL_S if self._terminal else _FILE_S
        self._began = time.monotonic()
        self._next = self._began + self._every

    def update(self, done: int, entries: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        line = self._line(done, entries, now - self._began)
        sys.stderr.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def _line(self, done: int, entries: int, seconds: float) -> str:
        rate = (done - self._start) / seconds
        line = f"{self._label}: {counted(entries, 'record')}, {amount(done)}"
        if self._total is not None:
            line += f" of {amount(self._total)} ({done * 100 // max(self._total, 1)} %)"
        line += f", {amount(rate)}/s"
        if self._total is not None and rate > 0:
            line += f", {duration(max(self._total - done, 0) / rate)} left"
        return line

    def finish(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class RichProgress:
    """A bar of rich, which its own thread redraws."""

    def __init__(self, label: str, start: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )  # fmt: skip

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
            TextColumn("{task.fields[entries]}"), TextColumn("ETA"), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(label, total=total, completed=start, entries=counted(0, "record"))
        self._bar.start()

    def update(self, done: int, entries: int) -> None:
        self._bar.update(self._task, completed=done, entries=counted(entries, "record"))

    def finish(self) -> None:
        self._bar.stop()


@contextmanager
def progress(label: str, *, start: int, total: int | None) -> Iterator[ProgressBar]:
    """Show progress from byte `start` to `total` (None: unknown) while the block runs."""
    with_rich = sys.stderr.isatty() and find_spec("rich") is not None
    shown = (RichProgress if with_rich else PlainProgress)(label, start, total)
    try:
        yield shown
    finally:
        shown.finish()
