"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: consumer groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from pyreplog.future import transform
from pyreplog.kafka.apis.context import NO_OPERATIONS, ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.groups import gather, host_of
from pyreplog.kafka.groups.assignors import Partitions, TopicIdPartition
from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from pyreplog.kafka.wire.messages import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeTopicPartitions,
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)

_IDS_OF_CLIENTS_FROM = 1
_CONSUMER_MEMBER = 1


def handle_consumer_group_heartbeat(
    api: ApiContext, request: RequestContext, message: ConsumerGroupHeartbeatRequest
) -> Outcome:  # fmt: skip
    """Handle a heartbeat: a member joins, stays or leaves.

    The response is sent when the log holds the member's new state.
    """
    owned = topics = None
    if message.topic_partitions is not None:
        owned = frozenset(
            TopicIdPartition(bytes(topic.topic_id), number)
            for topic in message.topic_partitions
            for number in topic.partitions
        )
    if message.subscribed_topic_names is not None:
        topics = frozenset(message.subscribed_topic_names)
    beat = ConsumerHeartbeat(
        member_id=message.member_id, member_epoch=message.member_epoch, client_id=request.client_id or "",
        client_host=host_of(request.peer), instance_id=message.instance_id, rack_id=message.rack_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms, topics=topics, regex=message.subscribed_topic_regex,
        server_assignor=message.server_assignor, owned=owned, chooses_id=request.version >= _IDS_OF_CLIENTS_FROM,
    )  # fmt: skip
    return transform(api.groups.consumer_heartbeat(message.group_id, beat), _answered)


def _answered(result: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = ConsumerGroupHeartbeatAssignment(
            [ConsumerGroupHeartbeatTopicPartitions(*each) for each in _by_topic(result.assignment)]
        )
    return ConsumerGroupHeartbeatResponse(
        0, result.code, result.text, result.member_id, result.member_epoch, result.heartbeat_interval_ms, assignment
    )


def _by_topic(partitions: Partitions) -> Iterable[tuple[bytes, list[int]]]:
    for topic_id, group in groupby(sorted(partitions), key=lambda each: each.topic_id):
        yield topic_id, [each.partition for each in group]


def handle_consumer_group_describe(
    api: ApiContext, request: RequestContext, message: ConsumerGroupDescribeRequest
) -> Outcome:  # fmt: skip
    """Describe consumer groups that this broker coordinates."""

    def assignment(partitions: Partitions) -> ConsumerGroupDescribeAssignment:
        topics = [
            ConsumerGroupDescribeTopicPartitions(topic_id, name, numbers)
            for topic_id, numbers in _by_topic(partitions)
            if (name := api.topic_name(topic_id)) is not None
        ]
        return ConsumerGroupDescribeAssignment(topics)

    def member(each: DescribedConsumer) -> ConsumerGroupDescribeMember:
        return ConsumerGroupDescribeMember(
            each.member_id, each.instance_id, each.rack_id, each.member_epoch, each.client_id, each.client_host,
            each.topics, each.regex or "", assignment(each.assignment), assignment(each.target), _CONSUMER_MEMBER,
        )  # fmt: skip

    def group(each: DescribedConsumerGroup) -> ConsumerGroupDescribeDescribedGroup:
        state = "" if each.code else each.state.value  # as Kafka: a group with an error is not described
        return ConsumerGroupDescribeDescribedGroup(
            each.code, each.text, each.group_id, state, each.group_epoch, each.assignment_epoch,
            each.assignor, [member(each) for each in each.members], NO_OPERATIONS,
        )  # fmt: skip

    def answer(groups: Sequence[DescribedConsumerGroup]) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(groups=[group(each) for each in groups])

    return transform(gather([api.groups.describe_consumer_group(group_id) for group_id in message.group_ids]), answer)
