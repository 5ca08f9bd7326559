"""Parts of sentences about tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.names import rows

State = Literal["bad", "hot", "fine", "unknown", "n/a"]
Found = Iterator[tuple[State, str]]

MOST = 5
"""Most things of a kind that are named one by one."""


def each(table: pa.Table, state: State, text: Callable[[dict[str, Any]], str], others: str) -> Found:
    """Yield a sentence for each of the first rows, and one for all others."""
    for row in rows(table.slice(0, MOST)):
        yield state, text(row)
    if len(table) > MOST:
        yield state, f"{len(table) - MOST:,} {others}."


def total(table: pa.Table, column: str) -> int:
    """Return the sum of a column; nulls count as 0."""
    return int(pc.sum(table[column]).as_py() or 0)


def ledgers(table: pa.Table) -> str:
    """Return the names of the ledgers of rows."""
    ids = sorted(set(table["ledger_id"].to_pylist()))
    shown = ", ".join(str(ledger) for ledger in ids[:MOST])
    return f"ledger {shown}" if len(ids) == 1 else f"ledgers {shown}{', …' if len(ids) > MOST else ''}"
