"""A Kafka record batch, version 2, as a broker checks and stamps it. Native code copies it, compares its CRC in one
pass, and walks the records within their bounds; those of compressed batches after a decompression that has a limit.

The CRC covers all bytes from the attributes on, so base offset and leader epoch can be stamped without another pass.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.kafka.record_batch import (
    ProducedBatch,
    RecordBatchHeader,
    peek_header,
    stamp_batch,
    take_produced,
)
from pyreplog._native.system.checksum import crc32c
from pyreplog.partition.protocol.append_origin import OriginChecks
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.record_batches.batches import read_batch
from pyreplog.record_batches.compression import decompress

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAGIC = 2
HEAD_BYTES = 61
TRANSACTIONAL = 0x10
CONTROL = 0x20
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_UNCOMPRESSED_MIN, _UNCOMPRESSED_MAX = 16 << 20, 128 << 20  # readers refuse more than the latter
_COMPRESSION_RATIO_MAX = 64


class AppendLimits(NamedTuple):
    """Limits of the batches of one topic.

    Attributes:
        max_message_bytes: maximal size of a batch (`max.message.bytes`).
        before_ms: maximal age of a batch, milliseconds (`message.timestamp.before.max.ms`); None: no limit.
        after_ms: milliseconds by which a batch may be in the future (`message.timestamp.after.max.ms`); None: no limit.
    """

    max_message_bytes: int = 1_048_588
    before_ms: int | None = None
    after_ms: int | None = 3_600_000

    @property
    def max_uncompressed_bytes(self) -> int:
        """Maximal size of the records of a compressed batch after decompression: 64 times `max_message_bytes`, but at
        least 16 MiB and at most 128 MiB."""
        return _max_uncompressed_bytes(self.max_message_bytes)


@lru_cache(maxsize=256)
def _max_uncompressed_bytes(max_message_bytes: int) -> int:
    return min(max(_COMPRESSION_RATIO_MAX * max_message_bytes, _UNCOMPRESSED_MIN), _UNCOMPRESSED_MAX)


def check_batch(
    data: ReadableBuffer, checks: OriginChecks, limits: AppendLimits, now_ms: int, *, keys_required: bool = False
) -> ProducedBatch | tuple[ErrorCode, str]:  # fmt: skip
    """Copy a batch, and make the checks of its origin that need no log; each record is walked.

    Args:
        data: the bytes of the append.
        checks: the checks of the origin.
        limits: the limits of the topic.
        now_ms: the wall time in milliseconds.
        keys_required: whether each record must have a key, as in a compacted topic.

    Returns:
        The copy, which the log stamps; or the error code and the reason in words.
    """
    oldest, newest, (max_bytes, before_ms, after_ms) = _EARLIEST, _LATEST, limits
    if checks.timestamps:
        if before_ms is not None:
            oldest = max(now_ms - before_ms, _EARLIEST)
        if after_ms is not None and now_ms + after_ms < newest:
            newest = now_ms + after_ms
    if not checks.size or max_bytes > _LATEST:
        max_bytes = _LATEST
    taken = take_produced(
        data, max_bytes=max_bytes, sent_by_client=checks.shape, oldest=oldest, newest=newest,
        keys_required=keys_required, decompress=decompress, max_uncompressed=limits.max_uncompressed_bytes,
    )  # fmt: skip
    if isinstance(taken, tuple):
        return ErrorCode(taken[0]), taken[1]
    if taken.header.control and marker_of(taken.data) is None:
        return ErrorCode.INVALID_RECORD, "expected the marker of a transaction, found another control batch"
    return taken


def records_without_keys(data: ReadableBuffer, limits: AppendLimits) -> list[int]:
    """Return the numbers of the records that have no key, from 0 on.

    Args:
        data: a batch that `check_batch` has refused for want of a key.
        limits: the limits of the topic.
    """
    _, records = read_batch(bytes(data), max_uncompressed=limits.max_uncompressed_bytes)
    return [int(number) for number in (records.key_size < 0).nonzero()[0]]


def stamped(batch: ReadableBuffer, base_offset: int, leader_epoch: int, append_time_ms: int | None = None) -> bytearray:
    """Return a batch as its leader appends it, with offset, leader epoch and time stamped.

    Args:
        batch: the batch as the client sent it.
        base_offset: offset of its first record.
        leader_epoch: number of the leader's epoch.
        append_time_ms: the time of the append, which replaces the producer's (LogAppendTime); None: the producer's
            stays.
    """
    copy = bytearray(batch)
    time_ms = -1 if append_time_ms is None else append_time_ms
    stamp_batch(copy, base_offset, leader_epoch, log_append_time=time_ms)
    return copy


def marker_of(batch: ReadableBuffer) -> TransactionMarker | None:
    """Return the transaction marker in a batch of the log; None: it has no marker."""
    head = peek_header(batch)
    return None if head is None or not head.control else _marker_of(head, memoryview(batch))


def _marker_of(head: RecordBatchHeader, view: memoryview) -> TransactionMarker | None:
    """Decode one record without headers or compression. Key: version, 0 (abort) or 1 (commit); value: version, epoch of
    the coordinator."""
    fields: list[bytes] = []
    try:
        at = HEAD_BYTES
        size, at = _varint(view, at)
        stop = at + size
        at += 1  # attributes
        for _ in range(2):  # deltas of time and offset
            _, at = _varint(view, at)
        for _ in range(2):
            size, at = _varint(view, at)
            if not 0 <= size <= stop - at:
                return None
            fields.append(bytes(view[at : at + size]))
            at += size
    except IndexError:
        return None
    key, value = fields
    if stop != len(view) or head.count != 1 or len(key) < 4 or len(value) < 6 or not head.transactional:
        return None
    kind = int.from_bytes(key[2:4], "big")
    if kind > 1:
        return None
    return TransactionMarker(
        head.producer_id, head.producer_epoch, int.from_bytes(value[2:6], "big", signed=True), kind == 1
    )


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a zigzag number and its end. Raises IndexError if the bytes end before the number."""
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        if shift > 63:
            raise IndexError


def end_marker(marker: TransactionMarker, timestamp_ms: int) -> bytes:
    """Return the control batch of a marker.

    Args:
        marker: the marker.
        timestamp_ms: its time, milliseconds.
    """
    key = (0).to_bytes(2, "big") + int(marker.is_commit).to_bytes(2, "big")
    value = (0).to_bytes(2, "big") + marker.coordinator_epoch.to_bytes(4, "big", signed=True)
    record = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    body = bytes([2 * len(record)]) + record
    return encode_batch(
        body, 1, attributes=TRANSACTIONAL | CONTROL, producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch, base_sequence=-1, timestamp_ms=timestamp_ms,
    )  # fmt: skip


def encode_batch(
    records: bytes, count: int, *, attributes: int = 0, producer_id: int = -1, producer_epoch: int = -1,
    base_sequence: int = -1, timestamp_ms: int = -1,
) -> bytes:  # fmt: skip
    """Return a batch of records that are encoded already.

    Args:
        records: the records, perhaps compressed.
        count: their number.
        attributes: attribute bits of the header.
        producer_id: id of an idempotent producer; -1: no producer.
        producer_epoch: epoch of the producer.
        base_sequence: sequence number of the first record.
        timestamp_ms: timestamp of all records, milliseconds.
    """
    fields = (attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, count)
    tail = Struct(">hiqqqhii").pack(*fields) + records
    return Struct(">qiibI").pack(0, 9 + len(tail), -1, MAGIC, crc32c(tail)) + tail
