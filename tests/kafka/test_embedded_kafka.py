"""A Kafka of one process: what it makes at its start, who else may use it, and what it refuses."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest

import pyreplog.kafka
from pyreplog.errors import ConfigError, InvalidArgumentError, LockedError
from pyreplog.kafka import KafkaConfig
from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.config import BrokerConfig

CONFIG = BrokerConfig(segment_bytes=1 << 20)


def test_the_topic_of_offsets_is_there_at_the_start(tmp_path: Path) -> None:
    """Else the first group waits for it, with librdkafka for seconds."""
    with pyreplog.kafka.EmbeddedKafka(tmp_path, 2, broker_config=CONFIG) as kafka:
        leaders = [
            next(name for name, broker in kafka.brokers.items() if is_leader(broker, number)) for number in range(4)
        ]
        assert {*leaders} <= {"1", "2"} and [server.node_id for server in kafka.servers.values()] == [1, 2]


def is_leader(broker: Broker, number: int) -> bool:
    partition = broker.partition(OFFSETS_TOPIC, number)
    return partition is not None and partition.is_leader


def test_other_processes_use_its_metadata(tmp_path: Path) -> None:
    """A client of partitions reads what is there; a broker that is added has as many partitions of offsets."""
    with pyreplog.kafka.EmbeddedKafka(tmp_path, broker_config=CONFIG) as kafka:
        with PartitionClient.connect(kafka.metadata_url) as client:
            assert client.create_topic("flights", replication_factor=1)[0].append(b"departed") == 0
        with open_store(kafka.metadata_url) as store, Broker(tmp_path / "2", "2", store, config=CONFIG) as broker:
            with pyreplog.kafka.Server(broker) as server:
                assert server.config.offsets_partitions == 4
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
