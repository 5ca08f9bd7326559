"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyreplog.errors import InvalidArgumentError, NoSuchTopicError
from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.leaders import wait_for_leaders
from pyreplog.kafka.apis.refusals import RefusedError, outcome_of, refusal_of
from pyreplog.kafka.apis.topic_names import is_topic_name
from pyreplog.kafka.groups.topic_catalog import KnownTopic
from pyreplog.kafka.wire.messages import (
    ZERO_UUID,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsCreatableTopic,
    CreateTopicsCreatableTopicConfigs,
    CreateTopicsCreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsDeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from pyreplog.partition.delayed_delete_records import DeleteRecordsResponse as DeleteRecordsOutcome
from pyreplog.partition.delayed_delete_records import DeleteRecordsResponses
from pyreplog.partition.metadata.broker_registration import BROKERS
from pyreplog.partition.metadata.topic_metadata import (
    PARTITIONS_MAX,
    TopicMetadata,
    create_partitions,
    create_topic,
    delete_topic,
)
from pyreplog.partition.metadata.topic_settings import KAFKA_DEFAULTS, format_setting, parse_settings
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition

_WAIT_MS_MAX = 60_000
_SEGMENT_BYTES_MAX = 1 << 30
_LOOK_UP_S = 10.0
"""Seconds that the cluster of the topics on ledgers may take to tell whether a topic exists."""
_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5
"""Sources of settings."""


def _check_new_name(name: str) -> None:
    if not is_topic_name(name) or name in INTERNAL_TOPICS:
        wanted = "1 to 249 letters, digits, '.', '_' and '-', of no internal topic"
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"name: expected {wanted}, found {name[:80]!r}")


def _find_on_ledgers(api: ApiContext, name: str) -> KnownTopic | None:
    """Look up a topic on ledgers; None: no topic has the name. Blocks. Raises the errors of the topic's cluster."""
    topics = api.topics_of(name)
    return None if topics is None else topics.find([name]).result(_LOOK_UP_S).get(name)


def _check_of_brokers(api: ApiContext, name: str) -> None:
    """Refuse a change of a topic on ledgers. Blocks."""
    if _find_on_ledgers(api, name) is not None:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"{name} is a topic on ledgers: change it with pyreplog's API or `pyreplog topic`",
        )


# ---- CreateTopics ---------------------------------------------------------------------------------------------


def handle_create_topics(api: ApiContext, request: RequestContext, message: CreateTopicsRequest) -> Outcome:
    """Create topics.

    The response is sent when all partitions have leaders, or after the time-out, which is no error.
    """
    created = api.run(partial(_create_topics, api, message))

    def answer(results: Sequence[CreateTopicsCreatableTopicResult]) -> Any:
        names = [result.name for result in results if not result.error_code]
        response = CreateTopicsResponse(topics=results)
        if message.validate_only or not names:
            return response
        return transform(wait_for_leaders(api, names, min(message.timeout_ms, _WAIT_MS_MAX)), lambda _: response)

    return transform(created, answer)


def _create_topics(api: ApiContext, message: CreateTopicsRequest) -> list[CreateTopicsCreatableTopicResult]:
    times = Counter(topic.name for topic in message.topics)
    results = []
    for topic in {topic.name: topic for topic in message.topics}.values():
        try:
            if times[topic.name] > 1:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the request has this topic more than once")
            results.append(_create(api, topic, validate_only=message.validate_only))
        except Exception as error:  # continue with the other topics
            code, text = refusal_of(error)
            results.append(
                CreateTopicsCreatableTopicResult(topic.name, ZERO_UUID, code, text, num_partitions=-1, configs=None)
            )
    return results


