"""Reading what one task was given, on an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from pyreplog.spark.options import ReadOptions
from pyreplog.spark.scan import Scan
from pyreplog.spark.schema import Column, is_verified
from pyreplog.spark.slices import Slice

if TYPE_CHECKING:
    from pyreplog.spark.entryslices import EntrySlice
    from pyreplog.spark.planning import Part


def read(parts: tuple[Part, ...], columns: tuple[Column, ...], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of slices, all of one kind, in order. Errors: as of `Scan.read`, `EntryScan.read`."""
    names = tuple(column.name for column in columns)
    if not parts or isinstance(parts[0], Slice):
        scan = Scan(names, options, verified=is_verified(columns, options))
        return scan.read(cast("tuple[Slice, ...]", parts))
    from pyreplog.spark.entryscan import EntryScan

    return EntryScan(names, options).read(cast("tuple[EntrySlice, ...]", parts))
