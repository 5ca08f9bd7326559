"""AlterPartitionReassignments and ListPartitionReassignments: move replicas to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyreplog.errors import ReplogError
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.error_codes import error_code_of
from pyreplog.kafka.node_ids import node_id_of
from pyreplog.kafka.wire.messages import (
    AlterPartitionReassignmentsReassignablePartition,
    AlterPartitionReassignmentsReassignablePartitionResponse,
    AlterPartitionReassignmentsReassignableTopicResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsOngoingPartitionReassignment,
    ListPartitionReassignmentsOngoingTopicReassignment,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from pyreplog.partition.metadata.partition_changes import (
    PartitionResult,
    Reassignment,
    list_reassignments,
    reassign_partitions,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition, by_topic


def handle_alter_partition_reassignments(
    api: ApiContext, request: RequestContext, message: AlterPartitionReassignmentsRequest
) -> Outcome:  # fmt: skip
    """Begin or cancel reassignments. The response is sent when they have begun, before they are complete."""
    return api.run(partial(_alter, api, message))


def _alter(api: ApiContext, message: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    names = api.broker_names()
    results: dict[TopicPartition, PartitionResult] = {}
    targets: dict[TopicPartition, list[str] | None] = {}
    for topic in message.topics:
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            results.pop(name, None)  # if a partition is named twice, the last target applies
            targets.pop(name, None)
            if (unknown := _unknown(each, names)) is None:
                targets[name] = None if each.replicas is None else [names[number] for number in each.replicas]
            else:
                results[name] = PartitionResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, unknown)
    try:
        results |= reassign_partitions(api.store, targets)
    except ReplogError as error:
        return AlterPartitionReassignmentsResponse(0, error_code_of(error), str(error))
    return AlterPartitionReassignmentsResponse(0, ErrorCode.NONE, None, [
        AlterPartitionReassignmentsReassignableTopicResponse(topic, [
            AlterPartitionReassignmentsReassignablePartitionResponse(number, result.code, result.message or None)
            for number, result in partitions
        ])
        for topic, partitions in by_topic(results)
    ])  # fmt: skip


def _unknown(each: AlterPartitionReassignmentsReassignablePartition, names: Mapping[int, str]) -> str | None:
    """Return an error text if a target has unknown node ids; None: it has none."""
    unknown = [str(number) for number in each.replicas or () if number not in names]
    return f"expected registered brokers, found ids {', '.join(unknown[:20])}" if unknown else None


def handle_list_partition_reassignments(
    api: ApiContext, request: RequestContext, message: ListPartitionReassignmentsRequest
) -> Outcome:  # fmt: skip
    """List the reassignments in progress."""
    return api.run(partial(_list, api, message))


def _list(api: ApiContext, message: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    topics, wanted = None, None
    if message.topics is not None:
        topics = {topic.name for topic in message.topics}
        wanted = {TopicPartition(topic.name, number) for topic in message.topics for number in topic.partition_indexes}
    try:
        found = list_reassignments(api.store, topics)
    except ReplogError as error:
        return ListPartitionReassignmentsResponse(0, error_code_of(error), str(error))
    listed = {name: each for name, each in found.items() if wanted is None or name in wanted}
    return ListPartitionReassignmentsResponse(0, ErrorCode.NONE, None, [
        ListPartitionReassignmentsOngoingTopicReassignment(topic, [_ongoing(*item) for item in partitions])
        for topic, partitions in by_topic(listed)
    ])  # fmt: skip


def _ongoing(number: int, each: Reassignment) -> ListPartitionReassignmentsOngoingPartitionReassignment:
    replicas, adding, removing = (list(map(node_id_of, names)) for names in (each.replicas, each.adding, each.removing))
    return ListPartitionReassignmentsOngoingPartitionReassignment(number, replicas, adding, removing)
