"""Arrow columns of the records in Kafka's record batches.

Native code makes the buffers, so that no record needs a Python object.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from pyreplog._native.kafka.logged_batches import NUMBERS, LoggedRows
from pyreplog.tables.arrays import TIME, TYPES
from pyreplog.tables.buffers import as_bytes, as_headers, as_some_numbers, constant
from pyreplog.tables.slices import SliceOrigin


def logged_batch(rows: LoggedRows, start: int, stop: int, schema: pa.Schema, origin: SliceOrigin) -> pa.RecordBatch:
    """Return the columns of a schema for the rows from `start` to before `stop`."""
    arrays = [
        _MAKERS[name](rows, start, stop, origin)
        if name in _MAKERS
        else pa.nulls(stop - start, TYPES.get(name, pa.binary()))
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


Maker = Callable[[LoggedRows, int, int, SliceOrigin], pa.Array]


def _number(name: str, kind: pa.DataType) -> Maker:
    which = NUMBERS[name]
    return lambda rows, start, stop, _: as_some_numbers(kind, stop - start, rows.number_column(which, start, stop))


def _position(rows: LoggedRows, start: int, stop: int, origin: SliceOrigin) -> pa.Array:
    if origin.segment is None:
        return pa.nulls(stop - start, pa.int64())
    return as_some_numbers(pa.int64(), stop - start, rows.number_column(NUMBERS["position"], start, stop))


_MAKERS: dict[str, Maker] = {
    "key": lambda rows, start, stop, _: as_bytes(pa.binary(), rows.bytes_column(start, stop, keys=True)),
    "value": lambda rows, start, stop, _: as_bytes(pa.binary(), rows.bytes_column(start, stop, keys=False)),
    "topic": lambda _, start, stop, origin: constant(origin.topic, pa.string(), stop - start),
    "partition": lambda _, start, stop, origin: constant(origin.partition, pa.int32(), stop - start),
    "offset": _number("offset", pa.int64()),
    "timestamp": _number("timestamp", TIME),
    "timestampType": _number("timestamp_type", pa.int32()),
    "headers": lambda rows, start, stop, _: as_headers(stop - start, rows.header_columns(start, stop)),
    "size": _number("size", pa.int32()),
    "ledgerId": lambda _, start, stop, __: constant(0, pa.int64(), stop - start),
    "entryId": _number("offset", pa.int64()),
    "segment": lambda _, start, stop, origin: constant(origin.segment, pa.string(), stop - start),
    "position": _position,
    "sequenceId": _number("sequence", pa.int64()),
    "publishTime": _number("append_time", TIME),
    "eventTime": _number("create_time", TIME),
    "crc": _number("crc", pa.int64()),
    "storedSize": _number("stored_size", pa.int32()),
    "crcOk": lambda _, start, stop, __: constant(True, pa.bool_(), stop - start),
    "bookie": lambda _, start, stop, origin: constant(origin.bookie, pa.string(), stop - start),
}
