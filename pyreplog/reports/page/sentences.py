"""What sentences about tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.names import rows

State = Literal["bad", "hot", "fine", "unknown", "n/a"]
Found = Iterator[tuple[State, str]]

MOST = 5
"""At most so many things of a kind are named one by one."""


def counted(count: int, noun: str) -> str:
    """So many things of a kind: 1 entry, 2 entries."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ey"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}s"


def each(table: pa.Table, state: State, text: Callable[[dict[str, Any]], str], others: str) -> Found:
    """A sentence for each of the first rows, one for all others."""
    for row in rows(table.slice(0, MOST)):
        yield state, text(row)
    if len(table) > MOST:
        yield state, f"{len(table) - MOST:,} {others}."


def total(table: pa.Table, column: str) -> int:
    """Of a column; nulls count as nothing."""
    return int(pc.sum(table[column]).as_py() or 0)


def ledgers(table: pa.Table) -> str:
    """Those that rows are of."""
    found = sorted(set(table["ledger_id"].to_pylist()))
    shown = ", ".join(str(ledger) for ledger in found[:MOST])
    return f"ledger {shown}" if len(found) == 1 else f"ledgers {shown}{', …' if len(found) > MOST else ''}"
