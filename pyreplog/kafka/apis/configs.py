"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, and of the listener, which are fixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from pyreplog.future import AppendFuture, transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.refusals import RefusedError, outcome_of
from pyreplog.kafka.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, alter_topic
from pyreplog.partition.metadata.topic_settings import SETTINGS, TopicSettings, format_setting, parse_setting
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import INTERNAL_TOPICS

TOPIC, BROKER = 2, 4
"""Types of resources."""
_TOPIC_CONFIG, _STATIC_BROKER_CONFIG, _DEFAULT_CONFIG = 1, 4, 5
_BOOLEAN, _STRING, _INT = 1, 2, 3


def handle_describe_configs(api: ApiContext, request: RequestContext, message: DescribeConfigsRequest) -> Outcome:
    """Answer a DescribeConfigs request."""
    results = [_describe(api, resource, with_synonyms=message.include_synonyms) for resource in message.resources]
    return DescribeConfigsResponse(results=results)


def _describe(api: ApiContext, resource: DescribeConfigsResource, *, with_synonyms: bool) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        topic = api.topic(name)
        if topic is None:
            code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:80]!r}"
            return DescribeConfigsResult(code, text, kind, name)
        defaults = TopicSettings().values()
        settings = {
            key: (format_setting(value), _DEFAULT_CONFIG if value == defaults[key] else _TOPIC_CONFIG)
            for key, value in topic.config.values().items()
        }
        is_fixed = False
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

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs; the others are for lists."""


def handle_alter_configs(api: ApiContext, request: RequestContext, message: AlterConfigsRequest) -> Outcome:
    """Replace the settings of topics: what the request does not name gets its default."""

    altered: dict[str, TopicMetadata] = {}

    def alter() -> AlterConfigsResponse:
        responses = []
        for resource in message.resources:
            texts = {each.name: each.value for each in resource.configs}
            change = partial(_replace, api, altered, resource.resource_type, resource.resource_name, texts)
            outcome = outcome_of(partial(change, validate_only=message.validate_only))
            responses.append(AlterConfigsResourceResponse(*outcome, resource.resource_type, resource.resource_name))
        return AlterConfigsResponse(responses=responses)

    return _when_known(api, api.run(alter), altered)


def handle_incremental_alter_configs(
    api: ApiContext, request: RequestContext, message: IncrementalAlterConfigsRequest
) -> Outcome:  # fmt: skip
    """Change some settings of topics (KIP-339)."""

    altered: dict[str, TopicMetadata] = {}

    def alter() -> IncrementalAlterConfigsResponse:
        responses = []
        for resource in message.resources:
            changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
            change = partial(_change, api, altered, resource.resource_type, resource.resource_name, changes)
            outcome = outcome_of(partial(change, validate_only=message.validate_only))
            responses.append(
                IncrementalAlterConfigsAlterConfigsResourceResponse(
                    *outcome, resource.resource_type, resource.resource_name
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    return _when_known(api, api.run(alter), altered)


def _when_known(api: ApiContext, answered: AppendFuture[Any], altered: Mapping[str, TopicMetadata]) -> Outcome:
    """Answer when this broker knows of the changes, or after a while, so that DescribeConfigs tells of them."""

    def is_known() -> bool:
        found = [(api.topic(name), topic) for name, topic in altered.items()]
        return all(known is None or known.config == topic.config for known, topic in found)

    def answer(response: Any) -> Any:
        return api.answer_when_known(response, is_known) if altered else response

    return transform(answered, answer)


def _replace(
    api: ApiContext, altered: dict[str, TopicMetadata], kind: int, name: str, texts: Mapping[str, str | None], *,
    validate_only: bool,
) -> None:  # fmt: skip
    given = {key: None if text is None else parse_setting(key, text) for key, text in texts.items()}
    unnamed = {key: None for key, setting in SETTINGS.items() if not setting.is_fixed and key not in given}
    _alter(api, altered, kind, name, {**unnamed, **given}, validate_only=validate_only)


def _change(
    api: ApiContext, altered: dict[str, TopicMetadata], kind: int, name: str,
    changes: list[tuple[str, int, str | None]], *, validate_only: bool,
) -> None:  # fmt: skip
    values: dict[str, Any] = {}
    for key, operation, text in changes:
        if key in values:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{key}: expected one change, found several")
        if operation not in (_SET, _DELETE):
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{key}: expected SET or DELETE, found operation {operation}")
        values[key] = None if operation == _DELETE or text is None else parse_setting(key, text)
    _alter(api, altered, kind, name, values, validate_only=validate_only)


def _alter(
    api: ApiContext, altered: dict[str, TopicMetadata], kind: int, name: str, values: Mapping[str, Any], *,
    validate_only: bool,
) -> None:  # fmt: skip
    if kind != TOPIC:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"expected a topic, found a resource of type {kind}")
    topic = api.topic(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:80]!r}")
    if name in INTERNAL_TOPICS:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the settings of internal topics are fixed")
    if validate_only:
        TopicSettings.of(
            {**topic.config.values(), **{key: value for key, value in values.items() if value is not None}}
        )
    else:
        altered[name] = alter_topic(api.store, name, values)
