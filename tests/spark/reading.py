"""Reading logs as the data source does, without Spark: planning and scanning in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pyreplog.spark import schema
from pyreplog.spark.arrays import schema_of
from pyreplog.spark.options import ReadOptions
from pyreplog.spark.planning import plan
from pyreplog.spark.scan import Scan
from pyreplog.spark.slices import Slice


def options_of(path: Path | str | None, **options: object) -> ReadOptions:
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if path is not None:
        given["path"] = str(path)
    return ReadOptions.of(given)


def scan_of(options: ReadOptions) -> Scan:
    columns = schema.default_columns(options)
    return Scan(tuple(column.name for column in columns), options, verified=schema.is_verified(columns, options))


def read_slices(options: ReadOptions, tasks: list[tuple[Slice, ...]]) -> pa.Table:
    scan = scan_of(options)
    batches = [batch for task in tasks for batch in scan.read(task)]
    for batch in batches:
        batch.validate(full=True)
    columns = tuple(column.name for column in schema.default_columns(options))
    return pa.Table.from_batches(batches, schema=schema_of(columns))


def read_table(path: Path | str | None, **options: object) -> pa.Table:
    """All rows that a read gives, in the order of its tasks."""
    made = options_of(path, **options)
    return read_slices(made, plan(made))


def column(path: Path | str | None, name: str, **options: object) -> list[Any]:
    return read_table(path, columns=name, **options)[name].to_pylist()


def bytes_planned(tasks: list[tuple[Slice, ...]]) -> int:
    return sum(part.bytes for task in tasks for part in task)
