"""Consumers of topics that another process owns: of all types, from two clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyreplog.errors import NoSuchSubscriptionError, SubscriptionBusyError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.model.stats import TopicStats
from pyreplog.topic.server.client_session import ConsumerSession
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, receive

VALUES = [b"one", b"two", b"three", b"four"]


@pytest.fixture
def topic(client: Client) -> RemoteTopic:
    return client.topic("news", **PLAIN)


@pytest.fixture
def spare() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that block."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_acknowledgements_count_at_the_owner(topic: RemoteTopic, served: ServedCluster) -> None:
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        messages = consumer.receive(max_messages=4, timeout=PATIENCE_S)
        assert [message.value for message in messages] == VALUES
        consumer.acknowledge(messages[0])
        consumer.acknowledge([1])
        consumer.flush()
        assert served.cluster.topic("news").stats().subscriptions[0].backlog_messages == 2
        consumer.acknowledge_cumulative(messages[2])
        consumer.flush()
    with topic.subscribe("s") as consumer:
        assert receive(consumer, 1) == [b"four"]
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s")
    with topic.subscribe("gone", durable=False) as consumer:
        assert consumer.name in str(topic.stats().to_dict())


def test_statistics_of_a_remote_consumer(topic: RemoteTopic) -> None:
    """The statistics have its address, its start, and rates between two looks."""
    before_us = time.time_ns() // 1000
    with topic.subscribe("s", start="earliest") as consumer:
        topic.stats()
        topic.publish_batch([b"x" * 100] * 50)
        messages = [consumer.receive(timeout=PATIENCE_S) for _ in range(50)]
        consumer.nack(messages[49])
        assert consumer.receive(timeout=PATIENCE_S) is not None
        consumer.acknowledge(messages[:20])
        consumer.flush()
        subscription = topic.stats().subscriptions[0]
        assert (subscription.delivered_messages, subscription.delivered_bytes) == (51, 5100)
        actual_consumer = subscription.consumers[0]
        assert actual_consumer.address.startswith("127.0.0.1:") and int(actual_consumer.address.partition(":")[2]) > 0
        assert before_us <= actual_consumer.connected_us <= actual_consumer.last_delivered_us <= time.time_ns() // 1000
        assert actual_consumer.last_acked_us >= actual_consumer.connected_us
        assert (
            actual_consumer.delivered_messages,
            actual_consumer.delivered_bytes,
            actual_consumer.redelivered_messages,
        ) == (51, 5100, 1)
        assert actual_consumer.acked_messages == 20
        assert (
            min(
                actual_consumer.rate_delivered,
                actual_consumer.rate_delivered_bytes,
                actual_consumer.rate_acked,
                actual_consumer.rate_redelivered,
            )
            > 0
        )


def test_closing_waits_until_its_place_is_free(
    topic: RemoteTopic, monkeypatch: pytest.MonkeyPatch, spare: ThreadPoolExecutor
) -> None:
    """An exclusive subscription accepts the next consumer at once."""
    consumer = topic.subscribe("s")
    asked, go = threading.Event(), threading.Event()
    detach = ConsumerSession.detach

    def later(outlet: ConsumerSession, *args: Any, **more: Any) -> None:
        spare.submit(lambda: go.wait(PATIENCE_S) and detach(outlet, *args, **more))
        asked.set()

    monkeypatch.setattr(ConsumerSession, "detach", later)
    closing = spare.submit(consumer.close)
    assert asked.wait(PATIENCE_S) and not closing.done()
    go.set()
    closing.result(PATIENCE_S)
    with topic.subscribe("s"):
        assert topic.stats().subscriptions[0].consumers


def test_two_clients_share_a_subscription(client: Client, topic: RemoteTopic, served: ServedCluster) -> None:
    others = served.client().topic("news")
    with (
        topic.subscribe("s", start="earliest", type="shared", queue=1000) as new_consumer,
        others.subscribe("s", type="shared", queue=1000) as two,
    ):
        until(lambda: [each.permits > 0 for each in topic.stats().subscriptions[0].consumers] == [True, True])
        for number in range(100):
            topic.submit(b"%d" % number)
        contents: dict[str, set[bytes]] = {"one": set(), "two": set()}
        while sum(map(len, contents.values())) < 100:
            for name, consumer in (("one", new_consumer), ("two", two)):
                message = consumer.receive(timeout=0.005)
                if message is not None:
                    contents[name].add(message.value)
                    consumer.acknowledge(message)
        assert contents["one"] and contents["two"] and not contents["one"] & contents["two"]


def test_keys_stay_with_one_of_two_clients(topic: RemoteTopic, served: ServedCluster) -> None:
    others = served.client().topic("news")
    with topic.subscribe("s", type="key_shared") as new_consumer, others.subscribe("s", type="key_shared") as two:
        topic.publish_batch([b"v"] * 300, [b"key %d" % (number % 30) for number in range(300)])
        keys: list[set[bytes | None]] = [set(), set()]
        count = 0
        while count < 300:
            for seen, consumer in zip(keys, (new_consumer, two), strict=True):
                message = consumer.receive(timeout=0.005)
                if message is not None:
                    count += 1
                    seen.add(message.key)
                    consumer.acknowledge(message)
        assert keys[0] and keys[1] and not keys[0] & keys[1]


def test_the_next_client_takes_over(topic: RemoteTopic, served: ServedCluster) -> None:
    with served.client().topic("news").subscribe("s", type="failover", name="b") as second:
        first = topic.subscribe("s", type="failover", name="a", priority=-1)
        until(lambda: first.is_active and not second.is_active)
        topic.publish_batch(VALUES)
        assert receive(first, 2) == VALUES[:2]
        first.acknowledge([0])
        first.close()
        assert receive(second, 3) == VALUES[1:]
        until(lambda: second.is_active)


def test_refused_messages_come_again_and_are_counted(topic: RemoteTopic) -> None:
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        messages = consumer.receive(max_messages=4, timeout=PATIENCE_S)
        consumer.acknowledge(messages[1:])
        consumer.nack(messages[0], delay=0.0)
        again = consumer.receive(timeout=PATIENCE_S)
        assert again is not None
        assert (again.value, again.redelivered) == (b"one", 1)
        consumer.redeliver()
        again = consumer.receive(timeout=PATIENCE_S)
        assert again is not None
        assert (again.value, again.redelivered) == (b"one", 2)


def test_after_a_seek_nothing_old_comes(topic: RemoteTopic) -> None:
    topic.publish_batch([b"%d" % number for number in range(1000)])
    with topic.subscribe("s", start="earliest") as consumer:
        for turn in range(20):
            receive(consumer, turn)
            at = (turn * 317) % 1000
            assert consumer.seek(at) == at
            assert receive(consumer, 1) == [b"%d" % at]
        assert consumer.seek("latest") == 1000
        topic.publish(b"new")
        assert receive(consumer, 1) == [b"new"]
        assert topic.seek("s", 999) == 999
        messages = receive(consumer, 1)
        assert messages in ([b"999"], [b"new"])


def test_more_than_waits_anywhere_flows_through(topic: RemoteTopic) -> None:
    """Permits are sent again, within the limits of the consumer's queue and of the bytes that a server keeps for it."""
    values = [bytes(200_000) + b"%d" % number for number in range(60)]
    with topic.subscribe("s", queue=8) as consumer:
        for value in values:
            topic.submit(value)
        assert receive(consumer, 60) == values
        assert consumer.receive(timeout=0) is None


