"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, and fixed ones of the listener."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.refusals import RefusedError, outcome_of
from pyreplog.kafka.wire.messages import (
    AlterConfigsAlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, alter_topic
from pyreplog.partition.metadata.topic_settings import (
    IMPLIED_SETTINGS,
    SETTINGS,
    TopicSettings,
    format_setting,
    parse_setting,
    parse_settings,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import INTERNAL_TOPICS

TOPIC, BROKER = 2, 4
"""Resource types."""
_TOPIC_CONFIG, _STATIC_BROKER_CONFIG, _DEFAULT_CONFIG = 1, 4, 5
_BOOLEAN, _STRING, _INT = 1, 2, 3
_LOOK_UP_S = 10.0
"""Seconds that the cluster of the topics on ledgers may take to answer."""


def handle_describe_configs(api: ApiContext, request: RequestContext, message: DescribeConfigsRequest) -> Outcome:
    """Return the settings of topics and of this broker."""

    def describe() -> DescribeConfigsResponse:
        results = [_describe(api, resource, with_synonyms=message.include_synonyms) for resource in message.resources]
        return DescribeConfigsResponse(results=results)

    names = [resource.resource_name for resource in message.resources if resource.resource_type == TOPIC]
    if any(api.topics_of(name) is not None for name in names):
        return api.run(describe)  # blocks for the topics on ledgers
    return describe()


def _ledger_settings(api: ApiContext, name: str) -> dict[str, tuple[str, int]] | None:
    """Return the settings of a topic on ledgers, as far as Kafka has words for them; None: there is none. Blocks."""
    topics = api.topics_of(name)
    if topics is None or name not in topics.find([name]).result(_LOOK_UP_S):
        return None
    config = topics.config(name).result(_LOOK_UP_S)
    values = {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed" if config.compression == "none" else config.compression,
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(config.acks),
        "retention.bytes": str(-1 if config.retention_bytes is None else config.retention_bytes),
        "retention.ms": str(-1 if config.retention_ms is None else config.retention_ms),
        "segment.bytes": str(config.roll_bytes),
        "segment.ms": str(config.roll_ms),
    }
    return {key: (text, _TOPIC_CONFIG) for key, text in values.items()}


def _describe(api: ApiContext, resource: DescribeConfigsResource, *, with_synonyms: bool) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        topic = api.topic(name)
        try:
            on_ledgers = _ledger_settings(api, name) if topic is None else None
        except ReplogError as error:
            return DescribeConfigsResult(ErrorCode.REQUEST_TIMED_OUT, str(error), kind, name)
        if topic is None and on_ledgers is None:
            code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:80]!r}"
            return DescribeConfigsResult(code, text, kind, name)
        defaults = TopicSettings().values()
        settings = on_ledgers or {
            **{key: (text, _DEFAULT_CONFIG) for key, text in IMPLIED_SETTINGS.items()},
            **{
                key: (format_setting(value), _DEFAULT_CONFIG if value == defaults[key] else _TOPIC_CONFIG)
                for key, value in ({} if topic is None else topic.config.values()).items()
            },
        }
        is_fixed = on_ledgers is not None
    elif kind == BROKER and name == str(api.node_id):
        settings = {key: (text, _STATIC_BROKER_CONFIG) for key, text in _broker_settings(api).items()}
        is_fixed = True
    else:
        text = f"expected a topic, or broker {api.node_id}, found type {kind}, {name[:80]!r}"
        return DescribeConfigsResult(ErrorCode.INVALID_REQUEST, text, kind, name)
    wanted: Collection[str] | None = resource.configuration_keys
    configs = [
        _describe_one(key, text, source, is_fixed=is_fixed, with_synonyms=with_synonyms)
        for key, (text, source) in sorted(settings.items())
        if wanted is None or key in wanted
    ]
    return DescribeConfigsResult(ErrorCode.NONE, None, kind, name, configs)


