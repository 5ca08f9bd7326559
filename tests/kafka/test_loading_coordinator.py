"""What clients see of a coordinator that does not know yet that it leads, and of a topic that is made for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyreplog.kafka
from pyreplog.kafka import KafkaConfig
from pyreplog.kafka.groups.offsets_log import OFFSETS_TOPIC
from pyreplog.kafka.wire.messages import (
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    MetadataRequest,
    MetadataRequestTopic,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.waiting import PATIENCE_S, until


@contextmanager
def held_roles(path: Path, topic: str) -> Iterator[tuple[pyreplog.kafka.Server, threading.Event]]:
    """A broker whose coordinators learn only after the event that it leads the partitions of a topic."""
    learns = threading.Event()

    def hold(name: TopicPartition, epoch: int | None) -> None:
        if name.topic == topic and epoch is not None:
            learns.wait(PATIENCE_S)

    config = BrokerConfig(segment_bytes=1 << 16, lease_ms=2_000, transaction_state_partitions=1)
    with SQLiteStore(path / "metadata") as store, Broker(path / "1", "1", store, config=config) as broker:
        end = broker.replicas.watch_roles(hold)
        listener = KafkaConfig(offsets_partitions=1, rebalance_delay_ms=0)
        try:
            with pyreplog.kafka.Server(broker, config=listener) as server:
                yield server, learns
        finally:
            learns.set()
            end()


def coordinator_of(client: RawClient, request: FindCoordinatorRequest) -> int:
    """Ask as clients do, which repeat it while no coordinator is available; return the id of its node."""

    def answer() -> Any:
        found = client.ask(ApiKey.FIND_COORDINATOR, 3, request)
        return None if found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE else found

    found = until(answer)
    assert found.error_code == 0
    return int(found.node_id)


def test_clients_wait_for_a_coordinator_that_does_not_know_yet_that_it_leads(tmp_path: Path) -> None:
    with held_roles(tmp_path, OFFSETS_TOPIC) as (server, learns), RawClient(server) as client:

        def beat() -> int:
            return int(client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest("billing", 1, "nobody")).error_code)

        assert beat() == ErrorCode.NOT_COORDINATOR, "nobody leads a partition that does not exist"
        assert coordinator_of(client, FindCoordinatorRequest("billing", 0)) == 1, "the client is sent here"
        assert beat() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        learns.set()
        until(lambda: beat() == ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_member_that_joins_waits_until_the_groups_are_loaded(tmp_path: Path) -> None:
    """librdkafka would repeat a refused request only after three seconds."""
    with held_roles(tmp_path, OFFSETS_TOPIC) as (server, learns), RawClient(server) as client:
        assert coordinator_of(client, FindCoordinatorRequest("billing", 0)) == 1
        protocols = [JoinGroupRequestProtocol("range", b"")]
        request = JoinGroupRequest("billing", 10_000, 10_000, protocol_type="consumer", protocols=protocols)
        number = client.send(ApiKey.JOIN_GROUP, 5, request)
        until(lambda: sum(connection.requests for connection in list(server.connections)) == 1)
        learns.set()
        assert client.answer(ApiKey.JOIN_GROUP, 5, number).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_coordinator_of_transactions_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, broker_settings={"transaction_state_partitions": 1}) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as client:

            def describe() -> int:
                answer = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(("t",)))
                return int(answer.transaction_states[0].error_code)

            assert describe() == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert coordinator_of(client, FindCoordinatorRequest("t", 1)) == 1
            until(lambda: describe() == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            brokers.brokers["1"].transactions.close()
            assert describe() == ErrorCode.NOT_COORDINATOR


def test_topic_without_enough_brokers_answers_leader_not_available(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, replication_factor=3) as cluster:
        cluster.start("1")
        with RawClient(cluster.servers["1"]) as client:

            def partition_codes() -> set[int]:
                (topic,) = client.ask(ApiKey.METADATA, 12, wanted).topics
                return {each.error_code for each in topic.partitions}

            wanted = MetadataRequest((MetadataRequestTopic(name="made"),), True)
            assert until(partition_codes) == {ErrorCode.LEADER_NOT_AVAILABLE}
