"""Rows of Arrow batches in the form that producers take: columns as they lie in memory, in calls of limited size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyreplog.errors import InvalidArgumentError
from pyreplog.spark.write.columns import WrittenColumns
from pyreplog.topic.model.times import KnownTimes, known_time

CALL_BYTES = 4 << 20
"""Approximate bytes of one call; one row may exceed it."""
CALL_ROWS = 10_000

_ROW_BYTES = 64
_NO_TIME = -(1 << 63)


class RowBatch(NamedTuple):
    """Rows for one topic, in order. numbers: number of each row within its task, from 0."""

    topic: str
    numbers: NDArray[np.int64]
    values: pa.Array
    keys: pa.Array | None
    event_times: pa.Array | None
    headers: pa.Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, as far as they belong to these rows."""
        return sum(column.nbytes for column in self[2:] if column is not None)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Producer.submit_batch`, except sequence numbers.

        Python objects are made only for headers, and for keys if some are null. Raises InvalidArgumentError for headers
        that cannot be properties.
        """
        times = None if self.event_times is None else self.event_times.cast(pa.int64())
        columns: dict[str, Any] = {"values": self.values, "keys": self.keys}
        if self.keys is not None and self.keys.null_count == len(self.keys):
            columns["keys"] = None
        elif self.keys is not None and self.keys.null_count:
            columns = {"values": self.values.to_pylist(), "keys": self.keys.to_pylist()}
            times = None if times is None else [*map(known_time, times.to_pylist())]
        if isinstance(times, pa.Array):
            times = pc.fill_null(times, _NO_TIME).to_numpy(zero_copy_only=False).view(KnownTimes)
        return columns | {"event_times": times, "properties": _properties(self.headers, self.numbers)}


def rows_of(batch: pa.RecordBatch, columns: WrittenColumns, topic: str | None, first: int) -> Iterator[RowBatch]:
    """Yield the rows of a batch by topic, in calls.

    topic: None: a column names it. first: number of the first row. Raises InvalidArgumentError if a value or a topic is
    null; the message has the number of the row.
    """
    numbers = np.arange(first, first + batch.num_rows, dtype=np.int64)
    values = _not_null(batch, columns.value, "value", first)
    parts = columns.key, columns.event_time, columns.headers
    key, event_time, headers = (None if at is None else batch.column(at) for at in parts)
    whole = RowBatch("", numbers, _binary(values), None if key is None else _binary(key), event_time, headers)
    if columns.topic is None:
        assert topic is not None, "either a column or the option names the topic"
        yield from _calls(whole._replace(topic=topic))
        return
    for name, rows in _by_topic(_not_null(batch, columns.topic, "topic", first)):
        yield from _calls(whole._replace(topic=name) if rows is None else taken(whole, name, rows))


def _not_null(batch: pa.RecordBatch, at: int, name: str, first: int) -> pa.Array:
    column = batch.column(at)
    if column.null_count:
        row = first + pc.index(column.is_null(), True).as_py()
        raise InvalidArgumentError(f"column {name}: expected a {name} in each row, found null in row {row}")
    return column


def _binary(column: pa.Array) -> pa.Array:
    """Return a column of strings as bytes."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.binary())


def _by_topic(topics: pa.Array) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
    """Yield each topic with the indices of its rows; None: all."""
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy()
    for at, name in enumerate(names):
        yield name, None if len(names) == 1 else np.flatnonzero(indices == at)


def taken(rows: RowBatch, topic: str, which: NDArray[np.int64]) -> RowBatch:
    """Return some of the rows, for a topic. which: their indices, ascending."""
    keys, times, headers = (None if column is None else column.take(which) for column in rows[3:])
    return RowBatch(topic, rows.numbers[which], rows.values.take(which), keys, times, headers)


def _calls(rows: RowBatch) -> Iterator[RowBatch]:
    ends = _ends(rows)
    start, count = 0, len(ends)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + CALL_BYTES)) + 1
        stop = min(stop, start + CALL_ROWS, count)
        columns = (None if column is None else column.slice(start, stop - start) for column in rows[2:])
        yield RowBatch(rows.topic, rows.numbers[start:stop], *columns)
        start = stop


def _ends(rows: RowBatch) -> NDArray[np.int64]:
    """Return for each row the approximate bytes up to its end."""
    offsets = np.arange(len(rows.values) + 1, dtype=np.int64) * _ROW_BYTES + _offsets(rows.values)
    if rows.keys is not None:
        offsets += _offsets(rows.keys)
    if rows.headers is not None:
        at, pairs = _offsets(rows.headers), rows.headers.values
        offsets += at * _ROW_BYTES
        for field in range(2):
            offsets += _offsets(pairs.field(field))[at]
    ends: NDArray[np.int64] = offsets[1:] - offsets[0]
    return ends


def _offsets(column: pa.Array) -> NDArray[np.int64]:
    """Return where each row begins in the data, and where the last one ends."""
    wide = {"large_binary", "large_string", "large_list"}
    kind = np.int64 if str(column.type).split("<")[0] in wide else np.int32
    raw = np.frombuffer(column.buffers()[1], kind) if len(column) else np.zeros(1, kind)
    start = column.offset if len(column) else 0
    return raw[start : start + len(column) + 1].astype(np.int64)


def _properties(headers: pa.Array | None, numbers: NDArray[np.int64]) -> list[dict[str, bytes] | None] | None:
    """Return a dict for each row with headers; None: no row has any."""
    if headers is None:
        return None
    at = _offsets(headers)
    pairs = headers.values.slice(at[0], at[-1] - at[0])
    at -= at[0]
    names, values = (column.to_pylist() for column in pairs.flatten())
    rows = list[dict[str, bytes] | None]()
    present = headers.is_valid().to_pylist()
    for row, (start, stop) in enumerate(zip(at[:-1].tolist(), at[1:].tolist(), strict=True)):
        if start == stop or not present[row]:
            rows.append(None)
            continue
        properties = dict(zip(names[start:stop], values[start:stop], strict=True))
        if len(properties) < stop - start or None in properties or None in properties.values():
            raise InvalidArgumentError(
                f"column headers: expected unique keys and no nulls, found {names[start:stop]} in row {numbers[row]}"
            )
        rows.append(properties)
    return rows if any(rows) else None
