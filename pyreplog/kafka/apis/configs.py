"""DescribeConfigs: settings of topics, and of the listener."""

from __future__ import annotations

from collections.abc import Collection

from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.topic_configs import describe_settings
from pyreplog.kafka.error_codes import KafkaErrorCode
from pyreplog.kafka.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

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
            code, text = KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:80]!r}"
            return DescribeConfigsResult(code, text, kind, name)
        settings = {
            key: (text, _DEFAULT_CONFIG if is_default else _TOPIC_CONFIG)
            for key, (text, is_default) in describe_settings(topic).items()
        }
        is_fixed = False
    elif kind == BROKER and name == str(api.node_id):
        settings = {key: (text, _STATIC_BROKER_CONFIG) for key, text in _broker_settings(api).items()}
        is_fixed = True
    else:
        text = f"expected a topic, or broker {api.node_id}, found type {kind}, {name[:80]!r}"
        return DescribeConfigsResult(KafkaErrorCode.INVALID_REQUEST, text, kind, name)
    wanted: Collection[str] | None = resource.configuration_keys
    configs = [
        _describe_one(key, text, source, is_fixed=is_fixed, with_synonyms=with_synonyms)
        for key, (text, source) in sorted(settings.items())
        if wanted is None or key in wanted
    ]
    return DescribeConfigsResult(KafkaErrorCode.NONE, None, kind, name, configs)


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
