"""Reading the slices of one task, on an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from pyreplog.tables.object_scan import ObjectScan
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.schema import Column, is_verified
from pyreplog.tables.slices import Slice

if TYPE_CHECKING:
    from pyreplog.tables.cluster.entry_slices import EntrySlice
    from pyreplog.tables.log_slices import Part


def read(parts: tuple[Part, ...], columns: tuple[Column, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the slices of one task as Arrow batches, in order.

    Args:
        parts: slices of one task, from `plan`.
        columns: columns to give.
        options: the options of the plan.

    Returns:
        An iterator of `pyarrow.RecordBatch`.

    Raises:
        CorruptionError: a record is damaged, in mode "FAILFAST".
        TrimmedError: entries were removed before they were read, and `fail_on_data_loss` is set.
        TruncatedError: entries were cut before they were read, and `fail_on_data_loss` is set.
        ReplogError: as the bookies or the object store.
    """
    names, verified = tuple(column.name for column in columns), is_verified(columns, options)
    options = options.limited(to_values=verified or "value" in names)
    if not parts or isinstance(parts[0], Slice):
        scan = ObjectScan(names, options, verified=verified)
        return scan.read(cast("tuple[Slice, ...]", parts))
    from pyreplog.tables.cluster.entry_scan import EntryScan

    return gathered(EntryScan(names, options).read(cast("tuple[EntrySlice, ...]", parts)), options)


def gathered(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield batches in which small ones are joined.

    Each batch of a tiny ledger by itself would cost Spark more than its rows.
    """
    waiting, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > options.batch_rows or size + batch.nbytes > options.batch_bytes):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
