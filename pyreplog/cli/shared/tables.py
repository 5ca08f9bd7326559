"""Tables: by rich on a terminal if it is installed, otherwise as plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from pyreplog.cli.shared.output import say, shown

_GAP = "  "


@dataclass(frozen=True)
class Table:
    """A header, and rows with as many cells. marked: indices of rows that need attention."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: frozenset[int] = field(default=frozenset())

    @property
    def rights(self) -> list[bool]:
        """For each column, whether it holds numbers and is aligned to the right."""
        return [all(not cell or cell[0].isdigit() or cell == "-" for cell in column) for column in self._columns()]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [tuple(map(shown, row)) for row in self.rows])

    def _columns(self) -> list[tuple[str, ...]]:
        return [tuple(row[place] for row in self.rows) for place in range(len(self.header))]

    def plain(self) -> list[str]:
        """Return the lines of the table as text."""
        named = zip(self.header, self._columns(), strict=True)
        widths = [max(map(len, (name, *column))) for name, column in named]
        return [_line(row, widths, self.rights) for row in (self.header, *self.rows)]

    def rich(self) -> Any:
        """Return the table for rich."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for name, right in zip(self.header, self.rights, strict=True):
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        for place, row in enumerate(self.rows):
            table.add_row(*map(Text, row), style="bold red" if place in self.marked else "")
        return table


def _line(row: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    cells = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, rights, strict=True)
    )
    return _GAP.join(cells).rstrip()


def has_rich() -> bool:
    """Whether standard output is a terminal, and rich is installed."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables, each after an empty line. Tables without rows are left out."""
    filled = [table for table in tables if table.rows]
    if has_rich():
        from rich.console import Console

        for table in filled:
            Console().print("", table.rich())
    else:
        for table in filled:
            say("", *table.plain(), sep="\n")
