"""Kafka's records as messages of topics on ledgers, and back: nothing of a record is lost.

FORMAT.md, "Property of a Kafka record", has the bytes of what a message keeps beside its key, value and properties.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pyreplog._native.kafka.record_batch import (
    HEADER_BYTES,
    INVALID_TIMESTAMP,
    NO_TIMESTAMP,
    RecordBatchHeader,
    RecordColumns,
    encode_batch,
    encode_records,
    read_records,
    take_produced,
)
from pyreplog._native.kafka.transcode import transcode_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidRecordBatchError
from pyreplog.record_batches.compression import decompress
from pyreplog.topic.model.times import KnownTime, KnownTimes

PROPERTY = "kafka.record"
"""Name of the property for what a message cannot hold otherwise."""

UNCOMPRESSED_MAX = 64 << 20
"""Maximum bytes of the records of a produced batch, uncompressed: a small batch cannot fill the memory."""

Header: TypeAlias = "tuple[bytes, bytes | None]"

_VERSION, _NULL_VALUE, _HEADERS = 1, 1, 2
_HEAD = struct.Struct("<BB")
_COUNT = struct.Struct("<I")
_VALUE_SIZE = struct.Struct("<i")
_NAME_MAX = 65_535
_TIME_MAX_MS = ((1 << 63) - 1) // 1000


class ProducedRecords(NamedTuple):
    """The records of a produced batch, as columns of messages.

    Attributes:
        header: header of the batch.
        values: the values.
        keys: the keys; None: the record has none.
        properties: the properties; None: the message has none.
        event_times: the timestamps.
    """

    header: RecordBatchHeader
    values: list[bytes]
    keys: list[bytes | None]
    properties: list[dict[str, str | bytes] | None] | None
    event_times: Any


def decode_produced(data: bytes, *, max_uncompressed: int = UNCOMPRESSED_MAX) -> ProducedRecords:
    """Return the records of one partition of a Produce request as messages.

    Args:
        data: exactly one batch of version 2, with any codec.
        max_uncompressed: maximum bytes of its records, uncompressed.

    Raises:
        InvalidRecordBatchError: the batch is damaged, or no producer may send it.
        MissingExtraError: the package with its codec is not installed.
    """
    produced = take_produced(data)  # checks the header, the checksum, and records that are not compressed
    if isinstance(produced, tuple):
        expected, _, found = produced[1].removeprefix("expected ").rpartition(", found ")
        raise InvalidRecordBatchError(produced[0], -1, 0, expected, found)
    header = produced.header
    columns = read_records(header, decompress(header.codec, memoryview(data)[HEADER_BYTES:], max_uncompressed))
    if header.codec and columns.timestamp.max() > _TIME_MAX_MS:
        found = f"{columns.timestamp.max()}"
        raise InvalidRecordBatchError(INVALID_TIMESTAMP, -1, HEADER_BYTES, f"timestamps up to {_TIME_MAX_MS}", found)
    values: Sequence[bytes | None] = columns.values()
    nulls = columns.value_size < 0
    properties: list[dict[str, str | bytes] | None] | None = None
    if nulls.any() or columns.header_count.any():
        values, properties = _with_properties(columns, values, nulls.tolist())
    return ProducedRecords(header, list(values), columns.keys(), properties, _event_times(columns))  # type: ignore[arg-type]


def _with_properties(
    columns: RecordColumns, values: Sequence[bytes | None], nulls: list[bool]
) -> tuple[list[bytes | None], list[dict[str, str | bytes] | None]]:  # fmt: skip
    """Return values without nulls, and the properties of each message: the only Python for each record with headers."""
    counts = columns.header_count.tolist()
    properties = [
        _properties_of(columns.headers(number) if counts[number] else (), is_null=is_null)
        if counts[number] or is_null
        else None
        for number, is_null in enumerate(nulls)
    ]
    return [b"" if value is None else value for value in values], properties


def _properties_of(headers: Sequence[Header], *, is_null: bool) -> dict[str, str | bytes]:
    properties: dict[str, str | bytes] = {}
    is_exact = True
    for name, value in headers:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            is_exact = False
            continue
        is_exact = is_exact and value is not None and text not in properties and text != PROPERTY
        if len(name) > _NAME_MAX:
            is_exact = False
        elif value is not None:
            properties[text] = value
    if is_null or not is_exact:
        properties[PROPERTY] = _encode(None if is_exact else headers, is_null=is_null)
    return properties


def _event_times(columns: RecordColumns) -> Any:
    times_ms = columns.timestamp
    if (times_ms != NO_TIMESTAMP).all():
        return (times_ms * 1000).view(KnownTimes)
    return [None if time_ms == NO_TIMESTAMP else KnownTime(time_ms * 1000) for time_ms in times_ms.tolist()]


def encode_fetched(batch: MessageBatch) -> bytes:
    """Return messages as a record batch for a client that fetches them.

    Args:
        batch: messages whose offsets follow each other. One without an event time gets the time of its publication.

    Raises:
        InvalidArgumentError: there are no messages, or they have more than 2 GiB.
    """
    body, first_ms, latest_ms = transcode_messages(batch)
    if PROPERTY.encode() in body:
        body = _encode_exactly(batch)
    return encode_batch(
        body, len(batch), base_timestamp=first_ms, max_timestamp=latest_ms, base_offset=int(batch.offset[0])
    )


def _encode_exactly(batch: MessageBatch) -> bytes:
    """Return records of which some are in the property, one by one in Python: batches without it never come here."""
    values: list[bytes | None] = list(batch.values())
    times_us = np.where(batch.event_time == np.iinfo(np.int64).min, batch.publish_time, batch.event_time)
    headers: list[Iterable[Header]] = []
    for number in range(len(batch)):
        properties = batch.properties(number)
        kept = _decode(properties[PROPERTY]) if PROPERTY in properties else None
        if kept is None:
            headers.append([(name.encode(), value) for name, value in properties.items()])
            continue
        is_null, listed = kept
        if is_null and not values[number]:
            values[number] = None
        if listed is None:
            listed = [(name.encode(), value) for name, value in properties.items() if name != PROPERTY]
        headers.append(listed)
    return encode_records(values, batch.keys(), (np.maximum(times_us, 0) // 1000).tolist(), headers)


def _encode(headers: Sequence[Header] | None, *, is_null: bool) -> bytes:
    """Return the value of the property. headers: None: the other properties are the headers."""
    head = _HEAD.pack(_VERSION, (_NULL_VALUE if is_null else 0) | (0 if headers is None else _HEADERS))
    if headers is None:
        return head
    parts = [head, _COUNT.pack(len(headers))]
    for name, value in headers:
        parts += [_COUNT.pack(len(name)), name, _VALUE_SIZE.pack(-1 if value is None else len(value)), value or b""]
    return b"".join(parts)


def _decode(data: bytes) -> tuple[bool, list[Header] | None] | None:
    """Return whether the value is null, and the headers; None: these bytes are no value of the property."""
    try:
        version, flags = _HEAD.unpack_from(data)
        if version != _VERSION or not 0 < flags <= _NULL_VALUE | _HEADERS:
            return None
        at, headers = _HEAD.size, None
        if flags & _HEADERS:
            count, at, headers = _COUNT.unpack_from(data, at)[0], at + _COUNT.size, []
            for _ in range(count):
                size = _COUNT.unpack_from(data, at)[0]
                name, at = data[at + _COUNT.size : at + _COUNT.size + size], at + _COUNT.size + size
                value_size = _VALUE_SIZE.unpack_from(data, at)[0]
                at += _VALUE_SIZE.size
                headers.append((name, None if value_size < 0 else data[at : at + value_size]))
                at += max(value_size, 0)
    except struct.error:
        return None
    return (bool(flags & _NULL_VALUE), headers) if at == len(data) else None