def _create(
    api: ApiContext, topic: CreateTopicsCreatableTopic, *, validate_only: bool
) -> CreateTopicsCreatableTopicResult:  # fmt: skip
    _check_new_name(topic.name)
    if _find_on_ledgers(api, topic.name) is not None:
        raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic.name} exists as a topic on ledgers")
    config, assignment = api.config, _assignment(api, topic)
    partitions = len(assignment) or (config.partitions if topic.num_partitions == -1 else topic.num_partitions)
    factor = config.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if assignment:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "expected an assignment, or numbers of partitions and replicas"
            )
        factor = len(assignment[0])
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"partitions: expected 1 to {PARTITIONS_MAX}, found {partitions}"
        )
    registered = len(api.metadata.brokers())
    if factor > registered:  # a broker may have registered a moment ago
        registered = len(api.store.list(BROKERS))
    if not 1 <= factor <= registered:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"replicas: expected 1 to {registered}, brokers, found {factor}"
        )
    settings = {**KAFKA_DEFAULTS, "min.insync.replicas": config.min_isr}
    settings |= parse_settings({each.name: each.value for each in topic.configs if each.value is not None})
    settings |= _larger_segments(settings, api.broker.config.segment_bytes)
    if validate_only:
        if api.metadata.topic(topic.name) is not None:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists")
        return CreateTopicsCreatableTopicResult(
            topic.name, num_partitions=partitions, replication_factor=factor, configs=()
        )
    try:
        created = create_topic(
            api.store, topic.name, partitions=partitions, replication_factor=factor,
            now_us=api.reactor.clock.now_us(), assignment=assignment, settings=settings,
        )  # fmt: skip
    except InvalidArgumentError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
    configs = [
        CreateTopicsCreatableTopicConfigs(
            name, format_setting(value), False, _TOPIC_CONFIG if name in settings else _DEFAULT_CONFIG
        )
        for name, value in created.config.values().items()
    ]
    return CreateTopicsCreatableTopicResult(
        topic.name, bytes.fromhex(created.topic_id), ErrorCode.NONE, None, 0, partitions, factor, configs
    )


def _larger_segments(settings: Mapping[str, Any], segment_bytes: int) -> dict[str, int]:
    """Return the segment size that the largest batches of a topic need; {}: this broker's segments are large enough.

    Kafka's default segment size is 1 GiB, so its clients expect that setting `max.message.bytes` is enough.
    """
    needed = 2 * settings.get("max.message.bytes", 0)
    if settings.get("segment.bytes") is not None or needed <= segment_bytes:
        return {}
    return {"segment.bytes": min(1 << (needed - 1).bit_length(), _SEGMENT_BYTES_MAX)}


def _assignment(api: ApiContext, topic: CreateTopicsCreatableTopic) -> dict[int, tuple[str, ...]]:
    """Return the brokers that the client chose for each partition."""
    chosen = {each.partition_index: _brokers(api, each.partition_index, each.broker_ids) for each in topic.assignments}
    if sorted(chosen) != list(range(len(topic.assignments))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "expected an assignment of partitions 0, 1, ..., each once"
        )
    return chosen


def _brokers(api: ApiContext, partition: int, node_ids: Sequence[int]) -> tuple[str, ...]:
    """Return the brokers that a client chose for a partition."""
    names = api.broker_names()
    if not node_ids or len({*node_ids}) < len(node_ids) or not {*node_ids} <= names.keys():
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partition {partition}: expected distinct brokers of {sorted(names)}, found {list(node_ids)[:20]}",
        )
    return tuple(names[number] for number in node_ids)


# ---- DeleteTopics ---------------------------------------------------------------------------------------------


def handle_delete_topics(api: ApiContext, request: RequestContext, message: DeleteTopicsRequest) -> Outcome:
    """Delete topics. The response is sent when this broker no longer knows them, or after the time-out."""
    deleted = api.run(partial(_delete_topics, api, message))

    def answer(results: Sequence[DeleteTopicsDeletableTopicResult]) -> Any:
        ids = [result.topic_id.hex() for result in results if not result.error_code]  # names may be those of new topics
        gone = api.wait_until(
            lambda: all(api.metadata.topic_by_id(topic_id) is None for topic_id in ids),
            min(message.timeout_ms, _WAIT_MS_MAX),
        )
        return transform(gone, lambda _: DeleteTopicsResponse(responses=results))

    return transform(deleted, answer)


def _delete_topics(api: ApiContext, message: DeleteTopicsRequest) -> list[DeleteTopicsDeletableTopicResult]:
    names: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in message.topic_names]
    names += [
        (api.topic_name(topic.topic_id) if topic.name is None else topic.name, topic.topic_id)
        for topic in message.topics
    ]
    results = []
    for name, topic_id in dict.fromkeys(names):
        try:
            if name is None:
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
            if name in INTERNAL_TOPICS:
                raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "an internal topic is not deleted")
            if not is_topic_name(name):
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic of such a name")
            _check_of_brokers(api, name)
            gone = _delete(api, name, topic_id)
            results.append(DeleteTopicsDeletableTopicResult(name, bytes.fromhex(gone.topic_id)))
        except Exception as error:  # continue with the other topics
            results.append(DeleteTopicsDeletableTopicResult(name, topic_id, *refusal_of(error)))
    return results


