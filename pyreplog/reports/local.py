"""Reports without Spark: planned and read in this process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from pyreplog.reports.facts import Facts
from pyreplog.reports.report import Read, Report
from pyreplog.spark import schema
from pyreplog.spark.options import ReadOptions
from pyreplog.spark.planning import Part, plan
from pyreplog.spark.reading import read


def run(report: Report, options: Mapping[str, str], facts: Facts, *, workers: int = 2) -> pa.Table:
    """A report of what these options (those of the Spark source) mean. Errors: those of planning and reading."""
    with ThreadPoolExecutor(workers) as pool:
        partials = [
            table
            for one in report.reads(ReadOptions.of(options), facts)
            for table in _partials(report, one, options, pool, workers)
        ]
    return report.merge(pa.concat_tables(partials), facts)


def _partials(
    report: Report, one: Read, given: Mapping[str, str], pool: ThreadPoolExecutor, workers: int
) -> list[pa.Table]:
    options = replace(ReadOptions.of({**given, **one.options}), columns=report.needs)
    options = replace(options, min_partitions=max(options.min_partitions, workers))
    columns = schema.default_columns(options)

    def partial(task: tuple[Part, ...]) -> pa.Table:
        return report.partial(read(task, columns, options))

    found = [*pool.map(partial, plan(options))] or [report.parts.empty_table()]
    return [tagged(table, one) for table in found]


def tagged(partial: pa.Table, one: Read) -> pa.Table:
    for name, text in one.tag.items():
        partial = partial.append_column(name, pa.repeat(pa.scalar(text), len(partial)))
    return partial
