"""The head of a Kafka record batch, version 2: what a broker checks and stamps. Records are not looked into.

The CRC covers all from the attributes on, so that base offset and leader epoch can be stamped without another pass.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.system.checksum import crc32c
from pyreplog.partition.protocol.append_origin import OriginChecks
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.producers import ProducerBatch
from pyreplog.partition.protocol.transactions import TransactionMarker

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAGIC = 2
HEAD_BYTES = 61
_HEAD = Struct(">qiibIhiqqqhii")
_LENGTH_FROM = 12
"""The length counts the bytes from here on."""
_CRC_FROM = 21
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
TIMESTAMP_MAX_MS = ((1 << 63) - 1) // 1000
"""A later time does not fit into the microseconds of a log."""


class RecordBatchHead(NamedTuple):
    """The head of a batch; its fields as they are on the wire.

    Attributes:
        base_offset: offset of the first record; 0 from a client.
        length: bytes from the leader epoch on.
        leader_epoch: of the leader that appended it.
        magic: version of the format, 2.
        crc: CRC-32C of all from the attributes on.
        attributes: bits: compression (3), LogAppendTime, transactional, control.
        last_offset_delta: of the last record.
        base_timestamp: of the first record, milliseconds.
        max_timestamp: the highest one, milliseconds.
        producer_id: of an idempotent producer; -1: none.
        producer_epoch: of the producer.
        base_sequence: sequence number of the first record.
        record_count: number of records.
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def producer(self) -> ProducerBatch | None:
        """The batch of an idempotent producer; None: it is of another one, or a control batch."""
        if self.producer_id < 0 or self.is_control:
            return None
        return ProducerBatch(self.producer_id, self.producer_epoch, self.base_sequence, self.offsets)

    @property
    def offsets(self) -> int:
        """How many offsets it takes."""
        return self.last_offset_delta + 1


class AppendLimits(NamedTuple):
    """Limits of the batches of one topic.

    Attributes:
        max_message_bytes: size of a batch (`max.message.bytes`).
        before_ms: a batch is not older than this (`message.timestamp.before.max.ms`); None: it may be.
        after_ms: a batch is not further in the future than this (`message.timestamp.after.max.ms`); None: it may be.
    """

    max_message_bytes: int = 1_048_588
    before_ms: int | None = None
    after_ms: int | None = 3_600_000


class CheckedBatch(NamedTuple):
    """A batch after the checks that need no log.

    Attributes:
        code: NONE, or why it is refused.
        message: the error in words.
        head: its head; None: it was refused.
        marker: the marker of a transaction that it holds.
    """

    code: ErrorCode
    message: str = ""
    head: RecordBatchHead | None = None
    marker: TransactionMarker | None = None


def head_of(batch: ReadableBuffer) -> RecordBatchHead | None:
    """Return the head of a batch; None: these bytes are none."""
    if len(memoryview(batch)) < HEAD_BYTES:
        return None
    head = RecordBatchHead._make(_HEAD.unpack_from(batch))
    return head if head.magic == MAGIC and head.length == len(memoryview(batch)) - _LENGTH_FROM else None


def check_batch(data: ReadableBuffer, checks: OriginChecks, limits: AppendLimits, now_ms: int) -> CheckedBatch:
    """Make the checks of an origin that need no log.

    Args:
        data: the bytes that an append brings.
        checks: of the origin.
        limits: of the topic.
        now_ms: the wall time in milliseconds.
    """
    view = memoryview(data)
    size = len(view)
    if size < HEAD_BYTES:
        return _refuse(
            ErrorCode.CORRUPT_MESSAGE, f"expected a record batch of {HEAD_BYTES} bytes or more, found {size}"
        )
    head = RecordBatchHead._make(_HEAD.unpack_from(view))
    if head.magic != MAGIC:
        return _refuse(ErrorCode.INVALID_RECORD, f"expected magic {MAGIC}, found {head.magic}")
    if not HEAD_BYTES <= head.length + _LENGTH_FROM <= size:
        return _refuse(
            ErrorCode.CORRUPT_MESSAGE, f"length: expected at most {size - _LENGTH_FROM}, found {head.length}"
        )
    if head.length + _LENGTH_FROM != size:
        return _refuse(
            ErrorCode.INVALID_RECORD, f"expected one batch, found {size - head.length - _LENGTH_FROM} bytes behind it"
        )
    if checks.size and size > limits.max_message_bytes:
        return _refuse(ErrorCode.MESSAGE_TOO_LARGE, f"expected at most {limits.max_message_bytes} bytes, found {size}")
    if crc32c(view[_CRC_FROM:]) != head.crc:
        return _refuse(
            ErrorCode.CORRUPT_MESSAGE, f"expected a batch of CRC {head.crc:#x}, found {crc32c(view[_CRC_FROM:]):#x}"
        )
    if message := _misshapen(head, checks):
        return _refuse(ErrorCode.INVALID_RECORD, message)
    if not head.attributes & LOG_APPEND_TIME and (message := _untimely(head, checks, limits, now_ms)):
        return _refuse(ErrorCode.INVALID_TIMESTAMP, message)
    if not head.is_control:
        return CheckedBatch(ErrorCode.NONE, "", head)
    marker = _marker_of(head, view)
    if marker is None:
        return _refuse(ErrorCode.INVALID_RECORD, "expected the marker of a transaction, found another control batch")
    return CheckedBatch(ErrorCode.NONE, "", head, marker)


