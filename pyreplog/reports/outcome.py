"""Outcome: the result of one report of several."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pyreplog.reports.report import Report


@dataclass(frozen=True)
class Outcome:
    """The outcome of one report: a table, an error, or the reason why the report was left out.

    Attributes:
        report: class of the report.
        table: its result.
        error: the error, in one line.
        left_out: the reason why the report does not apply to this source.
        warnings: the parts that are missing from the table, with the reasons; one line each.
    """

    report: type[Report]
    table: pa.Table | None = None
    error: str = ""
    left_out: str = ""
    warnings: tuple[str, ...] = ()
