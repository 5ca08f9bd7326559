"""Arrow columns of a batch of messages. Native code makes the buffers, so that no message needs a Python object."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from pyreplog._native.tables import arrow_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.tables.arrays import APPEND_TIME, TIME
from pyreplog.tables.buffers import as_bytes, as_headers, as_numbers, as_some_numbers, as_text, constant
from pyreplog.tables.slices import SliceOrigin


def message_batch(batch: MessageBatch, schema: pa.Schema, origin: SliceOrigin) -> pa.RecordBatch:
    """Return the columns of a schema for a batch of messages."""
    arrays = [
        _MAKERS[name](batch, origin) if name in _MAKERS else pa.nulls(len(batch), pa.binary()) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


Maker = Callable[[MessageBatch, SliceOrigin], pa.Array]

_MAKERS: dict[str, Maker] = {
    "key": lambda batch, _: as_bytes(pa.binary(), arrow_messages.key_column(batch)),
    "value": lambda batch, _: as_bytes(pa.binary(), arrow_messages.value_column(batch)),
    "topic": lambda batch, origin: constant(origin.topic, pa.string(), len(batch)),
    "partition": lambda batch, origin: constant(origin.partition, pa.int32(), len(batch)),
    "offset": lambda batch, _: as_numbers(pa.int64(), len(batch), batch.offset),
    "timestamp": lambda batch, _: as_numbers(TIME, len(batch), batch.publish_time),
    "timestampType": lambda batch, _: constant(APPEND_TIME, pa.int32(), len(batch)),
    "headers": lambda batch, _: as_headers(len(batch), arrow_messages.property_columns(batch)),
    "size": lambda batch, _: as_numbers(pa.int32(), len(batch), arrow_messages.size_column(batch)),
    "ledgerId": lambda batch, _: constant(batch.ledger, pa.int64(), len(batch)),
    "entryId": lambda batch, _: as_numbers(pa.int64(), len(batch), batch.entry_id[batch.entry_index]),
    "segment": lambda batch, _: pa.nulls(len(batch), pa.string()),
    "position": lambda batch, _: pa.nulls(len(batch), pa.int64()),
    "producerName": lambda batch, _: as_text(arrow_messages.producer_column(batch)),
    "sequenceId": lambda batch, _: as_some_numbers(pa.int64(), len(batch), arrow_messages.sequence_column(batch)),
    "publishTime": lambda batch, _: as_numbers(TIME, len(batch), batch.publish_time),
    "eventTime": lambda batch, _: as_some_numbers(TIME, len(batch), arrow_messages.event_time_column(batch)),
    "crcOk": lambda batch, _: constant(True, pa.bool_(), len(batch)),
    "bookie": lambda batch, origin: constant(origin.bookie, pa.string(), len(batch)),
    "crc": lambda batch, _: pa.nulls(len(batch), pa.int64()),
    "storedSize": lambda batch, _: pa.nulls(len(batch), pa.int32()),
    "originCluster": lambda batch, origin: as_bytes(
        pa.string(), arrow_messages.origin_cluster_column(batch, origin.clusters)
    ),
    "originOffset": lambda batch, _: as_some_numbers(
        pa.int64(), len(batch), arrow_messages.origin_offset_column(batch)
    ),
    "originPublishTime": lambda batch, _: as_some_numbers(
        TIME, len(batch), arrow_messages.origin_publish_time_column(batch)
    ),
}
