"""Logs of rows, and the same rows in other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pyreplog
from benchmarks.entries import BATCH, in_turn, make_values, stride
from benchmarks.plan import Plan
from pyreplog.clock import ManualClock
from pyreplog.tables import schema
from pyreplog.tables.arrays import schema_of
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan as plan_tasks
from pyreplog.tables.reading import read

SEGMENTS = 16
_MINUTES = 120
_BEGIN_US = 1_700_000_000_000_000 // 60_000_000 * 60_000_000
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "size")


def write_log(path: Path, size: int, plan: Plan, segments: int = SEGMENTS, *, segment_bytes: int | None = None) -> int:
    """A log whose entries are spread over so many minutes; how many entries. segments: of the plan's size, whatever its
    own are."""
    clock, values = ManualClock(_BEGIN_US), in_turn(make_values(size), BATCH)
    batches = max(segments * plan.segment_bytes // stride(size) // BATCH, 1)
    with pyreplog.open(path, clock=clock, segment_bytes=segment_bytes or plan.segment_bytes) as log:
        for _ in range(batches):
            log.append_batch(values)
            clock.advance(_MINUTES * 60_000_000 // batches)
    return batches * BATCH


def as_parquet(log: Path, folder: Path) -> None:
    """The rows of a log as uncompressed Parquet, in files of the size of a task."""
    _written(
        log, folder, _COLUMNS, lambda path, kind: pq.ParquetWriter(path, kind, compression="none"),
    )  # fmt: skip


def as_arrow(log: Path, folder: Path, columns: tuple[str, ...]) -> None:
    """Some columns as the record batches that a task reads, to be mapped."""
    _written(log, folder, columns, pa.ipc.new_file)


def _written(log: Path, folder: Path, columns: tuple[str, ...], begin: Callable[[str, pa.Schema], Any]) -> None:
    options = ReadOptions(paths=(str(log),), columns=columns)
    folder.mkdir()
    for number, task in enumerate(plan_tasks(ReadOptions(paths=options.paths, min_partitions=SEGMENTS))):
        with begin(str(folder / f"{number:03}"), schema_of(columns)) as file:
            for batch in read(task, schema.default_columns(options), options):
                file.write_batch(batch)
