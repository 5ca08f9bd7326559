"""Arrow columns of a batch of records. Native code makes the buffers, so that no record needs a Python object."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.tables import arrow_columns
from pyreplog.tables.buffers import HEADER, as_bytes, as_headers, as_numbers, as_some_numbers, as_text, constant
from pyreplog.tables.slices import SliceOrigin

APPEND_TIME = 1
"""Kafka's timestampType for a time that the log assigned."""

TIME = pa.timestamp("us", tz="UTC")

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
    "timestamp": TIME, "timestampType": pa.int32(), "headers": pa.list_(HEADER), "size": pa.int32(),
    "ledgerId": pa.int64(), "entryId": pa.int64(), "segment": pa.string(), "position": pa.int64(),
    "producerName": pa.string(), "sequenceId": pa.int64(), "publishTime": TIME, "eventTime": TIME,
    "crcOk": pa.bool_(), "bookie": pa.string(), "crc": pa.int64(), "storedSize": pa.int32(),
    "originCluster": pa.string(), "originOffset": pa.int64(), "originPublishTime": TIME,
}  # fmt: skip


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of columns, with the types that Spark expects.

    An unknown name is that of the column for damaged bytes.
    """
    return pa.schema([(name, TYPES.get(name, pa.binary())) for name in columns])


def arrow_batch(batch: RecordBatch, schema: pa.Schema, origin: SliceOrigin) -> pa.RecordBatch:
    """Return the columns of a schema for verified records. Unverified records are allowed if no value is read."""
    return pa.RecordBatch.from_arrays([_array(name, batch, origin) for name in schema.names], schema=schema)


def _array(name: str, batch: RecordBatch, origin: SliceOrigin) -> pa.Array:
    if name not in _MAKERS:
        return pa.nulls(len(batch), pa.binary())
    if batch.plain and name in _OF_PARTS:
        return constant(None, TYPES[name], len(batch))
    return _MAKERS[name](batch, origin)


def corrupt_row(schema: pa.Schema, origin: SliceOrigin, raw: bytes, **known: object) -> pa.RecordBatch:
    """Return one row for bytes that are no record.

    It says where the bytes lie, as far as that is known. Columns that depend on the record are null.
    """
    known = {"crcOk": False, **origin._asdict(), **known}
    row = [known.get(name) if name in TYPES else raw for name in schema.names]
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- makers: (batch, origin) -> array --------------------------------------------------------------------------


def _positions(batch: RecordBatch, origin: SliceOrigin) -> pa.Array:
    """Return positions of records in their segment; null for entries that were read through a bookie."""
    if origin.segment is None:
        return pa.nulls(len(batch), pa.int64())
    return as_numbers(pa.int64(), len(batch), batch.position)


_OF_PARTS = {"key", "producerName", "sequenceId", "eventTime"}
"""Columns of a key or an attribute; null where a record has none."""

Maker = Callable[[RecordBatch, SliceOrigin], pa.Array]

_MAKERS: dict[str, Maker] = {
    "key": lambda batch, _: as_bytes(pa.binary(), arrow_columns.key_column(batch)),
    "value": lambda batch, _: as_bytes(pa.binary(), arrow_columns.value_column(batch)),
    "topic": lambda batch, origin: constant(origin.topic, pa.string(), len(batch)),
    "partition": lambda batch, origin: constant(origin.partition, pa.int32(), len(batch)),
    "offset": lambda batch, _: as_numbers(pa.int64(), len(batch), batch.entry),
    "timestamp": lambda batch, _: as_numbers(TIME, len(batch), batch.timestamp),
    "timestampType": lambda batch, _: constant(APPEND_TIME, pa.int32(), len(batch)),
    "headers": lambda batch, _: as_headers(len(batch), arrow_columns.property_columns(batch)),
    "size": lambda batch, _: as_numbers(pa.int32(), len(batch), arrow_columns.size_column(batch)),
    "ledgerId": lambda batch, _: as_numbers(pa.int64(), len(batch), batch.ledger),
    "entryId": lambda batch, _: as_numbers(pa.int64(), len(batch), batch.entry),
    "segment": lambda batch, origin: constant(origin.segment, pa.string(), len(batch)),
    "position": _positions,
    "producerName": lambda batch, _: as_text(arrow_columns.attribute_column(batch, arrow_columns.TAG_PRODUCER)),
    "sequenceId": lambda batch, _: as_some_numbers(
        pa.int64(), len(batch), arrow_columns.number_column(batch, arrow_columns.TAG_SEQUENCE)
    ),
    "publishTime": lambda batch, _: as_numbers(TIME, len(batch), batch.timestamp),
    "eventTime": lambda batch, _: as_some_numbers(
        TIME, len(batch), arrow_columns.number_column(batch, arrow_columns.TAG_EVENT_TIME)
    ),
    "crcOk": lambda batch, _: constant(True, pa.bool_(), len(batch)),
    "bookie": lambda batch, origin: constant(origin.bookie, pa.string(), len(batch)),
    "crc": lambda batch, _: as_numbers(pa.int64(), len(batch), arrow_columns.crc_column(batch)),
    "storedSize": lambda batch, _: pa.array(batch.stride, pa.int32()),
    "originCluster": lambda batch, _: constant(None, pa.string(), len(batch)),
    "originOffset": lambda batch, _: constant(None, pa.int64(), len(batch)),
    "originPublishTime": lambda batch, _: constant(None, TIME, len(batch)),
}
