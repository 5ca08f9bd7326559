"""Topics that clients ask for: created in the background, once, and not lost when a creation fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import MetadataUnavailableError
from pyreplog.future import AppendFuture, completed_future, set_result
from pyreplog.kafka import KafkaConfig
from pyreplog.kafka.auto_topic_creation import RETRY_US, AutoTopicCreationManager
from pyreplog.kafka.wire.messages import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.metadata.store import Versioned
from pyreplog.partition.metadata.topic_metadata import TopicMetadata, find_topic
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.waiting import until


class HeldExecutor(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.held: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.held.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> int:
        held, self.held = self.held, []
        for call in held:
            call()
        return len(held)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "metadata") as store:
        yield store


def test_a_topic_is_created_once_however_many_clients_ask(store: SQLiteStore) -> None:
    executor, clock = HeldExecutor(), ManualClock(start_us=1)
    manager = AutoTopicCreationManager(store, KafkaConfig(partitions=3), clock, executor)
    leaders: dict[str, AppendFuture[Any]] = {}

    def wait_for_leaders(name: str) -> AppendFuture[Any]:
        leaders[name] = AppendFuture[Any]()
        return leaders[name]

    manager.create_topics(["orders", "orders", "bills"], wait_for_leaders)
    assert find_topic(store, "orders") is None, "the caller does not wait"
    manager.create_topics(["orders"], wait_for_leaders)
    assert executor.run() == 2
    created = find_topic(store, "orders")
    assert isinstance(created, TopicMetadata) and created.partitions == 3 and find_topic(store, "bills")
    assert manager.is_creating("orders"), "it has no leaders yet"
    manager.create_topics(["orders"], wait_for_leaders)
    assert not executor.run()
    set_result(leaders["orders"], None)
    assert not manager.is_creating("orders") and manager.is_creating("bills")
    manager.create_topics(["orders"], wait_for_leaders)  # the broker does not know of it yet
    assert executor.run() == 1 and find_topic(store, "orders") == created


class UnreliableStore(SQLiteStore):
    """A metadata store that can be away."""

    is_away = False

    def get(self, key: str) -> Versioned | None:
        if self.is_away:
            raise MetadataUnavailableError("the store is away")
        return super().get(key)


def test_a_creation_that_fails_is_logged_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor, clock = HeldExecutor(), ManualClock(start_us=1)
    with UnreliableStore(tmp_path / "metadata") as store:
        manager = AutoTopicCreationManager(store, KafkaConfig(), clock, executor)
        store.is_away = True
        manager.create_topics(["orders"], lambda _: completed_future())
        with caplog.at_level(logging.WARNING):
            assert executor.run() == 1
        assert "orders" in caplog.text and "away" in caplog.text
        store.is_away = False
        clock.advance(RETRY_US - 1)
        manager.create_topics(["orders"], lambda _: completed_future())
        assert executor.run() == 0, "clients ask more often than the store can bear"
        clock.advance(1)
        manager.create_topics(["orders"], lambda _: completed_future())
        assert executor.run() == 1 and find_topic(store, "orders") is not None


def ask(client: RawClient, name: str, *, may_create: bool = True) -> MetadataResponseTopic:
    wanted = MetadataRequest((MetadataRequestTopic(name=name),), may_create)
    topics: Sequence[MetadataResponseTopic] = client.ask(ApiKey.METADATA, 12, wanted).topics
    return topics[0]


@pytest.mark.parametrize("brokers", [1, 3])
def test_metadata_request_creates_a_topic_and_later_shows_its_leaders(tmp_path: Path, brokers: int) -> None:
    with KafkaBrokers(tmp_path, partitions=3, replication_factor=brokers) as cluster:
        cluster.start(*map(str, range(1, brokers + 1)))
        with RawClient(cluster.servers["1"]) as client:

            def led() -> MetadataResponseTopic | None:
                topic = ask(client, "orders")
                assert topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
                return topic if topic.partitions and not any(each.error_code for each in topic.partitions) else None

            first = ask(client, "orders", may_create=False)
            assert first.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic = until(led)
            assert (
                topic is not None
                and len(topic.partitions) == 3
                and all(1 <= each.leader_id <= brokers for each in topic.partitions)
            )
            assert ask(client, "no such").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert ask(client, "__transaction_state").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_is_not_created_when_the_client_or_the_listener_forbids_it(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as cluster:
        cluster.start("1")
        with RawClient(cluster.servers["1"]) as client:
            assert ask(client, "forbidden", may_create=False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            until(lambda: not ask(client, "allowed").error_code)
            assert find_topic(cluster.store, "forbidden") is None
    with KafkaBrokers(tmp_path, auto_create_topics=False) as cluster:
        cluster.start("1")
        with RawClient(cluster.servers["1"]) as client:
            assert ask(client, "forbidden").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.stop("1")  # which waits for what was begun
        assert find_topic(cluster.store, "forbidden") is None
