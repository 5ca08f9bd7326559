"""Record batches of clients are checked, read and built. The bytes are walked natively; a batch takes a few calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyreplog._native.kafka.record_batch import (
    HEADER_BYTES,
    INVALID_RECORD,
    RecordBatchHeader,
    RecordColumns,
    check_batch,
    encode_batch,
    encode_records,
    read_records,
)
from pyreplog._native.kafka.transcode import transcode_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidRecordBatchError
from pyreplog.record_batches.compression import CODECS, UNSUPPORTED_COMPRESSION_TYPE, compress, decompress

UNCOMPRESSED_MAX = 128 << 20
"""Bytes of the records of one batch, uncompressed, unless the caller says another limit."""


class ProducedBatch(NamedTuple):
    """A batch that may be appended.

    Attributes:
        header: of the batch.
        max_timestamp: the greatest timestamp of its records, ms since 1970; -1: none. The header's may be wrong.
        max_timestamp_record: number of the first record that has it; -1: none.
    """

    header: RecordBatchHeader
    max_timestamp: int
    max_timestamp_record: int


def check_produced(
    data: bytes | memoryview | None,
    *,
    zstd: bool = True,
    earliest_ms: int = -(1 << 63),
    latest_ms: int = (1 << 63) - 1,
    max_uncompressed: int = UNCOMPRESSED_MAX,
) -> ProducedBatch:
    """Check the records of one partition of a Produce request: exactly one batch, as Kafka demands from version 3 on.

    Args:
        data: the records of the request.
        zstd: whether the request's version allows that codec (from 7 on).
        earliest_ms: timestamp below which records are refused, ms since 1970.
        latest_ms: timestamp above which records are refused.
        max_uncompressed: bytes of the records, at most.

    Raises:
        InvalidRecordBatchError: it cannot be appended; `error_code` is for the response.
        MissingExtraError: the package with the codec is not installed.
    """
    if data is None or len(data) == 0:
        raise InvalidRecordBatchError(INVALID_RECORD, -1, 0, "one record batch", "none")
    header = check_batch(data)
    if header.size != len(data):
        raise InvalidRecordBatchError(INVALID_RECORD, -1, header.size, "one record batch", "more bytes behind it")
    header.check_produced()
    if header.codec == CODECS["zstd"] and not zstd:
        raise InvalidRecordBatchError(UNSUPPORTED_COMPRESSION_TYPE, -1, 21, "a codec that this version has", "zstd")
    records = decompress(header.codec, memoryview(data)[HEADER_BYTES:], max_uncompressed)
    return ProducedBatch(header, *header.check_records(records, earliest=earliest_ms, latest=latest_ms))


def read_batch(
    data: bytes | memoryview, *, start: int = 0, max_uncompressed: int = UNCOMPRESSED_MAX
) -> tuple[RecordBatchHeader, RecordColumns]:
    """Read the batch that begins at byte `start`: its header, and its records as columns.

    Args:
        data: bytes-like; `start + header.size` is the byte behind the batch.
        start: number of a byte.
        max_uncompressed: bytes of the records, at most.

    Raises:
        InvalidRecordBatchError: it is damaged.
        MissingExtraError: the package with the codec is not installed.
    """
    header = check_batch(data, start=start)
    body = memoryview(data)[start + HEADER_BYTES : start + header.size]
    return header, read_records(header, decompress(header.codec, body, max_uncompressed))


def build_batch(
    values: Sequence[bytes | None],
    *,
    timestamps_ms: Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Iterable[tuple[bytes, bytes | None]]] | None = None,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build a batch of messages, for a client that fetches them.

    Args:
        values: one a record; None: null.
        timestamps_ms: one a record, ms since 1970.
        keys: one a record; None: no record has one.
        headers: pairs of name and value for each record; None: no record has any.
        codec: its number.
        base_offset: offset of the first record. The others follow.
        leader_epoch: of the log.

    Raises:
        InvalidArgumentError: there are no records, they have other types, or the columns other lengths.
        InvalidRecordBatchError: the codec is unknown.
        MissingExtraError: the package with the codec is not installed.
    """
    body = compress(codec, encode_records(values, keys, timestamps_ms, headers))
    times = (timestamps_ms[0], max(timestamps_ms)) if len(timestamps_ms) else (0, 0)
    return encode_batch(
        body, len(values), base_timestamp=int(times[0]), max_timestamp=int(times[1]), codec=codec,
        base_offset=base_offset, leader_epoch=leader_epoch,
    )  # fmt: skip


def transcode(batch: MessageBatch, *, codec: int = 0, leader_epoch: int = -1) -> bytes:
    """Return messages of a topic as a record batch: offsets, keys, values; properties as headers; event times.

    Args:
        batch: messages whose offsets follow each other. One without an event time gets the time of its publication.
        codec: number of the codec.
        leader_epoch: of the log.

    Raises:
        InvalidArgumentError: there are no messages, or offsets are missing between them.
        InvalidRecordBatchError: the codec is unknown.
        MissingExtraError: the package with the codec is not installed.
    """
    body, first_ms, latest_ms = transcode_messages(batch)
    return encode_batch(
        compress(codec, body), len(batch), base_timestamp=first_ms, max_timestamp=latest_ms, codec=codec,
        base_offset=int(batch.offset[0]), leader_epoch=leader_epoch,
    )  # fmt: skip