def _delete(api: ApiContext, name: str, topic_id: bytes) -> TopicMetadata:
    """Delete a topic. If the client named it by its id, a new topic of the same name stays."""
    if topic_id == ZERO_UUID:
        return delete_topic(api.store, name)
    try:
        return delete_topic(api.store, name, topic_id.hex())
    except NoSuchTopicError as error:  # this broker did not know the deletion yet
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}") from error


# ---- CreatePartitions -----------------------------------------------------------------------------------------


def handle_create_partitions(api: ApiContext, request: RequestContext, message: CreatePartitionsRequest) -> Outcome:
    """Increase the number of partitions of topics. The response waits for leaders, as for CreateTopics."""
    grown = api.run(partial(_create_partitions, api, message))

    def answer(results: Sequence[CreatePartitionsTopicResult]) -> Any:
        names = [result.name for result in results if not result.error_code]
        response = CreatePartitionsResponse(results=results)
        counts = {topic.name: topic.partition_count for topic in message.topics}

        def have_grown() -> bool:
            topics = [(api.topic(name), counts[name]) for name in names]
            return all(topic is not None and topic.partitions >= count for topic, count in topics)

        if message.validate_only or not names:
            return response
        timeout_ms = min(message.timeout_ms, _WAIT_MS_MAX)
        known = api.wait_until(have_grown, timeout_ms)
        led: AppendFuture[bool] = transform(known, lambda _: wait_for_leaders(api, names, timeout_ms))
        return transform(led, lambda _: response)

    return transform(grown, answer)


def _create_partitions(api: ApiContext, message: CreatePartitionsRequest) -> list[CreatePartitionsTopicResult]:
    def grow(topic: CreatePartitionsTopic) -> None:
        found = api.topic(topic.name)
        if found is None:
            _check_of_brokers(api, topic.name)
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name[:80]!r}")
        if not found.partitions < topic.partition_count <= PARTITIONS_MAX:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"partitions: expected {found.partitions + 1} to {PARTITIONS_MAX}, found {topic.partition_count}",
            )
        assignment = {
            found.partitions + number: _brokers(api, found.partitions + number, each.broker_ids)
            for number, each in enumerate(topic.assignments or ())
        }
        if assignment and len(assignment) != topic.partition_count - found.partitions:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected an assignment of {topic.partition_count - found.partitions} new partitions, "
                f"found {len(assignment)}",
            )
        if not message.validate_only:
            create_partitions(api.store, topic.name, topic.partition_count, assignment)

    return [
        CreatePartitionsTopicResult(topic.name, *outcome_of(partial(grow, topic)))
        for topic in {topic.name: topic for topic in message.topics}.values()
    ]


# ---- DeleteRecords --------------------------------------------------------------------------------------------


def handle_delete_records(api: ApiContext, request: RequestContext, message: DeleteRecordsRequest) -> Outcome:
    """Delete the records before given offsets. The response is sent when all replicas have deleted them (KIP-107)."""
    offsets = {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in message.topics
        for each in topic.partitions
    }
    on_ledgers = {name for name in offsets if api.known_ledger_topic(name.topic) is not None}
    refused = dict.fromkeys(on_ledgers, DeleteRecordsOutcome(ErrorCode.POLICY_VIOLATION))
    offsets = {name: offset for name, offset in offsets.items() if name not in on_ledgers}
    timeout_s = min(max(message.timeout_ms, 0), _WAIT_MS_MAX) / 1000
    started = api.run(lambda: api.broker.delete_records(offsets, timeout_s))  # blocks for the disk
    deleted: AppendFuture[DeleteRecordsResponses] = transform(started, lambda future: future)
    return transform(deleted, lambda outcomes: _deleted(message, {**outcomes, **refused}))


def _deleted(message: DeleteRecordsRequest, outcomes: DeleteRecordsResponses) -> DeleteRecordsResponse:
    topics = []
    for topic in message.topics:
        results = []
        for each in topic.partitions:
            outcome = outcomes[TopicPartition(topic.name, each.partition_index)]
            results.append(DeleteRecordsPartitionResult(each.partition_index, outcome.low_watermark, outcome.code))
        topics.append(DeleteRecordsTopicResult(topic.name, results))
    return DeleteRecordsResponse(topics=topics)
