"""Arrow arrays over buffers that native code laid out. Nothing is copied."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


_KEPT_ROWS = 1 << 15


def _buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def as_bytes(kind: pa.DataType, buffers: tuple[int, Any, Any, Any]) -> pa.Array:
    """Return a binary column from (nulls, validity, offsets, data)."""
    nulls, valid, offsets, data = buffers
    return pa.Array.from_buffers(
        kind, len(offsets) // 4 - 1, [_buffer(valid), _buffer(offsets), _buffer(data)], null_count=nulls
    )  # fmt: skip


def as_text(buffers: tuple[int, Any, Any, Any]) -> pa.Array:
    """Return a column of strings from (nulls, validity, offsets, data).

    Bytes that are no UTF-8 become U+FFFD: records that were not verified may hold any bytes, and readers of Arrow rely
    on valid strings.
    """
    nulls, _, offsets, _ = buffers
    if nulls == len(offsets) // 4 - 1:  # the usual case
        return as_bytes(pa.string(), buffers)
    data = as_bytes(pa.binary(), buffers)
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in data.to_pylist()]
        return pa.array(texts, pa.string())


def as_numbers(kind: pa.DataType, count: int, data: Any) -> pa.Array:
    """Return a column of numbers without nulls."""
    return pa.Array.from_buffers(kind, count, [None, _buffer(data)], null_count=0)


def as_some_numbers(kind: pa.DataType, count: int, buffers: tuple[int, Any, Any]) -> pa.Array:
    """Return a column of numbers from (nulls, validity, data)."""
    nulls, valid, data = buffers
    return pa.Array.from_buffers(kind, count, [_buffer(valid), _buffer(data)], null_count=nulls)


def as_headers(rows: int, buffers: tuple[Any, ...]) -> pa.Array:
    """Return a column of headers.

    buffers: (number of headers, offsets of the lists, offsets and data of the names, offsets and data of the values),
    and where values may be null, (number of those, validity) behind them.
    """
    lists, names, name_bytes, values, value_bytes, *nullable = buffers[1:]
    nulls, valid = nullable or (0, None)
    name = as_text((0, None, names, name_bytes))
    value = as_bytes(pa.binary(), (nulls, valid, values, value_bytes))
    pairs = pa.StructArray.from_arrays([name, value], fields=list(HEADER))
    return pa.Array.from_buffers(pa.list_(HEADER), rows, [None, _buffer(lists)], null_count=0, children=[pairs])


def constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column that has the same value in all rows."""
    if count > _KEPT_ROWS:
        return _repeated(value, kind, count)
    return _kept(value, kind).slice(0, count)


@lru_cache(maxsize=64)
def _kept(value: object, kind: pa.DataType) -> pa.Array:
    """Return a long constant column from a cache, because each batch needs a slice of it."""
    return _repeated(value, kind, _KEPT_ROWS)


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
