"""A listener has no ACLs, and says so to clients that manage them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pyreplog.kafka.wire.messages import (
    CreateAclsAclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.waiting import PATIENCE_S


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        yield cluster.start("1")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_acl_request_is_answered_with_security_disabled(brokers: KafkaBrokers, version: int) -> None:
    with RawClient(brokers.servers["1"]) as client:
        described = client.ask(ApiKey.DESCRIBE_ACLS, version, DescribeAclsRequest())
        created = client.ask(ApiKey.CREATE_ACLS, version, CreateAclsRequest((CreateAclsAclCreation(),) * 2)).results
        deleted = client.ask(ApiKey.DELETE_ACLS, version, DeleteAclsRequest((DeleteAclsFilter(),) * 3)).filter_results
    assert (len(created), len(deleted), described.resources) == (2, 3, ())
    assert {each.error_code for each in (described, *created, *deleted)} == {ErrorCode.SECURITY_DISABLED}


def test_confluent_client_gets_security_disabled_from_create_acls(brokers: KafkaBrokers) -> None:
    client = AdminClient({"bootstrap.servers": brokers.addresses})
    resource = ResourceType.TOPIC, "events", ResourcePatternType.LITERAL
    acl = AclBinding(*resource, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW)
    (created,) = client.create_acls([acl]).values()
    with pytest.raises(KafkaException) as failure:
        created.result(PATIENCE_S)
    assert failure.value.args[0].code() == KafkaError.SECURITY_DISABLED
