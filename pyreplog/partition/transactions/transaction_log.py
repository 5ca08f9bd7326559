"""Records of `__transaction_state`, with Kafka's own schemas of keys and values. FORMAT.md, "Transaction state".

A value has version 0, or version 1 if the producer ends its transactions with a higher epoch (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError

from pyreplog._native.kafka.record_batch import HEADER_BYTES, check_batch, encode_batch, encode_records, read_records
from pyreplog.errors import InvalidRecordBatchError
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_metadata import NO_PRODUCER_ID, TransactionMetadata, TransactionState

TRANSACTION_STATE = "__transaction_state"
_HEAD = Struct(">hqhib")  # version, producer id, its epoch, time-out, state
_TIMES = Struct(">qq")
_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_PREVIOUS, _NEXT, _VERSION = 0, 1, 2  # tags


def partition_of(transactional_id: str, partitions: int) -> int:
    """Return the partition of `__transaction_state` for a transactional id, as Kafka does.

    Args:
        transactional_id: the id.
        partitions: number of partitions of the topic.
    """
    code = 0
    units = transactional_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a record."""
    name = transactional_id.encode()
    return _INT16.pack(0) + _INT16.pack(len(name)) + name


def encode_value(metadata: TransactionMetadata) -> bytes:
    """Return the value of a record."""
    version = 1 if metadata.transaction_version > 1 else 0
    head = _HEAD.pack(
        version, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state
    )  # fmt: skip
    times = _TIMES.pack(metadata.updated_ms, metadata.started_ms)
    topics: dict[str, list[int]] | None = None
    if metadata.state is not TransactionState.EMPTY:
        topics = {}
        for topic, number in sorted(metadata.partitions):
            topics.setdefault(topic, []).append(number)
    if not version:
        return head + _partitions(topics) + times
    tags = [(_VERSION, _INT16.pack(metadata.transaction_version))]
    for tag, producer_id in ((_NEXT, metadata.next_producer_id), (_PREVIOUS, metadata.previous_producer_id)):
        if producer_id != NO_PRODUCER_ID:
            tags.insert(0, (tag, _INT64.pack(producer_id)))
    fields = b"".join(bytes([tag, len(value)]) + value for tag, value in tags)
    return head + _compact_partitions(topics) + times + bytes([len(tags)]) + fields


def _partitions(topics: dict[str, list[int]] | None) -> bytes:
    if topics is None:
        return _INT32.pack(-1)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += _INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)
    return b"".join(parts)


def _compact_partitions(topics: dict[str, list[int]] | None) -> bytes:
    if topics is None:
        return b"\0"
    parts = [_uvarint(len(topics) + 1)]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += _uvarint(len(name) + 1), name, _uvarint(len(numbers) + 1), *map(_INT32.pack, numbers), b"\0"
    return b"".join(parts)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


class _Reader:
    """Reads a key or a value; every length is checked against the remaining bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def number(self, form: Struct) -> int:
        return int(self.numbers(form)[0])

    def numbers(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self.at)
        self.at += form.size
        return values

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ValueError("expected a number of at most 5 bytes")

    def raw(self, size: int) -> bytes:
        self.at += self.bounded(size)
        return self._data[self.at - size : self.at]

    def bounded(self, size: int) -> int:
        """Check a length, or a number of items, each of which has at least one byte."""
        if not 0 <= size <= len(self._data) - self.at:
            raise ValueError(f"expected a length of at most {len(self._data) - self.at}, found {size}")
        return size

    def tags(self) -> dict[int, bytes]:
        fields = {}
        for _ in range(self.bounded(self.uvarint())):
            tag = self.uvarint()
            fields[tag] = self.raw(self.uvarint())
        return fields


def _invalid(at: int, what: str, error: Exception) -> InvalidRecordBatchError:
    return InvalidRecordBatchError(ErrorCode.INVALID_RECORD, -1, at, f"a {what} of {TRANSACTION_STATE}", str(error))


def decode_key(key: bytes) -> str | None:
    """Return the transactional id of a record; None: its key has a later version.

    Raises:
        InvalidRecordBatchError: the key is malformed.
    """
    reader = _Reader(key)
    try:
        if reader.number(_INT16):
            return None
        return reader.raw(reader.number(_INT16)).decode()
    except (ValueError, IndexError, StructError) as error:
        raise _invalid(reader.at, "key", error) from error


def decode_value(value: bytes) -> TransactionMetadata:
    """Return the value of a record.

    Raises:
        InvalidRecordBatchError: the value is malformed, or its version is unknown.
    """
    reader = _Reader(value)
    try:
        return _decode_value(reader)
    except (ValueError, IndexError, StructError) as error:
        raise _invalid(reader.at, "value", error) from error


def _decode_value(reader: _Reader) -> TransactionMetadata:
    version, producer_id, epoch, timeout_ms, state = reader.numbers(_HEAD)
    if version not in (0, 1):
        raise ValueError(f"expected version 0 or 1, found {version}")
    partitions = set()
    is_compact = version == 1
    for _ in range(_size(reader, is_compact=is_compact, form=_INT32)):
        topic = reader.raw(_size(reader, is_compact=is_compact, form=_INT16)).decode()
        for _ in range(_size(reader, is_compact=is_compact, form=_INT32)):
            partitions.add(TopicPartition(topic, reader.number(_INT32)))
        if is_compact:
            reader.tags()
    updated_ms, started_ms = reader.numbers(_TIMES)
    tags = reader.tags() if is_compact else {}
    return TransactionMetadata(
        producer_id, epoch, timeout_ms, TransactionState(state), frozenset(partitions), updated_ms, started_ms,
        previous_producer_id=_INT64.unpack(tags[_PREVIOUS])[0] if _PREVIOUS in tags else NO_PRODUCER_ID,
        next_producer_id=_INT64.unpack(tags[_NEXT])[0] if _NEXT in tags else NO_PRODUCER_ID,
        transaction_version=max(_INT16.unpack(tags[_VERSION])[0], 1) if _VERSION in tags else 1,
    )  # fmt: skip


def _size(reader: _Reader, *, is_compact: bool, form: Struct) -> int:
    """Return the length of a string or an array; null counts as empty."""
    return reader.bounded(max((reader.uvarint() - 1) if is_compact else reader.number(form), 0))


def encode_record_batch(
    states: Iterable[tuple[str, TransactionMetadata | None]], now_ms: int
) -> bytes:  # fmt: skip
    """Return a record batch of states.

    Args:
        states: transactional ids and their states; None: the id is removed.
        now_ms: the time, milliseconds.
    """
    items = list(states)
    body = encode_records(
        [None if metadata is None else encode_value(metadata) for _, metadata in items],
        [encode_key(transactional_id) for transactional_id, _ in items], [now_ms] * len(items), None,
    )  # fmt: skip
    return encode_batch(body, len(items), base_timestamp=now_ms, max_timestamp=now_ms)


def decode_record_batch(batch: bytes) -> Iterator[tuple[str, TransactionMetadata | None]]:
    """Return the states of a record batch; None: the id was removed.

    Raises:
        InvalidRecordBatchError: a record is malformed.
    """
    header = check_batch(batch)
    columns = read_records(header, memoryview(batch)[HEADER_BYTES:])
    for key, value in zip(columns.keys(), columns.values(), strict=True):
        transactional_id = None if key is None else decode_key(key)
        if transactional_id is not None:
            yield transactional_id, None if value is None else decode_value(value)
