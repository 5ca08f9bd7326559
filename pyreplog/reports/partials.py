"""The work of one task for a report: it reads its slices, and makes one small table from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from pyreplog.reports.catalogue import report_of_view
from pyreplog.reports.report import Report
from pyreplog.tables import schema
from pyreplog.tables.log_slices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.reading import read


def view_of(options: ReadOptions) -> Report:
    """Return the report whose partial results are read. Raises the errors of `report_of_view`."""
    assert options.view is not None, "the options name no view"
    return report_of_view(options.view, options.view_options)


def read_options(report: Report, options: ReadOptions) -> ReadOptions:
    """Return the options with which the tasks of a report read."""
    return replace(options, columns=report.columns())


def partial_of(report: Report, task: tuple[Part, ...], options: ReadOptions) -> pa.Table:
    """Return the partial result of one task. options: from `read_options`. Raises the errors of reading."""
    partial = report.partial(read(task, schema.default_columns(options), options))
    return partial.select(report.parts.names).cast(report.parts)


def tagged(partial: pa.Table, tag: Mapping[str, str]) -> pa.Table:
    """Return a partial result with the columns of a tag."""
    for name, text in tag.items():
        partial = partial.append_column(name, pa.repeat(pa.scalar(text), len(partial)))
    return partial
