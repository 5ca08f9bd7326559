"""The fetches between brokers, as bodies of frames (FORMAT.md, "Fetches between brokers").

Numbers are big-endian. Lengths are checked before they are used; malformed bytes raise InvalidMessageError. Records
have the bytes of the leader's log, are at the end of a message, and are not copied.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from pyreplog.errors import UnsupportedRequestError
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchPartitionData, FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.store.partition_log import LogSlice
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.terms import HISTORY_MAX, TermStart, read_history, read_term, write_history, write_term

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SERVICE = "broker"
"""The name of the service in the hello."""
VERSION = 2
"""Version of the protocol. From 2 on a hello has features."""
PARTITIONS_MAX = 65536
"""Most partitions in one fetch."""
FRAMES_MAX = 1 << 16
"""Most pieces of records in the answer for one partition."""
SNAPSHOTS_BYTES_MAX = 16 << 20
"""Most bytes of producer snapshots in one answer, for all partitions."""
FETCH = 10
_NUMBER_MAX = (1 << 63) - 1


class _Status(IntEnum):
    """The first byte of an answer."""

    OK = 0
    REFUSED = 1


class _Answer(IntEnum):
    """The kind of a partition's answer."""

    RECORDS = 1
    DIVERGING = 2
    REFUSED = 3


def encode_fetch(request: ReplicaFetchRequest) -> bytes:
    """Encode a request with fetches of followers.

    Args:
        request: the request; all its fetches are of its member.
    """
    fields = FieldWriter(">")
    fields.numbers("B", FETCH)
    fields.name(request.member.broker)
    fields.numbers("QQB", request.member.incarnation, request.session, request.is_first)
    fields.numbers("III", request.max_wait_ms, request.max_bytes, len(request.fetches))
    for (topic, partition), (fetch, max_bytes) in request.fetches.items():
        fields.name(topic)
        fields.numbers("IIQ", partition, max_bytes, fetch.number)
        write_term(fields, fetch.epoch)
        fields.mark(fetch.position)
        write_term(fields, fetch.last_epoch)
        fields.mark(fetch.synced)
        fields.mark(fetch.high_watermark)
        fields.numbers("QQ", fetch.log_start, fetch.leader_log_start)
    return fields.take()


def decode_fetch(body: ReadableBuffer) -> ReplicaFetchRequest:
    """Decode a request of another broker.

    Raises:
        UnsupportedRequestError: the request has a kind that this version does not know.
        InvalidMessageError: the bytes are malformed.
    """
    fields = FieldReader(">", body, "a fetch")
    (kind,) = fields.numbers("B")
    if kind != FETCH:
        raise UnsupportedRequestError(f"request {kind}: this broker knows {FETCH}")
    member = Member(fields.name(), fields.count("Q", _NUMBER_MAX))
    session, is_first = fields.count("Q", _NUMBER_MAX), bool(fields.count("B", 1))
    max_wait_ms, max_bytes = fields.numbers("II")
    fetches: dict[TopicPartition, ReplicaFetch] = {}
    for _ in range(fields.count("I", PARTITIONS_MAX)):
        topic = fields.name()
        partition, partition_bytes = fields.numbers("II")
        number = fields.count("Q", _NUMBER_MAX)
        epoch, position = read_term(fields), fields.mark()
        last_epoch, synced, high_watermark = read_term(fields), fields.mark(), fields.mark()
        log_starts = fields.count("Q", _NUMBER_MAX), fields.count("Q", _NUMBER_MAX)
        fetch = Fetch(number, member, epoch, position, last_epoch, synced, high_watermark, *log_starts)
        fetches[TopicPartition(topic, partition)] = ReplicaFetch(fetch, partition_bytes)
    fields.end()
    return ReplicaFetchRequest(member, session, is_first, max_wait_ms, max_bytes, fetches)


def encode_error(error: str) -> bytes:
    """Encode the answer to a request that this broker does not understand."""
    fields = FieldWriter(">")
    fields.numbers("B", _Status.REFUSED)
    fields.text(error)
    return fields.take()


def encode_responses(responses: FetchResponses) -> list[ReadableBuffer]:
    """Encode the answer to a fetch: one buffer with all fields, followed by the records, which are not copied."""
    fields = FieldWriter(">")
    records: list[ReadableBuffer] = []
    fields.numbers("BI", _Status.OK, len(responses))
    room = SNAPSHOTS_BYTES_MAX
    for (topic, partition), data in responses.items():
        fields.name(topic)
        fields.numbers("I", partition)
        response = data.response
        if isinstance(response, DivergingEpoch):
            room -= len(response.producers)
            if room < 0:  # the follower fetches again, after a back-off
                response = FetchRefused(response.number, ErrorCode.REQUEST_TIMED_OUT)
        _write_response(fields, response, records)
    return [fields.take(), *records]


