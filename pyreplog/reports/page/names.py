"""Names of the rows of a report: a topic, its partition, a subscription, a ledger, a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pyreplog.reports.page.cells import KEY_NAMES, key_text, printable, python_values, shortened

_LEDGERS = ("ledger", "ledger_id")


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows by the names of columns, with times as microseconds since 1970."""
    columns = [python_values(column) for column in table.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(table.column_names, values, strict=True))


def names(table: pa.Table, by: Sequence[str]) -> list[str]:
    """Return the names of rows: the values of these columns, without columns in which all rows are equal."""
    by = [column for column in by if column != "topic" or not _is_plain(table, by)]
    if not by:
        return [""] * len(table)
    columns = [[_name(column, value) for value in table[column].to_pylist()] for column in by]
    return [" / ".join(filter(None, row)) for row in zip(*columns, strict=True)]


def _is_plain(table: pa.Table, by: Sequence[str]) -> bool:
    """Return whether rows are identified without their topic, because all have the same one."""
    return len({*by} - {"topic", "partition"}) > 0 and len(table["topic"].unique()) == 1


def topic_of(row: Mapping[str, Any]) -> str:
    """Return the name of a row's topic, log or ledger, with its partition."""
    if row.get("topic") is None:
        ledger = row.get("ledger")
        return "ledgers" if ledger is None else f"ledger {ledger}"
    partition = row.get("partition")
    suffix = "" if partition is None or partition < 0 else f", partition {partition}"
    return f"{shortened(printable(row['topic']))}{suffix}"


def subscription_of(row: Mapping[str, Any]) -> str:
    """Return the names of a row's subscription and topic."""
    return f"“{shortened(printable(row['subscription']))}” of {topic_of(row)}"


def key_of(value: bytes | str | None) -> str:
    """Return the name of a key, given as bytes or hex; None: no key."""
    return "No key" if value is None else f"Key “{shortened(key_text(value))}”"


def _name(column: str, value: Any) -> str:
    if column in KEY_NAMES:
        return "(no key)" if value is None else key_text(value)
    if column == "cluster" and value is None:
        return "(published here)"
    if value is None or (column == "partition" and value < 0):
        return ""
    if column == "partition":
        return f"partition {value}"
    return f"ledger {value}" if column in _LEDGERS else printable(str(value))
