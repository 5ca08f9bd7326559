"""Arrow columns of a batch of records. Buffers come from native code: no Python object is made for a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pyreplog._native import arrowcolumns
from pyreplog._native.batch import RecordBatch
from pyreplog.spark.slices import Slice

APPEND_TIME = 1
"""Kafka's timestampType of a time that the log gave."""

NO_PARTITION = -1

_TIME = pa.timestamp("us", tz="UTC")
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
    "timestamp": _TIME, "timestampType": pa.int32(), "headers": pa.list_(_HEADER), "size": pa.int32(),
    "ledgerId": pa.int64(), "entryId": pa.int64(), "segment": pa.string(), "position": pa.int64(),
    "producerName": pa.string(), "sequenceId": pa.int64(), "publishTime": _TIME, "eventTime": _TIME,
    "crcOk": pa.bool_(),
}  # fmt: skip


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """As Spark expects it; what is no column of ours is that of corrupt records."""
    return pa.schema([(name, TYPES.get(name, pa.binary())) for name in columns])


def arrow_batch(batch: RecordBatch, schema: pa.Schema, part: Slice) -> pa.RecordBatch:
    """The columns of a schema, of verified records (or of walked ones, as far as no value is among them)."""
    arrays = [
        _MAKERS[name](batch, part) if name in _MAKERS else pa.nulls(len(batch), pa.binary()) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def corrupt_row(schema: pa.Schema, part: Slice, position: int, raw: bytes) -> pa.RecordBatch:
    """One row for bytes that are no record: it says where they lie, and all that depends on them is null."""
    known = {
        "topic": part.log.topic, "partition": NO_PARTITION, "segment": part.file, "position": position, "crcOk": False,
    }  # fmt: skip
    row = [known.get(name) if name in TYPES else raw for name in schema.names]
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- makers: (batch, slice) -> array ---------------------------------------------------------------------------


def _buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _binary(kind: pa.DataType, found: tuple[int, Any, Any, Any]) -> pa.Array:
    nulls, valid, offsets, data = found
    return pa.Array.from_buffers(
        kind, len(offsets) // 4 - 1, [_buffer(valid), _buffer(offsets), _buffer(data)], null_count=nulls
    )  # fmt: skip


def _numbers(kind: pa.DataType, data: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(data), [None, _buffer(data)], null_count=0)


def _attribute_numbers(kind: pa.DataType, batch: RecordBatch, tag: int) -> pa.Array:
    nulls, valid, data = arrowcolumns.number_column(batch, tag)
    return pa.Array.from_buffers(kind, len(batch), [_buffer(valid), _buffer(data)], null_count=nulls)


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _headers(batch: RecordBatch) -> pa.Array:
    count, lists, names, name_bytes, values, value_bytes = arrowcolumns.property_columns(batch)
    name = pa.StringArray.from_buffers(count, _buffer(names), _buffer(name_bytes))
    value = pa.Array.from_buffers(pa.binary(), count, [None, _buffer(values), _buffer(value_bytes)], null_count=0)
    pairs = pa.StructArray.from_arrays([name, value], fields=list(_HEADER))
    return pa.Array.from_buffers(
        pa.list_(_HEADER), len(batch), [None, _buffer(lists)], null_count=0, children=[pairs]
    )  # fmt: skip


Maker = Callable[[RecordBatch, Slice], pa.Array]

_MAKERS: dict[str, Maker] = {
    "key": lambda batch, _: _binary(pa.binary(), arrowcolumns.key_column(batch)),
    "value": lambda batch, _: _binary(pa.binary(), arrowcolumns.value_column(batch)),
    "topic": lambda batch, part: _constant(part.log.topic, pa.string(), len(batch)),
    "partition": lambda batch, _: _constant(NO_PARTITION, pa.int32(), len(batch)),
    "offset": lambda batch, _: _numbers(pa.int64(), batch.entry),
    "timestamp": lambda batch, _: _numbers(_TIME, batch.timestamp),
    "timestampType": lambda batch, _: _constant(APPEND_TIME, pa.int32(), len(batch)),
    "headers": lambda batch, _: _headers(batch),
    "size": lambda batch, _: pa.Array.from_buffers(
        pa.int32(), len(batch), [None, _buffer(arrowcolumns.size_column(batch))], null_count=0
    ),
    "ledgerId": lambda batch, _: _numbers(pa.int64(), batch.ledger),
    "entryId": lambda batch, _: _numbers(pa.int64(), batch.entry),
    "segment": lambda batch, part: _constant(part.file, pa.string(), len(batch)),
    "position": lambda batch, _: _numbers(pa.int64(), batch.position),
    "producerName": lambda batch, _: _binary(
        pa.string(), arrowcolumns.attribute_column(batch, arrowcolumns.TAG_PRODUCER)
    ),
    "sequenceId": lambda batch, _: _attribute_numbers(pa.int64(), batch, arrowcolumns.TAG_SEQUENCE),
    "publishTime": lambda batch, _: _numbers(_TIME, batch.timestamp),
    "eventTime": lambda batch, _: _attribute_numbers(_TIME, batch, arrowcolumns.TAG_EVENT_TIME),
    "crcOk": lambda batch, _: _constant(True, pa.bool_(), len(batch)),
}