def _write_response(fields: FieldWriter, response: FetchResponse | None, records: list[ReadableBuffer]) -> None:
    if isinstance(response, FetchedRecords):
        assert isinstance(response.records, LogSlice)
        fields.numbers("BQ", _Answer.RECORDS, response.number)
        write_term(fields, response.epoch)
        fields.mark(response.position)
        fields.mark(response.end)
        fields.mark(response.high_watermark)
        fields.mark(response.log_start)
        fields.numbers("Q", response.deleted_before)
        fields.numbers("I", len(response.starts))
        for epoch, start in response.starts:
            write_term(fields, epoch)
            fields.mark(start)
        frames = [(at, memoryview(body)) for at, body in response.records.frames]
        fields.numbers("I", len(frames))
        for at, body in frames:
            fields.numbers("QI", at, body.nbytes)
            records.append(body)
    elif isinstance(response, DivergingEpoch):
        fields.numbers("BQ", _Answer.DIVERGING, response.number)
        write_term(fields, response.epoch)
        write_history(fields, response.history)
        fields.mark(response.log_start)
        fields.mark(response.end)
        fields.numbers("I", len(response.producers))
        fields.raw(response.producers)
    else:
        assert response is not None
        fields.numbers("BQh", _Answer.REFUSED, response.number, response.code)


def decode_responses(body: ReadableBuffer) -> FetchResponses:
    """Decode the answer to a fetch. The records are views of `body`.

    Raises:
        UnsupportedRequestError: the other broker does not understand the request.
        InvalidMessageError: the bytes are malformed.
    """
    fields = FieldReader(">", body, "the answer to a fetch")
    if fields.count("B", _Status.REFUSED) == _Status.REFUSED:
        raise UnsupportedRequestError(f"the other broker refused a fetch: {fields.text()}")
    responses: FetchResponses = {}
    sizes: list[tuple[TopicPartition, FetchedRecords, list[tuple[int, int]]]] = []
    for _ in range(fields.count("I", PARTITIONS_MAX)):
        topic = fields.name()
        name = TopicPartition(topic, fields.count("I", (1 << 31) - 1))
        (kind,) = fields.numbers("B")
        number = fields.count("Q", _NUMBER_MAX)
        if kind == _Answer.RECORDS:
            response, frames = _read_records(fields, number)
            sizes.append((name, response, frames))
            responses[name] = FetchPartitionData(ErrorCode.NONE, response=response)
        elif kind == _Answer.DIVERGING:
            diverging = DivergingEpoch(
                number, read_term(fields), read_history(fields), fields.mark(), fields.mark(),
                bytes(fields.view(fields.count("I", SNAPSHOTS_BYTES_MAX))),
            )  # fmt: skip
            responses[name] = FetchPartitionData(ErrorCode.NONE, response=diverging)
        elif kind == _Answer.REFUSED:
            (code,) = fields.numbers("h")
            try:
                refused = FetchRefused(number, ErrorCode(code))
            except ValueError as error:
                raise fields.error("an error code", f"{code}") from error
            responses[name] = FetchPartitionData(refused.code, response=refused)
        else:
            raise fields.error("records, a divergence or a refusal", f"kind {kind}")
    for name, response, frames in sizes:
        pieces = [(at, fields.view(size)) for at, size in frames]
        records = LogSlice(response.position, response.end, pieces)
        fetched = response._replace(records=records)
        responses[name] = FetchPartitionData(ErrorCode.NONE, records=records, response=fetched)
    fields.end()
    return responses


def _read_records(fields: FieldReader, number: int) -> tuple[FetchedRecords, list[tuple[int, int]]]:
    """Return an answer without its records, and position and size of each piece of the records."""
    epoch, position, end = read_term(fields), fields.mark(), fields.mark()
    high_watermark, log_start, deleted_before = fields.mark(), fields.mark(), fields.count("Q", _NUMBER_MAX)
    starts = tuple(TermStart(read_term(fields), fields.mark()) for _ in range(fields.count("I", HISTORY_MAX)))
    frames = [(fields.count("Q", _NUMBER_MAX), fields.count("I", (1 << 32) - 1)) for _ in range(
        fields.count("I", FRAMES_MAX)
    )]  # fmt: skip
    fetched = FetchedRecords(
        number, epoch, position, end, starts, high_watermark, log_start, None, deleted_before
    )  # fmt: skip
    return fetched, frames
