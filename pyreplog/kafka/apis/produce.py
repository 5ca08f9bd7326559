"""Produce: appends record batches to the log as they were received."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from pyreplog.errors import InvalidRequestError, UnansweredProduceError
from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.apis.context import ApiContext, LongCall, Outcome, RequestContext, Unanswered
from pyreplog.kafka.apis.leaders import code_without_replica, current_leader
from pyreplog.kafka.wire.messages import (
    ProduceBatchIndexAndErrorMessage,
    ProduceLeaderIdAndEpoch,
    ProduceNodeEndpoint,
    ProducePartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicProduceResponse,
)
from pyreplog.partition.protocol.error_codes import ACKS_ALL, REQUIRED_ACKS, ErrorCode
from pyreplog.partition.requests import PartitionProduceResponse, ProduceResponses
from pyreplog.partition.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import ReadableBuffer

_TIMEOUT_MS_MAX = 3_600_000
_ATTRIBUTES_AT = 22
"""Position of the low byte of a batch's attributes; its low three bits are the codec."""
_ZSTD, _ZSTD_FROM = 4, 7
_LONG_BYTES = 16 << 10
"""Compressed batches of more bytes are decompressed, which is how their records are checked, by another thread."""
_LEADERS_FROM = 10
_ABORTABLE_FROM = 11


def handle_produce(api: ApiContext, request: RequestContext, message: ProduceRequest) -> Outcome | LongCall:
    """Append the batches of a Produce request.

    Raises:
        InvalidRequestError: the request names a partition twice, for which Kafka defines no behaviour.
        UnansweredProduceError: a partition refused records, and the client expects no response.
    """
    records: dict[TopicPartition, ReadableBuffer] = {}
    on_ledgers: dict[TopicPartition, bytes] = {}
    refused: ProduceResponses = {}
    for topic in message.topic_data:
        is_on_ledgers = api.topics_of(topic.name) is not None
        for partition in topic.partition_data:
            name = TopicPartition(topic.name, partition.partition_index)
            if name in records or name in refused or name in on_ledgers:
                raise InvalidRequestError(
                    f"Produce v{request.version} request", "topic_data", 0, "each partition once", f"{name} twice"
                )
            data = cast("ReadableBuffer | None", partition.records)
            if (refusal := _refusal(data, request.version)) is not None:
                refused[name] = refusal
            elif is_on_ledgers and data is not None:
                on_ledgers[name] = bytes(data)
            elif data is not None:
                records[name] = data
    append = partial(_append, api, request, message, records, on_ledgers, refused)
    return LongCall(append) if _compressed_bytes(records) > _LONG_BYTES else append()


def _compressed_bytes(records: Mapping[TopicPartition, ReadableBuffer]) -> int:
    views = [memoryview(data) for data in records.values()]
    return sum(len(view) for view in views if len(view) > _ATTRIBUTES_AT and view[_ATTRIBUTES_AT] & 7)


def _append(
    api: ApiContext, request: RequestContext, message: ProduceRequest,
    records: Mapping[TopicPartition, ReadableBuffer], on_ledgers: Mapping[TopicPartition, bytes],
    refused: ProduceResponses,
) -> Outcome:  # fmt: skip
    timeout_ms = min(max(message.timeout_ms, 0), _TIMEOUT_MS_MAX)
    if message.acks not in REQUIRED_ACKS:
        refusal = PartitionProduceResponse(
            ErrorCode.INVALID_REQUIRED_ACKS, message=f"acks: expected 0, 1 or -1, found {message.acks}"
        )
        refused |= dict.fromkeys(on_ledgers, refusal)
        on_ledgers = {}
    published = _publish(api, on_ledgers, timeout_ms)
    if message.transactional_id is not None and message.acks == ACKS_ALL:
        future = api.broker.append_guard.append_records(
            message.transactional_id, message.acks, records, timeout_ms=timeout_ms,
            supports_abortable=request.version >= _ABORTABLE_FROM,
        )  # fmt: skip
    else:
        if message.transactional_id is not None:
            refusal = PartitionProduceResponse(
                ErrorCode.INVALID_REQUIRED_ACKS, message="acks: expected -1, all, of a transaction"
            )
            refused |= dict.fromkeys(records, refusal)
            records = {}
        future = api.replicas.append_records(message.acks, records, timeout_ms=timeout_ms)
    if message.acks == 0:
        _raise_if_refused({**future.result(0), **refused})
        if published is None or api.ledger_topics is None:
            return None
        return Unanswered(transform(published, _raise_if_refused), api.ledger_topics.is_congested)
    if published is None:
        return transform(future, partial(_respond, api, request, message, refused))
    appended = future
    return transform(
        published,
        lambda responses: transform(appended, partial(_respond, api, request, message, {**refused, **responses})),
    )


def _publish(
    api: ApiContext, records: Mapping[TopicPartition, bytes], timeout_ms: int
) -> AppendFuture[ProduceResponses] | None:  # fmt: skip
    """Publish to topics on ledgers; None: the request names none."""
    if not records or api.ledger_topics is None:
        return None
    return api.ledger_topics.append_records(records, timeout_ms=timeout_ms)


def _refusal(data: ReadableBuffer | None, version: int) -> PartitionProduceResponse | None:
    """Return the response for records that cannot be appended to any log; None: they may be appended."""
    view = None if data is None else memoryview(data)
    if view is None or not len(view):
        return PartitionProduceResponse(ErrorCode.INVALID_RECORD, message="expected one record batch, found none")
    codec = view[_ATTRIBUTES_AT] & 7 if len(view) > _ATTRIBUTES_AT else 0
    if codec > _ZSTD or (codec == _ZSTD and version < _ZSTD_FROM):
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return PartitionProduceResponse(code, message=f"expected a codec of Produce v{version}, found {codec}")
    return None


def _raise_if_refused(responses: ProduceResponses) -> None:
    """Raise an error, which closes the connection, if a partition refused records: with acks=0 there is no response."""
    for name, response in responses.items():
        if response.code is not ErrorCode.NONE:
            raise UnansweredProduceError(f"{name}", int(response.code), response.message)


def _respond(
    api: ApiContext, request: RequestContext, message: ProduceRequest, refused: ProduceResponses,
    responses: ProduceResponses,
) -> ProduceResponse:  # fmt: skip
    endpoints: dict[int, ProduceNodeEndpoint] = {}
    topics = []
    for topic in message.topic_data:
        partitions = []
        for partition in topic.partition_data:
            name = TopicPartition(topic.name, partition.partition_index)
            response = refused.get(name) or responses[name]
            if response.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                response = response._replace(code=code_without_replica(api, name))
            leader = ProduceLeaderIdAndEpoch()
            if response.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and request.version >= _LEADERS_FROM:
                current = current_leader(api, name)
                if current is not None:
                    broker, epoch = current
                    leader = ProduceLeaderIdAndEpoch(broker.node_id, epoch)
                    endpoints[broker.node_id] = ProduceNodeEndpoint(*broker)
            partitions.append(
                ProducePartitionProduceResponse(
                    partition.partition_index,
                    response.code,
                    response.base_offset,
                    response.log_append_time_ms,
                    response.log_start,
                    [ProduceBatchIndexAndErrorMessage(number, response.message) for number in response.refused_records],
                    response.message or None,
                    leader,
                )
            )  # fmt: skip
        topics.append(ProduceTopicProduceResponse(topic.name, partitions))
    return ProduceResponse(topics, node_endpoints=tuple(endpoints.values()))
