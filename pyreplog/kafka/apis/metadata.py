"""Metadata and DescribeCluster: brokers, topics, and the leaders of partitions."""

from __future__ import annotations

from functools import partial

from pyreplog.future import transform
from pyreplog.kafka.apis.context import (
    NO_OPERATIONS,
    ApiContext,
    FoundLedgerTopics,
    LivingBroker,
    Outcome,
    RequestContext,
)
from pyreplog.kafka.apis.leaders import ledger_topic_leader, wait_for_leaders
from pyreplog.kafka.apis.topic_names import is_topic_name
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from pyreplog.kafka.node_ids import node_id_of
from pyreplog.kafka.wire.messages import (
    ZERO_UUID,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.topic_partition import INTERNAL_TOPICS

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""All topic operations, since there are no ACLs: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS,
ALTER_CONFIGS."""
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
_BROKER_ENDPOINTS = 1
_IDS_FROM = 12
"""Version from which on topics can be asked for by their ids."""
_LEADERS_MS = 1_000
"""Maximum number of milliseconds for which a new topic without leaders is reported as LEADER_NOT_AVAILABLE."""


def handle_metadata(api: ApiContext, request: RequestContext, message: MetadataRequest) -> Outcome:
    """Answer a Metadata request, and start to create missing topics if listener and client allow it.

    No topic is created while it is not known whether a topic on ledgers has the name.

    As in Kafka, the response does not wait for the creation: LEADER_NOT_AVAILABLE makes the client retry. It gets the
    same code until the topic has leaders, because in Kafka a topic has leaders as soon as it exists, and some clients
    rely on it. After UNKNOWN_TOPIC_OR_PARTITION, the code of Kafka 4, group members of kafka-go would ignore the topic
    for ever.
    """
    wants_all = message.topics is None or (request.version == 0 and not message.topics)
    if api.ledger_topics is None:
        return _respond(api, request.version, message, wants_all, FoundLedgerTopics({}, True))
    names = [topic.name if topic.name is not None else api.topic_name(topic.topic_id) for topic in message.topics or ()]
    found = api.find_ledger_topics(None if wants_all else (name for name in names if name is not None))
    return transform(found, partial(_respond, api, request.version, message, wants_all))


def _create_missing(api: ApiContext, message: MetadataRequest, on_ledgers: FoundLedgerTopics) -> None:
    """Start to create the topics of a request that do not exist, if listener and client allow it."""
    may_create = message.allow_auto_topic_creation and api.config.auto_create_topics
    if message.topics and may_create and on_ledgers.is_certain:
        missing = [topic.name for topic in message.topics if topic.name and api.topic(topic.name) is None]
        wanted = [name for name in missing if is_topic_name(name) and name not in INTERNAL_TOPICS]
        wanted = [name for name in wanted if name not in on_ledgers.topics]
        api.auto_topic_creation.create_topics(wanted, lambda name: wait_for_leaders(api, [name], _LEADERS_MS))


def _respond(
    api: ApiContext, version: int, message: MetadataRequest, wants_all: bool, on_ledgers: FoundLedgerTopics
) -> MetadataResponse:  # fmt: skip
    _create_missing(api, message, on_ledgers)
    living = api.living_brokers()
    operations = TOPIC_OPERATIONS if message.include_topic_authorized_operations else NO_OPERATIONS
    topics = []
    if wants_all:
        for name, metadata in sorted(api.metadata.topics().items()):
            if not metadata.is_deleted:
                topics.append(describe_topic(api, name, metadata, living, operations))
        for name, ledger_topic in sorted(on_ledgers.topics.items()):
            if api.topics_of(name) is not None:
                topics.append(_describe_ledger_topic(api, name, ledger_topic, living, operations))
    else:
        for topic in message.topics or ():
            if topic.name is None and version < _IDS_FROM:  # such a response has no place for an unknown name
                topics.append(MetadataResponseTopic(ErrorCode.INVALID_REQUEST, "", topic.topic_id))
            else:
                topics.append(_describe_wanted(api, topic, living, operations, on_ledgers))
    brokers = [MetadataResponseBroker(*broker) for broker in living.values()]
    wants_cluster = message.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=brokers, cluster_id=api.cluster_id, controller_id=controller_id(api, living), topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NO_OPERATIONS,
    )  # fmt: skip


def _describe_wanted(
    api: ApiContext, topic: MetadataRequestTopic, living: dict[str, LivingBroker], operations: int,
    on_ledgers: FoundLedgerTopics,
) -> MetadataResponseTopic:  # fmt: skip
    name = topic.name if topic.name is not None else api.topic_name(topic.topic_id)
    if name is None:
        return _unknown(topic.name, topic.topic_id)
    found = api.topic(name)
    if api.auto_topic_creation.is_creating(name):
        return MetadataResponseTopic(ErrorCode.LEADER_NOT_AVAILABLE, name, ZERO_UUID)
    if found is not None:
        return describe_topic(api, name, found, living, operations)
    if name in on_ledgers.topics:
        return _describe_ledger_topic(api, name, on_ledgers.topics[name], living, operations)
    if not on_ledgers.is_certain and is_topic_name(name):  # it may be a topic on ledgers: the client asks again
        return MetadataResponseTopic(ErrorCode.LEADER_NOT_AVAILABLE, name, ZERO_UUID)
    return _unknown(topic.name, topic.topic_id)


def controller_id(api: ApiContext, living: dict[str, LivingBroker]) -> int:
    """Return the node id to which clients send metadata changes: this broker's, because every broker can make them."""
    return api.node_id if api.broker.name in living else -1


def _unknown(name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    if name is None:
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(code, name, ZERO_UUID)


def describe_topic(
    api: ApiContext, name: str, topic: TopicMetadata, living: dict[str, LivingBroker], operations: int
) -> MetadataResponseTopic:  # fmt: skip
    """Return a topic with its partitions."""
    states = {partition.number: state for partition, state in api.metadata.partitions(topic.topic_id)}
    partitions = [_describe_partition(number, states.get(number), living) for number in range(topic.partitions)]
    return MetadataResponseTopic(
        ErrorCode.NONE, name, bytes.fromhex(topic.topic_id), name in INTERNAL_TOPICS, partitions, operations
    )


def _describe_ledger_topic(
    api: ApiContext, name: str, topic: KnownTopic, living: dict[str, LivingBroker], operations: int
) -> MetadataResponseTopic:  # fmt: skip
    """Return a topic on ledgers, whose partitions have no leader epochs."""
    nodes = [ledger_topic_leader(api, living, name, number) for number in range(topic.partitions)]
    partitions = [
        MetadataResponsePartition(ErrorCode.NONE, number, node, replica_nodes=[node], isr_nodes=[node])
        for number, node in enumerate(nodes)
    ]
    return MetadataResponseTopic(ErrorCode.NONE, name, topic.topic_id, False, partitions, operations)


def _describe_partition(
    number: int, state: PartitionState | None, living: dict[str, LivingBroker]
) -> MetadataResponsePartition:  # fmt: skip
    if state is None:  # the controller has not assigned replicas yet
        return MetadataResponsePartition(ErrorCode.LEADER_NOT_AVAILABLE, number, -1)
    has_leader = state.leader in living
    return MetadataResponsePartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        number,
        node_id_of(state.leader) if has_leader else -1,
        state.epoch.number,
        [node_id_of(name) for name in state.replicas],
        [node_id_of(member.broker) for member in state.isr],
        [node_id_of(name) for name in state.replicas if name not in living],
    )


def handle_describe_cluster(api: ApiContext, _: RequestContext, message: DescribeClusterRequest) -> Outcome:
    """Return the brokers of the cluster."""
    living = api.living_brokers()
    controller = controller_id(api, living)
    code, text = ErrorCode.NONE, None
    if message.endpoint_type != _BROKER_ENDPOINTS:
        code = ErrorCode.INVALID_REQUEST
        text = f"endpoint_type: expected {_BROKER_ENDPOINTS}, brokers, found {message.endpoint_type}"
        living = {}
    operations = CLUSTER_OPERATIONS if message.include_cluster_authorized_operations else NO_OPERATIONS
    return DescribeClusterResponse(
        error_code=code, error_message=text, endpoint_type=_BROKER_ENDPOINTS, cluster_id=api.cluster_id,
        controller_id=controller, brokers=[DescribeClusterBroker(*broker) for broker in living.values()],
        cluster_authorized_operations=operations,
    )  # fmt: skip
