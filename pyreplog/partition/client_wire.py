"""The requests of clients to brokers, as bodies of frames, and the answers (FORMAT.md, "Requests of clients").

Brokers send each other the requests of transactions, and those for compacted segments, in the same format.

Numbers are big-endian. Lengths are checked before they are used; malformed bytes raise InvalidMessageError. Records are
at the end of a message, and are not copied. The first byte of a request is its kind; kind 1 is the fetch of other
brokers, see `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pyreplog.errors import UnsupportedRequestError
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.isr import FollowerProgress
from pyreplog.partition.protocol.partition_state import REPLICAS_MAX, Member
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    AbortedTransaction,
    CleanedSegments,
    CleanedSegmentsRequest,
    ConsumerFetch,
    FetchIsolation,
    FetchParams,
    PartitionDescription,
    PartitionOffsets,
    PartitionProduceResponse,
    PartitionQuery,
    ProducerSnapshotPiece,
    ProducerSnapshotRequest,
    SegmentPiece,
    SegmentReadRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.store.segment_copy import SegmentDigest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.terms import read_term, write_term

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FEATURE = "clients"
"""The feature in the hello that announces these requests."""
PARTITIONS_MAX = 65536
"""Most partitions in one request."""
ABORTED_MAX = 1 << 20
"""Most aborted transactions of one partition in an answer."""
OFFSETS_MAX = 65536
"""Most offsets of one partition in a query for append times."""
TRANSACTIONAL_ID_MAX = 32767
"""Most bytes of a transactional id."""
SEGMENTS_MAX = 65536
"""Most compacted segments of a partition in an answer."""
TRANSACTION_VERSIONS = (1, 2)
_NUMBER_MAX = (1 << 63) - 1
_SIZE_MAX = (1 << 32) - 1
_NONE = -1


class RequestKind(IntEnum):
    """The first byte of a request."""

    WRITE_MARKERS = 2
    PRODUCE = 3
    CONSUME = 4
    LIST_OFFSETS = 5
    VERIFY_TRANSACTION = 6
    CLEANED_SEGMENTS = 7
    READ_SEGMENT = 8
    DESCRIBE_PARTITIONS = 9  # 10 is the fetch of other brokers
    PRODUCER_SNAPSHOT = 11


class _Status(IntEnum):
    """The first byte of an answer."""

    OK = 0
    REFUSED = 1


_ISOLATIONS = (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED)


class ProduceRequest(NamedTuple):
    """Record batches to append.

    Attributes:
        acks: -1, 0 or 1; see `ReplicaManager.append_records`.
        timeout_ms: how long acks=-1 waits, milliseconds.
        durable: whether the answer waits until min ISR replicas have synced the records.
        records: one record batch for each partition.
    """

    acks: int
    timeout_ms: int
    durable: bool
    records: Mapping[TopicPartition, ReadableBuffer]


class ConsumeRequest(NamedTuple):
    """A consumer's fetch.

    Attributes:
        params: settings for all partitions; its isolation is not LOG_END.
        fetches: fetches by partition.
    """

    params: FetchParams
    fetches: Mapping[TopicPartition, ConsumerFetch]


class ConsumeResponse(NamedTuple):
    """The outcome of a consumer's fetch of one partition. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        high_watermark: offset up to which the log is committed.
        last_stable: offset before which no transaction is open.
        log_start: where the log begins.
        end: offset behind the records that were read; -1: no record was read.
        batches: record batches in order; the first one may begin before the requested offset.
        aborted: the aborted transactions that the records belong to.
        message: the error in words.
    """

    code: ErrorCode
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    end: int = -1
    batches: Sequence[ReadableBuffer] = ()
    aborted: Sequence[AbortedTransaction] = ()
    message: str = ""


class ListOffsetsRequest(NamedTuple):
    """Requests the offsets of partitions.

    Attributes:
        times_us: partition -> time whose offset is requested, microseconds since 1970; None: no such request.
    """

    times_us: Mapping[TopicPartition, int | None]


class DescribePartitionsRequest(NamedTuple):
    """Requests the offsets of partitions, and the progress of their followers.

    Attributes:
        queries: further queries, by partition.
    """

    queries: Mapping[TopicPartition, PartitionQuery]


ClientRequest = (
    WriteMarkersRequest
    | VerifyTransactionRequest
    | ProduceRequest
    | ConsumeRequest
    | ListOffsetsRequest
    | CleanedSegmentsRequest
    | SegmentReadRequest
    | DescribePartitionsRequest
    | ProducerSnapshotRequest
)


def kind_of(body: ReadableBuffer) -> int:
    """Return the first byte of a request, which is not empty."""
    return memoryview(body).cast("B")[0]


# ---- requests -------------------------------------------------------------------------------------------------


def _write_partition(fields: FieldWriter, name: TopicPartition) -> None:
    fields.name(name.topic)
    fields.numbers("I", name.partition)


def _read_partition(fields: FieldReader) -> TopicPartition:
    topic = fields.name()
    return TopicPartition(topic, fields.count("I", (1 << 31) - 1))


def encode_request(request: ClientRequest) -> list[ReadableBuffer]:
    """Encode a request: one buffer with all fields, followed by the records, which are not copied."""
    fields = FieldWriter(">")
    records: list[ReadableBuffer] = []
    if isinstance(request, WriteMarkersRequest):
        fields.numbers(
            "BqhiBBI", RequestKind.WRITE_MARKERS, *request.marker, request.transaction_version, len(request.partitions)
        )
        for name, leader_epoch in request.partitions.items():
            _write_partition(fields, name)
            fields.numbers("Q", leader_epoch)
    elif isinstance(request, VerifyTransactionRequest):
        transactional_id = request.transactional_id.encode()
        fields.numbers("BH", RequestKind.VERIFY_TRANSACTION, len(transactional_id))
        fields.raw(transactional_id)
        fields.numbers("qhI", request.producer_id, request.producer_epoch, len(request.partitions))
        for name in request.partitions:
            _write_partition(fields, name)
    elif isinstance(request, ProduceRequest):
        flags = (RequestKind.PRODUCE, request.acks, request.timeout_ms, request.durable)
        fields.numbers("BbIBI", *flags, len(request.records))
        for name, data in request.records.items():
            _write_partition(fields, name)
            fields.numbers("I", memoryview(data).nbytes)
            records.append(data)
    elif isinstance(request, ConsumeRequest):
        params = request.params
        fields.numbers(
            "BBIIIBI", RequestKind.CONSUME, _ISOLATIONS.index(params.isolation), params.max_wait_ms, params.min_bytes,
            params.max_bytes, params.only_leader, len(request.fetches),
        )  # fmt: skip
        for name, fetch in request.fetches.items():
            _write_partition(fields, name)
            epoch = _NONE if fetch.leader_epoch is None else fetch.leader_epoch
            fields.numbers("QIq", fetch.offset, fetch.max_bytes, epoch)
    elif isinstance(request, CleanedSegmentsRequest):
        fields.numbers("B", RequestKind.CLEANED_SEGMENTS)
        _write_partition(fields, request.partition)
        fields.name(request.member.broker)
        fields.numbers("Q", request.member.incarnation)
        write_term(fields, request.epoch)
        fields.numbers("Q", request.cleaned)
    elif isinstance(request, SegmentReadRequest):
        fields.numbers("B", RequestKind.READ_SEGMENT)
        _write_partition(fields, request.partition)
        write_term(fields, request.epoch)
        fields.numbers("QQI", request.base, request.offset, request.max_bytes)
    elif isinstance(request, ProducerSnapshotRequest):
        fields.numbers("B", RequestKind.PRODUCER_SNAPSHOT)
        _write_partition(fields, request.partition)
        fields.numbers("QQQI", request.first, request.last, request.offset, request.max_bytes)
    elif isinstance(request, DescribePartitionsRequest):
        fields.numbers("BI", RequestKind.DESCRIBE_PARTITIONS, len(request.queries))
        for name, query in request.queries.items():
            _write_partition(fields, name)
            fields.numbers("BqI", query.since_us is not None, query.since_us or 0, len(query.offsets))
            fields.numbers(f"{len(query.offsets)}Q", *query.offsets)
    else:
        fields.numbers("BI", RequestKind.LIST_OFFSETS, len(request.times_us))
        for name, time_us in request.times_us.items():
            _write_partition(fields, name)
            fields.numbers("Bq", time_us is not None, time_us or 0)
    return [fields.take(), *records]


def decode_request(body: ReadableBuffer) -> ClientRequest:
    """Decode a request of a client. The records are views of `body`.

    Raises:
        UnsupportedRequestError: the request has a kind that this version does not know.
        InvalidMessageError: the bytes are malformed.
    """
    fields = FieldReader(">", body, "a request of a client")
    (kind,) = fields.numbers("B")
    if kind == RequestKind.PRODUCE:
        return _read_produce(fields)
    if kind == RequestKind.CONSUME:
        return _read_consume(fields)
    if kind == RequestKind.LIST_OFFSETS:
        times: dict[TopicPartition, int | None] = {}
        for _ in range(fields.count("I", PARTITIONS_MAX)):
            name, has_time = _read_partition(fields), fields.flag()
            (time_us,) = fields.numbers("q")
            times[name] = time_us if has_time else None
        fields.end()
        return ListOffsetsRequest(times)
    if kind == RequestKind.DESCRIBE_PARTITIONS:
        return _read_queries(fields)
    if kind == RequestKind.WRITE_MARKERS:
        return _read_markers(fields)
    if kind == RequestKind.VERIFY_TRANSACTION:
        return _read_verification(fields)
    if kind in (RequestKind.CLEANED_SEGMENTS, RequestKind.READ_SEGMENT):
        return _read_segments_request(fields, kind)
    if kind == RequestKind.PRODUCER_SNAPSHOT:
        return _read_snapshot_request(fields)
    raise UnsupportedRequestError(f"request {kind}: this broker knows {min(RequestKind)} to {max(RequestKind)}")


def _read_markers(fields: FieldReader) -> WriteMarkersRequest:
    producer_id, producer_epoch, coordinator_epoch = fields.numbers("qhi")
    marker = TransactionMarker(producer_id, producer_epoch, coordinator_epoch, fields.flag())
    (version,) = fields.numbers("B")
    if version not in TRANSACTION_VERSIONS:
        raise fields.error("a transaction version of 1 or 2", f"{version}")
    epochs: dict[TopicPartition, int] = {}
    for _ in range(count := fields.count("I", PARTITIONS_MAX)):
        name = _read_partition(fields)
        epochs[name] = fields.count("Q", _NUMBER_MAX)
    if len(epochs) != count:
        raise fields.error("each partition once", "one twice")
    fields.end()
    return WriteMarkersRequest(marker, version, epochs)


def _read_verification(fields: FieldReader) -> VerifyTransactionRequest:
    encoded = bytes(fields.view(fields.count("H", TRANSACTIONAL_ID_MAX)))
    try:
        transactional_id = encoded.decode()
    except UnicodeDecodeError as error:
        raise fields.error("a transactional id in UTF-8", encoded[:32].hex()) from error
    producer_id, producer_epoch = fields.numbers("qh")
    names = tuple(_read_partition(fields) for _ in range(fields.count("I", PARTITIONS_MAX)))
    fields.end()
    return VerifyTransactionRequest(transactional_id, producer_id, producer_epoch, names)


def _read_segments_request(fields: FieldReader, kind: int) -> CleanedSegmentsRequest | SegmentReadRequest:
    name = _read_partition(fields)
    request: CleanedSegmentsRequest | SegmentReadRequest
    if kind == RequestKind.CLEANED_SEGMENTS:
        member = Member(fields.name(), fields.count("Q", _NUMBER_MAX))
        request = CleanedSegmentsRequest(name, member, read_term(fields), fields.count("Q", _NUMBER_MAX))
    else:
        epoch, base, offset = read_term(fields), fields.count("Q", _NUMBER_MAX), fields.count("Q", _NUMBER_MAX)
        request = SegmentReadRequest(name, epoch, base, offset, fields.count("I", _SIZE_MAX))
    fields.end()
    return request


def _read_snapshot_request(fields: FieldReader) -> ProducerSnapshotRequest:
    name, first, last = _read_partition(fields), fields.count("Q", _NUMBER_MAX), fields.count("Q", _NUMBER_MAX)
    request = ProducerSnapshotRequest(
        name, first, last, fields.count("Q", _NUMBER_MAX), fields.count("I", _SIZE_MAX)
    )  # fmt: skip
    fields.end()
    return request


def _read_queries(fields: FieldReader) -> DescribePartitionsRequest:
    queries: dict[TopicPartition, PartitionQuery] = {}
    for _ in range(fields.count("I", PARTITIONS_MAX)):
        name, has_time = _read_partition(fields), fields.flag()
        (time_us,) = fields.numbers("q")
        offsets = tuple(fields.count("Q", _NUMBER_MAX) for _ in range(fields.count("I", OFFSETS_MAX)))
        queries[name] = PartitionQuery(time_us if has_time else None, offsets)
    fields.end()
    return DescribePartitionsRequest(queries)


def _read_produce(fields: FieldReader) -> ProduceRequest:
    acks, timeout_ms = fields.numbers("bI")
    durable = fields.flag()
    sizes: dict[TopicPartition, int] = {}
    for _ in range(count := fields.count("I", PARTITIONS_MAX)):
        name = _read_partition(fields)
        sizes[name] = fields.count("I", _SIZE_MAX)
    if len(sizes) != count:
        raise fields.error("one batch a partition", "several")
    records = {name: fields.view(size) for name, size in sizes.items()}
    fields.end()
    return ProduceRequest(acks, timeout_ms, durable, records)


def _read_consume(fields: FieldReader) -> ConsumeRequest:
    isolation = _ISOLATIONS[fields.count("B", len(_ISOLATIONS) - 1)]
    max_wait_ms, min_bytes, max_bytes = fields.numbers("III")
    params = FetchParams(isolation, max_wait_ms, min_bytes, max_bytes, only_leader=fields.flag())
    fetches: dict[TopicPartition, ConsumerFetch] = {}
    for _ in range(fields.count("I", PARTITIONS_MAX)):
        name = _read_partition(fields)
        offset = fields.count("Q", _NUMBER_MAX)
        partition_bytes, epoch = fields.numbers("Iq")
        fetches[name] = ConsumerFetch(offset, partition_bytes, None if epoch < 0 else epoch)
    fields.end()
    return ConsumeRequest(params, fetches)


# ---- answers --------------------------------------------------------------------------------------------------


def _answer(count: int) -> FieldWriter:
    fields = FieldWriter(">")
    fields.numbers("BI", _Status.OK, count)
    return fields


def _reader(body: ReadableBuffer, what: str) -> tuple[FieldReader, int]:
    """Return a reader of an answer, behind its status and the number of its partitions, and that number."""
    fields = FieldReader(">", body, what)
    if fields.count("B", _Status.REFUSED) == _Status.REFUSED:
        raise UnsupportedRequestError(f"the broker refused a request: {fields.text()}")
    return fields, fields.count("I", PARTITIONS_MAX)


def _read_code(fields: FieldReader) -> ErrorCode:
    (code,) = fields.numbers("h")
    try:
        return ErrorCode(code)
    except ValueError as error:
        raise fields.error("an error code", f"{code}") from error


def encode_codes(codes: Mapping[TopicPartition, ErrorCode]) -> bytes:
    """Encode the answer to a `WriteMarkersRequest` or a `VerifyTransactionRequest`."""
    fields = _answer(len(codes))
    for name, code in codes.items():
        _write_partition(fields, name)
        fields.numbers("h", code)
    return fields.take()


def decode_codes(body: ReadableBuffer) -> dict[TopicPartition, ErrorCode]:
    """Decode the answer to a `WriteMarkersRequest` or a `VerifyTransactionRequest`.

    Raises:
        UnsupportedRequestError: the broker does not understand the request, or refuses it.
        InvalidMessageError: the bytes are malformed.
    """
    fields, count = _reader(body, "the answer to a request of a transaction")
    codes = {_read_partition(fields): _read_code(fields) for _ in range(count)}
    fields.end()
    return codes


def encode_produce_responses(responses: Mapping[TopicPartition, PartitionProduceResponse]) -> bytes:
    """Encode the answer to a `ProduceRequest`."""
    fields = _answer(len(responses))
    for name, each in responses.items():
        _write_partition(fields, name)
        fields.numbers("hqqqq", each.code, each.base_offset, each.end_offset, each.log_start, each.log_append_time_ms)
        fields.text(each.message)
    return fields.take()


def decode_produce_responses(body: ReadableBuffer) -> dict[TopicPartition, PartitionProduceResponse]:
    """Decode the answer to a `ProduceRequest`. Raises UnsupportedRequestError and InvalidMessageError."""
    fields, count = _reader(body, "the answer to a produce")
    responses = {}
    for _ in range(count):
        name, code = _read_partition(fields), _read_code(fields)
        base_offset, end_offset, log_start, time_ms = fields.numbers("qqqq")
        responses[name] = PartitionProduceResponse(code, base_offset, end_offset, log_start, time_ms, fields.text())
    fields.end()
    return responses


def encode_consume_responses(responses: Mapping[TopicPartition, ConsumeResponse]) -> list[ReadableBuffer]:
    """Encode the answer to a `ConsumeRequest`: the fields, and the record batches, which are not copied."""
    fields = _answer(len(responses))
    records: list[ReadableBuffer] = []
    for name, each in responses.items():
        _write_partition(fields, name)
        fields.numbers("hqqqq", each.code, each.high_watermark, each.last_stable, each.log_start, each.end)
        fields.text(each.message)
        fields.numbers("I", len(each.aborted))
        for transaction in each.aborted:
            fields.numbers("qq", *transaction)
        fields.numbers("I", sum(memoryview(batch).nbytes for batch in each.batches))
        records.extend(each.batches)
    return [fields.take(), *records]


def decode_consume_responses(body: ReadableBuffer) -> dict[TopicPartition, ConsumeResponse]:
    """Decode the answer to a `ConsumeRequest`. The records of a partition are one view of `body`.

    Raises:
        UnsupportedRequestError: the broker does not understand the request.
        InvalidMessageError: the bytes are malformed.
    """
    fields, count = _reader(body, "the answer to a fetch of a consumer")
    responses: dict[TopicPartition, ConsumeResponse] = {}
    sizes: list[tuple[TopicPartition, int]] = []
    for _ in range(count):
        name, code = _read_partition(fields), _read_code(fields)
        high_watermark, last_stable, log_start, end = fields.numbers("qqqq")
        message = fields.text()
        aborted = [AbortedTransaction(*fields.numbers("qq")) for _ in range(fields.count("I", ABORTED_MAX))]
        sizes.append((name, fields.count("I", _SIZE_MAX)))
        responses[name] = ConsumeResponse(code, high_watermark, last_stable, log_start, end, (), aborted, message)
    for name, size in sizes:
        if size:
            responses[name] = responses[name]._replace(batches=[fields.view(size)])
    fields.end()
    return responses


def encode_offsets(offsets: Mapping[TopicPartition, PartitionOffsets]) -> bytes:
    """Encode the answer to a `ListOffsetsRequest`."""
    fields = _answer(len(offsets))
    for name, each in offsets.items():
        _write_partition(fields, name)
        fields.numbers("hqqqqq", *each)
    return fields.take()


def decode_offsets(body: ReadableBuffer) -> dict[TopicPartition, PartitionOffsets]:
    """Decode the answer to a `ListOffsetsRequest`. Raises UnsupportedRequestError and InvalidMessageError."""
    fields, count = _reader(body, "the answer to a list of offsets")
    offsets = {}
    for _ in range(count):
        name, code = _read_partition(fields), _read_code(fields)
        offsets[name] = PartitionOffsets(code, *fields.numbers("qqqqq"))
    fields.end()
    return offsets


def encode_cleaned_segments(cleaned: CleanedSegments) -> bytes:
    """Encode the answer to a `CleanedSegmentsRequest`."""
    fields = _answer(1)
    segments = cleaned.segments[:SEGMENTS_MAX]
    fields.numbers("hQI", cleaned.code, cleaned.cleaned, len(segments))
    for digest in segments:
        fields.numbers("QQQQI", *digest)
    return fields.take()


def decode_cleaned_segments(body: ReadableBuffer) -> CleanedSegments:
    """Decode the answer to a `CleanedSegmentsRequest`. Raises UnsupportedRequestError and InvalidMessageError."""
    fields, count = _reader(body, "the answer to a request for compacted segments")
    if count != 1:
        raise fields.error("one partition", f"{count}")
    code, cleaned = _read_code(fields), fields.count("Q", _NUMBER_MAX)
    segments = [SegmentDigest(*fields.numbers("QQQQI")) for _ in range(fields.count("I", SEGMENTS_MAX))]
    fields.end()
    if any(max(digest[:4]) > _NUMBER_MAX for digest in segments):
        raise fields.error("positions and offsets of 63 bits", "larger ones")
    return CleanedSegments(code, cleaned, segments)


def encode_segment_piece(piece: SegmentPiece) -> list[ReadableBuffer]:
    """Encode the answer to a `SegmentReadRequest`: the fields, and the bytes, which are not copied."""
    fields = _answer(1)
    fields.numbers("hI", piece.code, memoryview(piece.data).nbytes)
    return [fields.take(), piece.data]


def decode_segment_piece(body: ReadableBuffer) -> SegmentPiece:
    """Decode the answer to a `SegmentReadRequest`. The bytes are a view of `body`. Raises UnsupportedRequestError and
    InvalidMessageError."""
    fields, count = _reader(body, "the answer to a request for bytes of a segment")
    if count != 1:
        raise fields.error("one partition", f"{count}")
    code = _read_code(fields)
    data = fields.view(fields.count("I", _SIZE_MAX))
    fields.end()
    return SegmentPiece(code, data)


def encode_producer_snapshot_piece(piece: ProducerSnapshotPiece) -> list[ReadableBuffer]:
    """Encode the answer to a `ProducerSnapshotRequest`: the fields, and the bytes, which are not copied."""
    fields = _answer(1)
    fields.numbers("hQQI", piece.code, piece.base, piece.size, memoryview(piece.data).nbytes)
    return [fields.take(), piece.data]


def decode_producer_snapshot_piece(body: ReadableBuffer) -> ProducerSnapshotPiece:
    """Decode the answer to a `ProducerSnapshotRequest`. The bytes are a view of `body`. Raises UnsupportedRequestError
    and InvalidMessageError."""
    fields, count = _reader(body, "the answer to a request for a producer snapshot")
    if count != 1:
        raise fields.error("one partition", f"{count}")
    code, base, size = _read_code(fields), fields.count("Q", _NUMBER_MAX), fields.count("Q", _NUMBER_MAX)
    data = fields.view(fields.count("I", _SIZE_MAX))
    fields.end()
    return ProducerSnapshotPiece(code, base, size, data)


def encode_descriptions(descriptions: Mapping[TopicPartition, PartitionDescription]) -> bytes:
    """Encode the answer to a `DescribePartitionsRequest`."""
    fields = _answer(len(descriptions))
    for name, each in descriptions.items():
        _write_partition(fields, name)
        fields.numbers("hqqqqqI", *each.offsets, len(each.followers))
        for follower in each.followers:
            fields.name(follower.member.broker)
            fields.numbers("Qqq", follower.member.incarnation, follower.end, follower.behind_us)
        fields.numbers("I", len(each.times_us))
        fields.numbers(f"{len(each.times_us)}q", *each.times_us)
    return fields.take()


def decode_descriptions(body: ReadableBuffer) -> dict[TopicPartition, PartitionDescription]:
    """Decode the answer to a `DescribePartitionsRequest`. Raises UnsupportedRequestError and InvalidMessageError."""
    fields, count = _reader(body, "the answer to a description of partitions")
    descriptions = {}
    for _ in range(count):
        name, code = _read_partition(fields), _read_code(fields)
        offsets = PartitionOffsets(code, *fields.numbers("qqqqq"))
        followers = []
        for _ in range(fields.count("I", REPLICAS_MAX)):
            member = Member(fields.name(), fields.count("Q", _NUMBER_MAX))
            followers.append(FollowerProgress(member, *fields.numbers("qq")))
        times = tuple(fields.numbers("q")[0] for _ in range(fields.count("I", OFFSETS_MAX)))
        descriptions[name] = PartitionDescription(offsets, tuple(followers), times)
    fields.end()
    return descriptions
