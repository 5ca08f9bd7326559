"""A Kafka of one process: what it makes at its start, who else may use it, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import pyreplog.kafka
from pyreplog.errors import ConfigError, InvalidArgumentError, LockedError
from pyreplog.kafka import KafkaConfig
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.group_coordinator import partition_of_group
from pyreplog.kafka.wire.messages import (
    CreateTopicsCreatableTopic,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.broker_registration import BrokerMetadata, broker_key
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import RawClient
from tests.waiting import until

CONFIG = BrokerConfig(segment_bytes=1 << 20)


def test_the_first_group_makes_the_topic_of_offsets(tmp_path: Path) -> None:
    """Its logs would delay each start. Neither request is refused: librdkafka would repeat it after seconds."""
    with pyreplog.kafka.EmbeddedKafka(tmp_path, 2, broker_config=CONFIG) as kafka:
        assert [server.node_id for server in kafka.servers.values()] == [1, 2]
        assert kafka.brokers["1"].metadata.topics() == {}
        with RawClient(kafka.servers["1"]) as client:
            found = client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("billing", 0))
            assert found.error_code == ErrorCode.NONE
        with RawClient(kafka.servers[str(found.node_id)]) as client:
            assert join(client, "billing").error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_the_first_produce_loads_no_numpy(tmp_path: Path) -> None:
    """It would take most of the time from the start of a broker to the first acknowledged record."""
    program = (
        "import sys, pyreplog.kafka\n"
        "from confluent_kafka import Producer\n"
        f"with pyreplog.kafka.EmbeddedKafka({str(tmp_path / 'kafka')!r}) as kafka:\n"
        "    with Producer({'bootstrap.servers': kafka.bootstrap_servers}) as producer:\n"
        "        producer.produce('orders', b'order 1')\n"
        "        assert producer.flush(60.0) == 0\n"
        "    print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_a_topic_counts_a_broker_that_has_just_registered(tmp_path: Path) -> None:
    """The broker that is asked may not have read of it yet."""
    topic = CreateTopicsCreatableTopic("orders", 1, 2)
    with pyreplog.kafka.EmbeddedKafka(tmp_path, broker_config=CONFIG) as kafka, RawClient(kafka.servers["1"]) as client:
        with open_store(kafka.metadata_url) as store:
            broker = BrokerMetadata(directory="0" * 32, incarnation=1)
            store.create(broker_key("2"), broker.encode())
            created = client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic], 1000, True))
        assert created.topics[0].error_code == ErrorCode.NONE


def join(client: RawClient, group: str) -> Any:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    request = JoinGroupRequest(group, 10_000, 10_000, protocol_type="consumer", protocols=protocols)
    return client.ask(ApiKey.JOIN_GROUP, 5, request)


def test_other_processes_use_its_metadata(tmp_path: Path) -> None:
    """A client of partitions reads what is there; a broker that is added has as many partitions of offsets."""
    with pyreplog.kafka.EmbeddedKafka(tmp_path, broker_config=CONFIG) as kafka:
        with PartitionClient.connect(kafka.metadata_url) as client:
            assert client.create_topic("flights", replication_factor=1)[0].append(b"departed") == 0
        with open_store(kafka.metadata_url) as store, Broker(tmp_path / "2", "2", store, config=CONFIG) as broker:
            with pyreplog.kafka.Server(broker) as server:
                with RawClient(kafka.servers["1"]) as client:
                    client.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("billing", 0))
                expected = partition_of_group("billing", 4)
                assert expected != partition_of_group("billing", KafkaConfig().offsets_partitions)
                until(lambda: server.groups.partition_of("billing") == expected)
            with pytest.raises(InvalidArgumentError, match="without"):
                server.replace_users(pyreplog.kafka.SaslUsers({"a": "b"}))


def test_its_directory_has_one_process(tmp_path: Path) -> None:
    with pyreplog.kafka.EmbeddedKafka(tmp_path, broker_config=CONFIG) as kafka:
        with pytest.raises(LockedError):
            pyreplog.kafka.EmbeddedKafka(tmp_path, broker_config=CONFIG)
        assert kafka.bootstrap_servers == kafka.servers["1"].advertised
    with SQLiteStore(tmp_path / "metadata") as store:
        assert store.list("/partitions/available") == []


def test_settings_of_groups_have_one_owner() -> None:
    """Their defaults and bounds are those of `ConsumerGroupConfig`, and what is set reaches it."""
    assert KafkaConfig().groups == ConsumerGroupConfig()
    changed = KafkaConfig(offsets_partitions=7, rebalance_delay_ms=11).groups
    assert changed == ConsumerGroupConfig(offsets_partitions=7, initial_rebalance_delay_ms=11)
    shared = {field.name for field in fields(KafkaConfig)} & {field.name for field in fields(ConsumerGroupConfig)}
    for name in shared:
        for value in (-1, 1 << 40):
            with pytest.raises(ConfigError) as owner:
                ConsumerGroupConfig(**{name: value})
            with pytest.raises(ConfigError) as listener:
                KafkaConfig(**{name: value})  # type: ignore[arg-type]
            assert str(owner.value) == str(listener.value)


@pytest.mark.parametrize("brokers", [0, 101, True, 1.0])
def test_numbers_of_brokers_that_cannot_be(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(InvalidArgumentError, match="brokers: expected 1 to 100"):
        pyreplog.kafka.EmbeddedKafka(tmp_path, brokers)


def test_port_or_advertised_address_with_several_brokers_is_refused(tmp_path: Path) -> None:
    for arguments in ({"port": 1}, {"advertised": "kafka:9092"}):
        with pytest.raises(InvalidArgumentError, match="expected of one broker"):
            pyreplog.kafka.EmbeddedKafka(tmp_path, 2, **arguments)  # type: ignore[arg-type]


def test_no_event_loop_is_stopped(tmp_path: Path) -> None:
    async def make() -> None:
        with pytest.raises(InvalidArgumentError, match=r"asyncio\.to_thread"):
            pyreplog.kafka.EmbeddedKafka(tmp_path)

    asyncio.run(make())
