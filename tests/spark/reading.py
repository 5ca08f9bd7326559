"""Reading logs as the data source does, without Spark: planning and scanning in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyreplog.tables import schema
from pyreplog.tables.arrays import schema_of
from pyreplog.tables.log_slices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan
from pyreplog.tables.reading import read


def options_of(path: Path | str | None, **options: object) -> ReadOptions:
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if path is not None:
        given["path"] = str(path)
    return ReadOptions.of(given)


def batches_of(options: ReadOptions, task: tuple[Part, ...]) -> Iterator[pa.RecordBatch]:
    """What a task gives, which travels there as it does in Spark."""
    return read(pickle.loads(pickle.dumps(task)), schema.default_columns(options), options)


def read_slices(options: ReadOptions, tasks: Sequence[tuple[Part, ...]]) -> pa.Table:
    columns = schema.default_columns(options)
    batches = [batch for task in tasks for batch in batches_of(options, task)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=schema_of(tuple(column.name for column in columns)))


def read_table(path: Path | str | None, **options: object) -> pa.Table:
    """All rows that a read gives, in the order of its tasks."""
    new_options = options_of(path, **options)
    return read_slices(new_options, plan(new_options))


def column(path: Path | str | None, name: str, **options: object) -> list[Any]:
    return read_table(path, columns=name, **options)[name].to_pylist()


def bytes_planned(tasks: Sequence[tuple[Part, ...]]) -> int:
    return sum(part.size for task in tasks for part in task)
