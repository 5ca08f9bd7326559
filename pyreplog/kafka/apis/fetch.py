"""Fetch: sends record batches as views of the log."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyreplog._native.kafka.fetch_gather import gather_batches
from pyreplog.errors import InvalidRequestError, ReplogError
from pyreplog.future import transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.leaders import code_without_replica, current_leader
from pyreplog.kafka.apis.mixed_fetch import MixedFetch
from pyreplog.kafka.apis.read_replicas import PreferredReplica, preferred_replicas
from pyreplog.kafka.ledgers.requests import LedgerFetchData
from pyreplog.kafka.wire.messages import (
    FetchableTopicResponse,
    FetchAbortedTransaction,
    FetchLeaderIdAndEpoch,
    FetchNodeEndpoint,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
)
from pyreplog.partition import requests
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import ConsumerFetch, FetchIsolation, FetchParams, FetchResponses
from pyreplog.partition.topic_partition import TopicPartition

_TOPIC_IDS_FROM = 13
_LEADERS_FROM = 12
_ENDPOINTS_FROM = 16
_RACKS_FROM = 11
_READ_COMMITTED = 1
_WITHOUT_SESSION = (0, -1)
"""Session epochs of fetches that name all their partitions: 0 asks for a new session, -1 for none."""


def handle_fetch(api: ApiContext, request: RequestContext, message: FetchRequest) -> Outcome:
    """Fetch for a consumer; the response may be delayed.

    Sessions are declined, so each fetch names all partitions (KIP-227). A consumer that names its rack may read from
    followers, and is told of one in its rack (KIP-392); others read from leaders.

    Raises:
        InvalidRequestError: the request is that of a Kafka follower.
    """
    replica = message.replica_id if message.replica_id != -1 else message.replica_state.replica_id
    if replica >= 0:
        raise InvalidRequestError(
            f"Fetch v{request.version} request", "replica_id", 0, "the fetch of a consumer, -1", f"{replica}"
        )
    if message.session_epoch not in _WITHOUT_SESSION:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    names = _topic_names(api, request, message)
    fetches, on_ledgers = dict[TopicPartition, ConsumerFetch](), dict[TopicPartition, ConsumerFetch]()
    for topic, name in zip(message.topics, names, strict=True):
        if name is not None:
            chosen = fetches if api.topics_of(name) is None else on_ledgers
            for wanted in topic.partitions:
                epoch = wanted.current_leader_epoch if wanted.current_leader_epoch >= 0 else None
                max_bytes = max(wanted.partition_max_bytes, 0)
                chosen[TopicPartition(name, wanted.partition)] = ConsumerFetch(wanted.fetch_offset, max_bytes, epoch)
    config = api.config
    max_bytes = min(max(message.max_bytes, 0), config.fetch_bytes)
    if (quota_bytes := api.quotas.fetch_bytes_max(request.user, request.client_id or "")) is not None:
        max_bytes = min(max_bytes, quota_bytes)
    is_committed = message.isolation_level == _READ_COMMITTED
    max_wait_ms = min(max(message.max_wait_ms, 0), config.fetch_wait_ms)
    rack = message.rack_id if request.version >= _RACKS_FROM else ""
    preferred = preferred_replicas(api, rack, fetches)
    if preferred:  # the consumer has to learn of them, and so does not wait for the other partitions
        max_wait_ms = 0
        fetches = {name: fetch for name, fetch in fetches.items() if name not in preferred}
    params = FetchParams(
        isolation=FetchIsolation.TXN_COMMITTED if is_committed else FetchIsolation.HIGH_WATERMARK,
        max_wait_ms=max_wait_ms,
        min_bytes=min(max(message.min_bytes, 0), max_bytes),
        max_bytes=max_bytes,
        only_leader=not rack,
    )
    # all topics are unknown: answer at once, so that the client updates its metadata
    if not fetches and not on_ledgers and message.topics:
        return _respond(api, request, message, names, preferred, {}, {})
    if not on_ledgers or api.ledger_topics is None:
        return transform(
            api.replicas.fetch_messages(params, fetches), partial(_respond, api, request, message, names, preferred, {})
        )
    if not fetches:
        read = api.ledger_topics.fetch(params, on_ledgers)
        return transform(read, lambda found: _respond(api, request, message, names, preferred, found, {}))
    mixed = MixedFetch(api.replicas, api.ledger_topics, api.reactor.clock, api.run, params, fetches, on_ledgers)
    return transform(mixed.read(), lambda found: _respond(api, request, message, names, preferred, *found))


def _topic_names(api: ApiContext, request: RequestContext, message: FetchRequest) -> list[str | None]:
    """Return the names of the topics of a fetch; None: no topic has the id."""
    if request.version < _TOPIC_IDS_FROM:
        return [topic.topic for topic in message.topics]
    return [api.topic_name(topic.topic_id) for topic in message.topics]


def _respond(
    api: ApiContext, request: RequestContext, message: FetchRequest, names: list[str | None],
    preferred: Mapping[TopicPartition, PreferredReplica], on_ledgers: Mapping[TopicPartition, LedgerFetchData],
    responses: FetchResponses,
) -> FetchResponse:  # fmt: skip
    endpoints: dict[int, FetchNodeEndpoint] = {}
    is_committed = message.isolation_level == _READ_COMMITTED
    topics = []
    for topic, name in zip(message.topics, names, strict=True):
        partitions = []
        for wanted in topic.partitions:
            if name is None:
                partitions.append(_refused(wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            partition = TopicPartition(name, wanted.partition)
            if partition in on_ledgers:
                partitions.append(_ledger_data(wanted.partition, on_ledgers[partition], is_committed=is_committed))
                continue
            if partition in preferred:
                partitions.append(_read_elsewhere(wanted.partition, preferred[partition], is_committed=is_committed))
                continue
            data = responses[partition]
            if data.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                data = data._replace(code=code_without_replica(api, partition))
            leader = FetchLeaderIdAndEpoch()
            has_other_leader = data.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
            if has_other_leader and request.version >= _LEADERS_FROM:
                current = current_leader(api, partition)
                if current is not None:
                    broker, epoch = current
                    leader = FetchLeaderIdAndEpoch(broker.node_id, epoch)
                    if request.version >= _ENDPOINTS_FROM:
                        endpoints[broker.node_id] = FetchNodeEndpoint(*broker)
            partitions.append(_partition_data(wanted.partition, data, leader, is_committed=is_committed))
        topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, partitions))
    return FetchResponse(responses=topics, node_endpoints=tuple(endpoints.values()))


def _ledger_data(number: int, data: LedgerFetchData, *, is_committed: bool) -> FetchPartitionData:
    """Return the messages of a topic on ledgers, which has no transactions."""
    return FetchPartitionData(
        number, data.code, data.high_watermark, data.high_watermark, data.log_start,
        aborted_transactions=() if is_committed else None, records=data.records,
    )  # fmt: skip


def _read_elsewhere(number: int, replica: PreferredReplica, *, is_committed: bool) -> FetchPartitionData:
    """Return the answer that names the replica from which the consumer is to read, without records."""
    offsets = replica.offsets
    return FetchPartitionData(
        number, ErrorCode.NONE, offsets.high_watermark, offsets.last_stable, offsets.start,
        aborted_transactions=() if is_committed else None, preferred_read_replica=replica.node_id, records=b"",
    )  # fmt: skip


def _refused(number: int, code: int) -> FetchPartitionData:
    return FetchPartitionData(number, code, -1, aborted_transactions=None, records=b"")


def _partition_data(
    number: int, data: requests.FetchPartitionData, leader: FetchLeaderIdAndEpoch, *, is_committed: bool
) -> FetchPartitionData:  # fmt: skip
    records, code = [], data.code
    if data.records is not None:
        try:
            records = gather_batches(data.records.frames, data.records.position.entry)
        except ReplogError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
    aborted = tuple(FetchAbortedTransaction(*each) for each in data.aborted) if is_committed else None
    return FetchPartitionData(
        number, code, data.high_watermark, data.last_stable, data.log_start, current_leader=leader,
        aborted_transactions=aborted, records=records,
    )  # fmt: skip
