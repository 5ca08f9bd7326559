"""Outcomes of reports that tests write down, and pages of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pyreplog.reports.catalogue import report_class
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page.page import About, page

MINUTE_US = 60_000_000
NOON_US = 1_780_000_020_000_000 // MINUTE_US * MINUTE_US
SCRIPT = "<script>document.title = 'taken'</script>\"'><img src=x onerror=alert(1)>&amp;${x}$"
"""A name that means harm: where it is not escaped, it runs."""


def outcome(name: str, rows: Iterable[Mapping[str, Any]]) -> Outcome:
    """Of these rows; what a row does not say is null."""
    report = report_class(name)
    full = [{column: row.get(column) for column in report.schema().names} for row in rows]
    return Outcome(report, pa.Table.from_pylist(full, schema=report.schema()))


def backlog(subscription: str, entries: int, age_s: float = 0.0, topic: str = "orders") -> dict[str, Any]:
    """A row of `backlog_by_subscription`."""
    row = {"topic": topic, "partition": -1, "subscription": subscription, "backlog_entries": entries}
    if entries:
        row |= {"backlog_bytes": entries * 100, "oldest_ts": NOON_US, "age_s": age_s, "oldest_offset": 7}
    return row


def key(name: bytes, entries: int, rank: int, distinct: int, topic: str = "orders") -> dict[str, Any]:
    """A row of `key_skew`, of 1,000 entries."""
    return {
        "topic": topic, "partition": -1, "rank": rank, "key": name.hex(), "entries": entries, "bytes": entries * 10,
        "share": entries / 1000, "distinct_keys": distinct,
    }  # fmt: skip


def minute(number: int, entries: int, topic: str = "orders") -> dict[str, Any]:
    """A row of `rate_by_minute`, so many minutes after noon."""
    return {
        "topic": topic, "partition": -1, "minute": NOON_US + number * MINUTE_US, "entries": entries,
        "bytes": entries * 2048, "avg_size": 2048.0, "max_size": 4096, "producers": 1,
    }  # fmt: skip


def html(*outcomes: Outcome) -> str:
    return page(About("Reports on a test", [("as of", "noon")], "Made by a test."), outcomes)
