"""Record batches are read and built. The bytes are walked natively; a batch takes a few calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyreplog._native.kafka.record_batch import (
    HEADER_BYTES,
    RecordBatchHeader,
    RecordColumns,
    check_batch,
    encode_batch,
    encode_records,
    read_records,
)
from pyreplog._native.kafka.transcode import transcode_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.record_batches.compression import compress, decompress

UNCOMPRESSED_MAX = 128 << 20
"""Bytes of the records of one batch, uncompressed, unless the caller says another limit."""


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