def _refuse(code: ErrorCode, message: str) -> CheckedBatch:
    return CheckedBatch(code, message)


def _misshapen(head: RecordBatchHead, checks: OriginChecks) -> str:
    """Return what is wrong with a batch whose bytes are those that were sent; "": nothing."""
    if head.last_offset_delta < 0 or head.record_count < 1:
        return f"expected 1 record or more, found {head.record_count}, and {head.last_offset_delta + 1} offsets"
    if head.record_count != head.last_offset_delta + 1:  # of compaction, which no log of ours has had
        return (
            f"expected as many records as offsets, found {head.record_count}, and {head.last_offset_delta + 1} offsets"
        )
    if head.is_transactional and head.producer_id < 0:
        return "expected a producer id in a transaction, found none"
    if not checks.shape:
        return ""
    if head.attributes & LOG_APPEND_TIME:
        return "expected a batch with the producer's time, found the log's"
    if head.base_offset:
        return f"base offset: expected 0, found {head.base_offset}"
    if head.is_control:
        return "expected records, found a control batch"
    if head.producer_id >= 0 and (head.base_sequence < 0 or head.producer_epoch < 0):
        return f"expected a sequence number and an epoch, found {head.base_sequence} and {head.producer_epoch}"
    return ""


def _untimely(head: RecordBatchHead, checks: OriginChecks, limits: AppendLimits, now_ms: int) -> str:
    earliest, latest = min(head.base_timestamp, head.max_timestamp), max(head.base_timestamp, head.max_timestamp)
    if latest > TIMESTAMP_MAX_MS or earliest < -TIMESTAMP_MAX_MS:
        return f"timestamp: expected one that fits into microseconds, found {latest} ms"
    if not checks.timestamps or head.is_control or earliest == latest == -1:  # -1: none
        return ""
    if limits.after_ms is not None and latest > now_ms + limits.after_ms:
        return f"timestamp: expected at most {now_ms + limits.after_ms} ms, found {latest}"
    if limits.before_ms is not None and earliest < now_ms - limits.before_ms:
        return f"timestamp: expected at least {now_ms - limits.before_ms} ms, found {earliest}"
    return ""


def stamped(batch: ReadableBuffer, base_offset: int, leader_epoch: int, append_time_ms: int | None = None) -> bytearray:
    """Return a batch as its leader appends it.

    Args:
        batch: as it was sent.
        base_offset: of its first record.
        leader_epoch: number of the leader's epoch.
        append_time_ms: the time of the append, which counts in place of the producer's (LogAppendTime); None: the
            producer's counts.
    """
    copy = bytearray(batch)
    _OFFSET.pack_into(copy, 0, base_offset)
    _EPOCH.pack_into(copy, _LENGTH_FROM, leader_epoch & 0x7FFFFFFF)
    if append_time_ms is not None:
        copy[_CRC_FROM + 1] |= LOG_APPEND_TIME
        _OFFSET.pack_into(copy, 35, append_time_ms)
        copy[17:21] = crc32c(memoryview(copy)[_CRC_FROM:]).to_bytes(4, "big")
    return copy


def marker_of(batch: ReadableBuffer) -> TransactionMarker | None:
    """Return the marker of a transaction in a batch of the log; None: it holds none."""
    head = head_of(batch)
    return None if head is None or not head.is_control else _marker_of(head, memoryview(batch))


def _marker_of(head: RecordBatchHead, view: memoryview) -> TransactionMarker | None:
    """One record without headers or compression. Its key: version, 0 (abort) or 1 (commit); its value: version, the
    coordinator's epoch."""
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
    if stop != len(view) or head.record_count != 1 or len(key) < 4 or len(value) < 6 or not head.is_transactional:
        return None
    kind = int.from_bytes(key[2:4], "big")
    if kind > 1:
        return None
    return TransactionMarker(
        head.producer_id, head.producer_epoch, int.from_bytes(value[2:6], "big", signed=True), kind == 1
    )


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends. Raises IndexError: there is none."""
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
        attributes: bits of the head.
        producer_id: of an idempotent producer; -1: none.
        producer_epoch: of the producer.
        base_sequence: sequence number of the first record.
        timestamp_ms: of all records, milliseconds.
    """
    fields = (attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, count)
    tail = Struct(">hiqqqhii").pack(*fields) + records
    return Struct(">qiibI").pack(0, 9 + len(tail), -1, MAGIC, crc32c(tail)) + tail
