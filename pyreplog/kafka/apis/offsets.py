"""OffsetCommit, OffsetFetch, OffsetDelete: committed offsets of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.groups import gather
from pyreplog.kafka.apis.leaders import exists
from pyreplog.kafka.groups import group_requests
from pyreplog.kafka.groups.group_requests import FetchedOffset, OffsetFetchResult, OffsetToCommit
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID
from pyreplog.kafka.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    TxnOffsetCommitRequest,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition, by_topic

_GROUPS_FROM = 8
_CODES_FROM = 2
_MEMBER_EPOCHS_FROM = 9


def offsets_to_commit(
    api: ApiContext, message: OffsetCommitRequest | TxnOffsetCommitRequest
) -> tuple[dict[TopicPartition, OffsetToCommit], dict[TopicPartition, int]]:  # fmt: skip
    """Return the offsets of a request, and the error codes of partitions that do not exist."""
    offsets: dict[TopicPartition, OffsetToCommit] = {}
    unknown: dict[TopicPartition, int] = {}
    for topic in message.topics:
        stored = api.topic(topic.name)
        topic_id = NO_TOPIC_ID if stored is None else bytes.fromhex(stored.topic_id)
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            if exists(api, name):
                offsets[name] = OffsetToCommit(
                    each.committed_offset, each.committed_leader_epoch, each.committed_metadata or "", topic_id
                )
            else:
                unknown[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return offsets, unknown


def handle_offset_commit(api: ApiContext, request: RequestContext, message: OffsetCommitRequest) -> Outcome:
    """Commit offsets. The response is sent when they are committed to `__consumer_offsets`."""
    strange = [topic.name for topic in message.topics if api.topic(topic.name) is None]
    if api.ledger_topics is not None and any(api.known_ledger_topic(name) is None for name in strange):
        return transform(api.find_ledger_topics(strange), lambda _: _commit(api, request, message))
    return _commit(api, request, message)


def _commit(
    api: ApiContext, request: RequestContext, message: OffsetCommitRequest
) -> OffsetCommitResponse | AppendFuture[OffsetCommitResponse]:  # fmt: skip
    offsets, unknown = offsets_to_commit(api, message)
    commit = group_requests.OffsetCommitRequest(
        message.member_id, message.generation_id_or_member_epoch, offsets, message.group_instance_id,
        knows_member_epochs=request.version >= _MEMBER_EPOCHS_FROM,
    )  # fmt: skip

    def answer(codes: dict[TopicPartition, int]) -> OffsetCommitResponse:
        codes = {**codes, **unknown}
        topics = []
        for topic in message.topics:
            numbers = [each.partition_index for each in topic.partitions]
            results = [OffsetCommitResponsePartition(n, codes[TopicPartition(topic.name, n)]) for n in numbers]
            topics.append(OffsetCommitResponseTopic(topic.name, results))
        return OffsetCommitResponse(topics=topics)

    if not offsets:
        return answer({})
    return transform(api.groups.commit_offsets(message.group_id, commit), lambda codes: answer({**codes}))


def handle_offset_fetch(api: ApiContext, request: RequestContext, message: OffsetFetchRequest) -> Outcome:
    """Return the committed offsets of groups."""
    if request.version < _GROUPS_FROM:
        names = None if message.topics is None else _names((t.name, t.partition_indexes) for t in message.topics)
        fetched = api.groups.fetch_offsets(message.group_id, names, require_stable=message.require_stable)
        return transform(fetched, partial(_fetched_one, request.version))
    futures = []
    for group in message.groups:
        names = None if group.topics is None else _names((t.name, t.partition_indexes) for t in group.topics)
        fetched = api.groups.fetch_offsets(
            group.group_id, names, require_stable=message.require_stable, member_id=group.member_id,
            member_epoch=group.member_epoch,
        )  # fmt: skip
        futures.append(fetched)

    def answer(results: Sequence[OffsetFetchResult]) -> OffsetFetchResponse:
        groups = []
        for group, result in zip(message.groups, results, strict=True):
            topics = [
                OffsetFetchResponseTopics(topic, [OffsetFetchResponsePartitions(*_fields(*each)) for each in offsets])
                for topic, offsets in by_topic(result.offsets)
            ]
            groups.append(OffsetFetchResponseGroup(group.group_id, topics, result.code))
        return OffsetFetchResponse(groups=groups)

    return transform(gather(futures), answer)


def _fetched_one(version: int, result: OffsetFetchResult) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponseTopic(topic, [OffsetFetchResponsePartition(*_fields(*each)) for each in offsets])
        for topic, offsets in by_topic(result.offsets)
    ]
    return OffsetFetchResponse(topics=topics, error_code=result.code if version >= _CODES_FROM else 0)


def _names(topics: Iterable[tuple[str, Sequence[int]]]) -> Collection[TopicPartition]:
    return [TopicPartition(topic, number) for topic, numbers in topics for number in numbers]


def _fields(number: int, fetched: FetchedOffset) -> tuple[int, int, int, str, int]:
    return number, fetched.offset, fetched.leader_epoch, fetched.metadata, fetched.code


def handle_offset_delete(api: ApiContext, request: RequestContext, message: OffsetDeleteRequest) -> Outcome:
    """Delete committed offsets of topics that no member of the group subscribes to."""
    names = [TopicPartition(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions]

    def answer(codes: dict[TopicPartition, int]) -> OffsetDeleteResponse:
        topics = []
        for topic in message.topics:
            numbers = [each.partition_index for each in topic.partitions]
            results = [OffsetDeleteResponsePartition(n, codes[TopicPartition(topic.name, n)]) for n in numbers]
            topics.append(OffsetDeleteResponseTopic(topic.name, results))
        return OffsetDeleteResponse(topics=topics)

    return transform(api.groups.delete_offsets(message.group_id, names), lambda codes: answer({**codes}))
