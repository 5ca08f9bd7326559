"""The drawings of each report."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.drawings import Buckets, OverTime, Plot, Ranked, StepCurve
from pyreplog.reports.page.svg import drawn
from pyreplog.reports.report import Report

_TOPIC = ("topic", "partition")
_SUBSCRIPTION = (*_TOPIC, "subscription")

PLOTS: dict[str, tuple[Plot, ...]] = {
    "rate_by_minute": (OverTime("minute", "entries", _TOPIC), OverTime("minute", "bytes", _TOPIC)),
    "origins": (OverTime("minute", "entries", (*_TOPIC, "cluster")),),
    "size_histogram": (Buckets("lo", "entries", _TOPIC, "bytes, at least"),),
    "key_skew": (Ranked((*_TOPIC, "key"), "entries"),),
    "partition_skew": (Ranked(_TOPIC, "entries"),),
    "backlog_by_subscription": (Ranked(_SUBSCRIPTION, "backlog_entries"),),
    "backlog_age_histogram": (
        Buckets("bucket", "entries", _SUBSCRIPTION, "age", ("<=1m", "5m", "15m", "1h", "6h", "1d", "7d", ">7d")),
    ),
    "retention_forecast": (Ranked((*_TOPIC, "pinned_by"), "bytes_freed"),),
    "dead_subscriptions": (Ranked(_SUBSCRIPTION, "backlog_bytes"),),
    "under_replicated": (Buckets("found", "entries", ("ledger_id",), "intact copies"),),
    "replica_holes": (Ranked(("bookie", "status"), "missing"),),
    "geo_replication": (Ranked((*_TOPIC, "target"), "unsent_messages"),),
    "replica_lag": (Ranked((*_TOPIC, "broker"), "lag"),),
    "leader_skew": (Ranked(("broker",), "leads"),),
    "group_lag": (Ranked((*_TOPIC, "group"), "lag"),),
    "recovery_orders": (Ranked(("bookie",), "ledgers_left"),),
    "recovery_progress": (StepCurve("from_ts", "until_ts", "ledgers_left"),),
}
"""Drawings by the name of the report; other reports have only tables."""


def plots(report: type[Report], table: pa.Table) -> list[str]:
    """Return the drawings of a report as SVG elements; none for a table of zeros.

    Raises MissingExtraError if matplotlib is not installed.
    """
    return [
        drawn(
            f"{report.name}-{place}",
            report.title,
            plot.size(table),
            lambda drawing, plot=plot: plot.draw(table, drawing),  # type: ignore[misc]
        )
        for place, plot in enumerate(PLOTS.get(report.name, ()))
        if pc.sum(table[plot.amount]).as_py()
    ]