def _describe_one(
    key: str, text: str, source: int, *, is_fixed: bool, with_synonyms: bool
) -> DescribeConfigsResourceResult:  # fmt: skip
    kind = _BOOLEAN if text in ("true", "false") else _INT if text.lstrip("-").isdigit() else _STRING
    synonyms = [DescribeConfigsSynonym(key, text, source)] if with_synonyms else ()
    return DescribeConfigsResourceResult(key, text, is_fixed, source, False, synonyms, kind)


def _broker_settings(api: ApiContext) -> dict[str, str]:
    config, lasting = api.config, api.metadata.broker(api.broker.name)
    return {
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "broker.id": str(api.node_id),
        "broker.rack": "" if lasting is None else lasting.rack,
        "connections.max.idle.ms": str(config.idle_ms),
        "default.replication.factor": str(config.replication_factor),
        "fetch.max.bytes": str(config.fetch_bytes),
        "max.connections": str(config.connections),
        "min.insync.replicas": str(config.min_isr),
        "num.partitions": str(config.partitions),
        "socket.request.max.bytes": str(config.max_request_bytes),
    }


# ---- changes --------------------------------------------------------------------------------------------------

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
"""Operations of IncrementalAlterConfigs; the last two are for lists."""
_LISTS = ("cleanup.policy",)
"""The settings that are lists."""


def handle_alter_configs(api: ApiContext, request: RequestContext, message: AlterConfigsRequest) -> Outcome:
    """Replace the settings of topics: settings that the request does not name get their defaults."""

    def answer(results: list[_AlterResult]) -> AlterConfigsResponse:
        return AlterConfigsResponse(responses=[AlterConfigsResourceResponse(*result) for result in results])

    return transform(_alter_resources(api, message, _replaced_values), answer)


def handle_incremental_alter_configs(
    api: ApiContext, request: RequestContext, message: IncrementalAlterConfigsRequest
) -> Outcome:  # fmt: skip
    """Change some settings of topics (KIP-339)."""

    def answer(results: list[_AlterResult]) -> IncrementalAlterConfigsResponse:
        responses = [IncrementalAlterConfigsAlterConfigsResourceResponse(*result) for result in results]
        return IncrementalAlterConfigsResponse(responses=responses)

    return transform(_alter_resources(api, message, _changed_values), answer)


def _replaced_values(configs: Iterable[AlterConfigsAlterableConfig], _: TopicSettings) -> dict[str, Any]:
    """Return the new value of every setting that can be changed, by name; None: the default."""
    named = parse_settings({each.name: each.value for each in configs})
    return {**{key: None for key, setting in SETTINGS.items() if not setting.is_fixed}, **named}


def _changed_values(
    configs: Iterable[IncrementalAlterConfigsAlterableConfig], current: TopicSettings
) -> dict[str, Any]:  # fmt: skip
    """Return the new values of the named settings; None: the default.

    As in Kafka, a setting that does not exist can be deleted: tools delete throttles without looking for them.
    """
    values: dict[str, Any] = {}
    named: set[str] = set()
    for key, operation, text in configs:
        if key in named:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{key}: expected one change, found several")
        named.add(key)
        if operation in (_APPEND, _SUBTRACT) and key in _LISTS:
            values[key] = parse_setting(key, _changed_list(current.values()[key], operation, text or ""))
        elif operation not in (_SET, _DELETE):
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{key}: expected SET or DELETE, found operation {operation}")
        elif operation == _SET and text is not None:
            values |= parse_settings({key: text})
        elif key in SETTINGS:
            values[key] = None
    return values


def _changed_list(current: str, operation: int, text: str) -> str:
    """Return a list with items appended that it does not have, or without items. Items are separated by commas."""
    items, changed = current.split(","), text.split(",")
    if operation == _APPEND:
        return ",".join([*items, *(item for item in changed if item not in items)])
    return ",".join(item for item in items if item not in changed)


