"""IncrementalAlterConfigs: which changes are carried out, and which are refused with what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyreplog.kafka.wire.messages import (
    AlterConfigsAlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    CreateTopicsCreatableTopic,
    CreateTopicsCreatableTopicConfig,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
THROTTLE = "leader.replication.throttled.rate"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with KafkaBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        brokers.start("1")
        brokers.create("events")
        with RawClient(brokers.servers["1"]) as raw:
            yield raw


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "events", [("retention.ms", SET, "1000")], ErrorCode.NONE),
        (TOPIC, "events", [("retention.ms", DELETE, None)], ErrorCode.NONE),
        (TOPIC, "events", [("no.such", DELETE, None)], ErrorCode.NONE),
        (TOPIC, "events", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "events", [("compression.type", SET, "producer"), ("segment.jitter.ms", SET, "0")], ErrorCode.NONE),
        (TOPIC, "events", [("compression.type", DELETE, None)], ErrorCode.NONE),
        (TOPIC, "events", [("compression.type", SET, "lz4")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "events", [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "events", [("no.such", DELETE, None), ("no.such", DELETE, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "others", [("retention.ms", DELETE, None)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", [(THROTTLE, DELETE, None)], ErrorCode.NONE),
        (BROKER, "", [(THROTTLE, DELETE, None)], ErrorCode.NONE),
        (BROKER, "1", [(THROTTLE, SET, "1000")], ErrorCode.INVALID_CONFIG),
        (BROKER, "2", [(THROTTLE, DELETE, None)], ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", [("kafka", SET, "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_each_config_change_is_applied_or_refused_with_its_code(
    client: RawClient, kind: int, name: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    configs = [IncrementalAlterConfigsAlterableConfig(*change) for change in changes]
    resource = IncrementalAlterConfigsAlterConfigsResource(kind, name, configs)
    response = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource]))
    (outcome,) = response.responses
    assert (outcome.error_code, outcome.resource_type, outcome.resource_name) == (code, kind, name)


def test_items_are_appended_to_a_list_and_removed(client: RawClient) -> None:
    """`cleanup.policy` is the only list. Without an item it is refused, as by Kafka."""
    for operation, text, code, policy in (
        (APPEND, "compact", ErrorCode.NONE, "delete,compact"),
        (APPEND, "compact", ErrorCode.NONE, "delete,compact"),
        (SUBTRACT, "delete", ErrorCode.NONE, "compact"),
        (SUBTRACT, "compact", ErrorCode.INVALID_CONFIG, "compact"),
        (APPEND, "both", ErrorCode.INVALID_CONFIG, "compact"),
        (DELETE, None, ErrorCode.NONE, "delete"),
    ):
        change = IncrementalAlterConfigsAlterableConfig("cleanup.policy", operation, text)
        resource = IncrementalAlterConfigsAlterConfigsResource(TOPIC, "events", [change])
        response = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource]))
        assert response.responses[0].error_code == code
        described = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "events", ["cleanup.policy"])])
        (config,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, described).results[0].configs
        assert config.value == policy


def test_the_settings_that_are_described_are_accepted(client: RawClient) -> None:
    """A tool that reads all settings, and creates a topic with them or sets them, is not refused."""
    described = client.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "events", None)])
    )
    texts = {config.name: config.value for config in described.results[0].configs}
    assert texts["compression.type"] == "producer"
    configs = [AlterConfigsAlterableConfig(*each) for each in texts.items()]
    request = AlterConfigsRequest([AlterConfigsResource(TOPIC, "events", configs)])
    assert client.ask(ApiKey.ALTER_CONFIGS, 2, request).responses[0].error_code == ErrorCode.NONE
    wanted = [CreateTopicsCreatableTopicConfig(*each) for each in texts.items()]
    created = CreateTopicsCreatableTopic("copies", 1, 1, [], wanted)
    assert client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([created])).topics[0].error_code == ErrorCode.NONE