def test_a_client_creates_moves_and_deletes_subscriptions(topic: RemoteTopic) -> None:
    topic.publish_batch(VALUES)
    topic.create_subscription("a", start=1, properties={"of": "me"})
    topic.create_subscription("b", start="earliest")
    assert topic.subscriptions() == ["a", "b"]
    topic.skip("a", 1)
    topic.clear("b")
    stats = {sub.name: sub for sub in topic.stats().subscriptions}
    assert (stats["a"].backlog_messages, stats["b"].backlog_messages) == (2, 0)
    assert stats["a"].properties == {"of": "me"}
    topic.delete_subscription("b")
    with topic.subscribe("a") as consumer:
        with pytest.raises(SubscriptionBusyError):
            topic.delete_subscription("a")
        topic.delete_subscription("a", force=True)
        with pytest.raises(NoSuchSubscriptionError):
            while True:
                consumer.receive(timeout=PATIENCE_S)
    assert topic.subscriptions() == []


def test_statistics_are_those_of_the_owner(topic: RemoteTopic, served: ServedCluster) -> None:
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        receive(consumer, 4)
        local = served.cluster.topic("news")

        def of_consumers(stats: TopicStats) -> Any:
            sub = stats.subscriptions[0]
            return sub.unacked, sub.mark, sub.consumers

        until(lambda: of_consumers(topic.stats()) == of_consumers(local.stats()))  # permits may still be in flight
        ours, theirs = topic.stats(), local.stats()
        assert ours.owner == served.server.address
        fields = ("name", "end", "published_messages", "storage_bytes", "epoch")
        assert [getattr(ours, name) for name in fields] == [getattr(theirs, name) for name in fields]
        assert ours.subscriptions[0].unacked == 4 and len(ours.subscriptions[0].consumers) == 1
        assert topic.internal_stats() == local.internal_stats()


def test_acknowledgements_pass_what_waits_to_be_published(client: Client, served: ServedCluster) -> None:
    """More requests to publish wait at the server than it reads from one connection. Acknowledgements are read all the
    same, and make room."""
    topics = [client.topic(f"news {number}", **PLAIN) for number in range(6)]
    consumers = [topic.subscribe("s", start="earliest") for topic in topics]
    room: AppendFuture[None] = AppendFuture()
    with pytest.MonkeyPatch.context() as patch:
        for topic in topics:
            topic.publish(b"before")
            patch.setattr(served.cluster.topic(topic.name).publisher, "room", lambda: room)
        futures = [topic.submit(bytes(1 << 20)) for topic in topics for _ in range(15)]
        try:
            for consumer in consumers:
                assert receive(consumer, 1) == [b"before"]
                consumer.acknowledge([0])
                consumer.flush(PATIENCE_S)
                consumer.close()
        finally:
            patch.undo()
            set_result(room, None)
    for future in futures:
        future.result(PATIENCE_S)