_AlterResult: TypeAlias = "tuple[ErrorCode, str | None, int, str]"
"""Code, text, type and name of a resource."""


def _alter_resources(
    api: ApiContext, message: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    values_of: Callable[[Any, TopicSettings], Mapping[str, Any]],
) -> AppendFuture[list[_AlterResult]]:  # fmt: skip
    """Change the resources of a request. Returns a future that is done when this broker knows the changes."""
    altered: dict[str, TopicMetadata] = {}

    def alter(resource: AlterConfigsResource | IncrementalAlterConfigsAlterConfigsResource) -> None:
        if resource.resource_type == BROKER:
            _check_broker_changes(api, resource)
            return
        name = resource.resource_name
        on_ledgers = _ledger_settings(api, name) if resource.resource_type == TOPIC else None
        if on_ledgers is not None:
            _check_ledger_changes(name, on_ledgers, resource.configs)
            return
        topic = _alterable_topic(api, resource.resource_type, name)
        values = values_of(resource.configs, topic.config)
        if message.validate_only:
            TopicSettings.of(
                {**topic.config.values(), **{key: value for key, value in values.items() if value is not None}}
            )
        else:
            altered[name] = alter_topic(api.store, name, values)

    def alter_all() -> list[_AlterResult]:
        return [
            (*outcome_of(partial(alter, resource)), resource.resource_type, resource.resource_name)
            for resource in message.resources
        ]

    def is_known() -> bool:
        return all(
            (known := api.topic(name)) is None or known.config == topic.config for name, topic in altered.items()
        )

    def when_known(results: list[_AlterResult]) -> Any:
        return api.answer_when_known(results, is_known) if altered else results

    return transform(api.run(alter_all), when_known)


def _check_broker_changes(
    api: ApiContext, resource: AlterConfigsResource | IncrementalAlterConfigsAlterConfigsResource
) -> None:  # fmt: skip
    """Check that a request changes nothing: a broker that runs has no setting that could be changed or deleted."""
    name = resource.resource_name
    if name not in ("", str(api.node_id)):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"expected broker {api.node_id}, found broker {name[:80]!r}")
    for config in resource.configs:
        is_deleted = isinstance(config, IncrementalAlterConfigsAlterableConfig) and config.config_operation == _DELETE
        if not is_deleted and config.value is not None:
            text = f"{config.name[:80]}: settings of brokers are fixed: change the options of `pyreplog broker`"
            raise RefusedError(ErrorCode.INVALID_CONFIG, text)


def _check_ledger_changes(
    name: str, settings: Mapping[str, tuple[str, int]],
    configs: Iterable[AlterConfigsAlterableConfig | IncrementalAlterConfigsAlterableConfig],
) -> None:  # fmt: skip
    """Check that a request leaves all settings of a topic on ledgers as they are.

    A request may set a setting to the value that it has, and delete one that is not set. Such topics take batches of
    producers with any codec, which Kafka calls `compression.type=producer`. AlterConfigs keeps the settings of these
    topics that the request does not name; of other topics it resets them.

    Raises:
        RefusedError: the request would change a setting.
    """
    for config in configs:
        key, text = config.name, config.value
        operation = config.config_operation if isinstance(config, IncrementalAlterConfigsAlterableConfig) else _SET
        if operation == _DELETE or text is None:
            is_kept = key in IMPLIED_SETTINGS or key not in settings
        else:
            is_kept = operation == _SET and text in (settings.get(key, ("",))[0], IMPLIED_SETTINGS.get(key))
        if not is_kept:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{key[:80]}: {name} is a topic on ledgers: change it with pyreplog's API or `pyreplog topic`",
            )


def _alterable_topic(api: ApiContext, kind: int, name: str) -> TopicMetadata:
    if kind != TOPIC:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"expected a topic or a broker, found a resource of type {kind}")
    topic = api.topic(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:80]!r}")
    if name in INTERNAL_TOPICS:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the settings of internal topics are fixed")
    return topic
