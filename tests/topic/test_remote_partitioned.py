"""Partitioned topics over TCP: they work as at their owners, which may be several servers, and may change."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    SubscriptionBusyError,
    TopicExistsError,
    WrongTypeError,
)
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic
from pyreplog.topic.model.positions import PartitionOffset
from pyreplog.topic.server.topic_server import TopicServer
from tests.topic.partitioning import key_of, other_process, receive, until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster
from tests.topic.test_routing import PULSAR

KEYS = [b"%02d" % (at * 7 % 20) for at in range(60)]
VALUES = [b"%03d" % at for at in range(60)]


@pytest.fixture
def topic(client: Client) -> RemotePartitionedTopic:
    return client.topic("t", partitions=3, **PLAIN)


def stored(topic: Any) -> list[list[bytes]]:
    """Return the stored values by partition."""
    return [
        [value for batch in topic.read(partition) for value in batch.values()] for partition in range(topic.partitions)
    ]


# ---- publishing ------------------------------------------------------------------------------------------------


def test_keys_go_where_pulsars_go(topic: RemotePartitionedTopic) -> None:
    for key, hashed in PULSAR.items():
        assert topic.publish(b"v", key).partition == hashed % 3
    outcomes = topic.publish_batch([b"v"] * len(PULSAR), list(PULSAR))
    wanted = [hashed % 3 for hashed in PULSAR.values()]
    assert {part.partition: len(part.offsets) for part in outcomes} == {
        at: wanted.count(at) for at in sorted(set(wanted))
    }


def test_messages_published_to_partitions_by_a_client_are_stored_at_the_owner(
    served: ServedCluster, topic: RemotePartitionedTopic
) -> None:
    assert [topic.publish(b"v") for _ in range(4)] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    topic.publish_batch(VALUES, KEYS, properties=[{"at": str(at)} for at in range(60)], event_times=list(range(1, 61)))
    local = served.cluster.topic("t")
    assert (local.partitions, topic.partitions, topic.served) == (3, 3, [0, 1, 2])
    assert stored(topic) == stored(local)
    assert sorted(value for part in stored(topic) for value in part) == sorted([b"v"] * 4 + VALUES)
    rows = [row for batch in topic.read(2, 1) for row in batch]
    assert {row.partition for row in rows} == {2} and rows[0].properties["at"] == str(int(rows[0].value)).encode()

    async def scene() -> PartitionOffset:
        await topic.room()
        return await topic.submit(b"last", key_of(1, 3))

    assert asyncio.run(scene()) == PartitionOffset(1, len(stored(local)[1]) - 1)


def test_remote_partitioned_producer_drops_duplicate_sequences(served: ServedCluster) -> None:
    with served.client().topic("d", partitions=2, deduplicate=True, **PLAIN).producer("p") as producer:
        keys = [key_of(at % 2, 2) for at in range(6)]
        producer.publish_batch(VALUES[:4], keys[:4], sequences=range(4))
    again = served.client().topic("d").producer("p")
    assert again.last_sequences() == [2, 3]
    assert again.publish(b"again", keys[1], sequence=3) == PartitionOffset(1, -1)
    outcomes = again.publish_batch(VALUES[:6], keys, sequences=range(6))
    assert [(part, list(offsets)) for part, offsets in outcomes] == [(0, [2]), (1, [2])], "of those that are stored now"


# ---- receiving -------------------------------------------------------------------------------------------------


def test_all_partitions_are_received_as_one(topic: RemotePartitionedTopic, served: ServedCluster) -> None:
    topic.create_subscription("s", start="earliest", type="shared")
    topic.publish_batch(VALUES, KEYS)
    with topic.subscribe("s") as consumer:
        messages = receive(consumer, 60)
        assert sorted(message.value for message in messages) == VALUES
        for partition in range(3):
            assert (of_it := [each.offset for each in messages if each.partition == partition]) == list(
                range(len(of_it))
            )
        consumer.acknowledge(messages[:50])
        consumer.nack(messages[50], delay=0.0)
        assert receive(consumer, 1)[0].value == messages[50].value
        consumer.acknowledge([PartitionOffset(each.partition, each.offset) for each in messages[50:59]])
        consumer.flush()
        total = topic.stats().total
        assert (total.subscriptions[0].backlog_messages, total.published_messages) == (1, 60)
        with pytest.raises(SubscriptionBusyError):
            topic.delete_subscription("s")
    with served.client().topic("t").subscribe("s") as consumer:
        assert [each.value for each in receive(consumer, 1)] == [messages[59].value]
        assert len(consumer.seek("earliest")) == 3
        assert len(receive(consumer, 60)) == 60
    assert topic.subscriptions() == ["s"]
    topic.delete_subscription("s")
    assert topic.subscriptions() == []
    with pytest.raises(NoSuchSubscriptionError):
        topic.delete_subscription("s")
    with pytest.raises(WrongTypeError, match="an offset is of one partition"):
        topic.subscribe("s", start=5)  # type: ignore[arg-type]


def test_clients_share_the_partitions_of_a_failover_subscription(
    topic: RemotePartitionedTopic, served: ServedCluster
) -> None:
    """The partitions are shared by priority and name, in whichever order consumers came. The others take over when one
    leaves."""
    with topic.subscribe("s", type="failover", start="earliest", name="b") as second:
        first = served.client().topic("t").subscribe("s", type="failover", name="a")
        until(lambda: (first.active_partitions, second.active_partitions) == ([0, 2], [1]))
        topic.publish_batch(VALUES, KEYS)
        mine = receive(second, len(stored(topic)[1]))
        assert {message.partition for message in mine} == {1}
        second.acknowledge(mine)
        first.close()
        assert {message.partition for message in receive(second, 60 - len(mine))} == {0, 2}
        until(lambda: second.active_partitions == [0, 1, 2])


# ---- coming, growing, going ------------------------------------------------------------------------------------


def test_a_topic_is_made_once_whichever_client_asks(served: ServedCluster) -> None:
    clients = [served.client() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda item: item.topic("t", partitions=4, **PLAIN), clients))
    for at, topic in enumerate(results):
        assert topic.publish(b"v", key_of(at, 4)) == PartitionOffset(at, 0)
    client = clients[0]
    assert client.topic("t") is results[0] is client.topic("t", partitions=4)
    assert client.topics() == [f"t-partition-{at}" for at in range(4)]
    assert client.partitioned_topics() == ["t"]
    assert client.topic("t-partition-1").offsets() == range(1), "a partition is a topic"
    results[0].close()
    assert client.topic("t") is not results[0] and client.topic("t").publish(b"v", key_of(0, 4)).offset == 1


def test_invalid_partitioned_topics_cannot_be_created_or_opened(client: Client, topic: RemotePartitionedTopic) -> None:
    client.topic("plain", **PLAIN)
    with pytest.raises(TopicExistsError, match="plain"):
        client.topic("plain", partitions=2)
    with pytest.raises(InvalidArgumentError, match="expected 3 or more, found 2"):
        client.topic("t", partitions=2)
    with pytest.raises(NoSuchTopicError, match="t has 3 partitions"):
        client.topic("t-partition-3")
    with pytest.raises(NoSuchTopicError, match="none"):
        client.topic("none", partitions=2, create=False)
    for wrong in (0, 65537, True):
        with pytest.raises(InvalidArgumentError, match="partitions"):
            client.topic("new", partitions=wrong)
    with pytest.raises(InvalidArgumentError, match="expected 0 to 2"):
        topic.partition(3)
    assert client.partitioned_topics() == ["t"]


def test_a_topic_grows_and_consumers_follow(served: ServedCluster, topic: RemotePartitionedTopic) -> None:
    other = served.client()
    late = other.topic("t")
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        grown = served.client().topic("t", partitions=5)
        assert grown.publish(b"new", key_of(4, 5)) == PartitionOffset(4, 0)
        assert (topic.partitions, consumer.partitions) == (3, [0, 1, 2])
        assert topic._client.topic("t") is topic
        assert (topic.partitions, consumer.partitions) == (5, [0, 1, 2, 3, 4])
        assert [(message.partition, message.value) for message in receive(consumer, 1)] == [(4, b"new")]
    assert grown.partition(4).config == grown.partition(0).config, "new ones are as the others"
    assert other.topic("t") is late and late.partitions == 5


def test_a_client_deletes_all_partitions_of_a_topic(
    served: ServedCluster, client: Client, topic: RemotePartitionedTopic
) -> None:
    topic.publish_batch(VALUES, KEYS)
    elsewhere = served.client()
    elsewhere.topic("t")
    topic.partition(1).delete()  # as if an earlier deletion had ended there
    topic.delete()
    assert (client.topics(), client.partitioned_topics()) == ([], [])
    for each_client in (client, elsewhere):
        with pytest.raises(NoSuchTopicError):
            each_client.topic("t", create=False)
    assert client.topic("t", **PLAIN).publish(b"plain now") == 0


def test_a_topic_with_partitions_is_not_forgotten(client: Client, topic: RemotePartitionedTopic) -> None:
    with pytest.raises(TopicExistsError, match="t-partition-0"):
        client.remove_partitioned("t")
    assert client.partitioned_topics() == ["t"]


# ---- several servers -------------------------------------------------------------------------------------------


def test_partitions_of_several_servers_are_one_topic(served: ServedCluster, client: Client) -> None:
    """Each partition is used at its owner, also after it has moved, and consumers and producers go on."""
    topic = client.topic("t", partitions=3, deduplicate=True, **PLAIN)
    with other_process(served.cluster) as other, TopicServer(other) as second:
        served.cluster.topics.get("t-partition-1").close()  # type: ignore[union-attr]
        other.topic("t-partition-1")
        owners = [served.cluster.topics.owner(f"t-partition-{at}").address for at in range(3)]  # type: ignore[union-attr]
        assert owners == [served.server.address, second.address, served.server.address]
        new_topic = served.client(f"{second.address},{served.server.address}").topic("t")
        producer = new_topic.producer("p")
        producer.publish_batch(VALUES, KEYS)
        assert {at: part.owner for at, part in new_topic.stats().parts.items()} == dict(enumerate(owners))
        with new_topic.subscribe("s", start="earliest", type="shared") as consumer:
            assert sorted(message.value for message in receive(consumer, 60)) == VALUES
            second.drain(PATIENCE_S)
            other.close()
            behind = stored(topic)[1]
            assert producer.publish(b"moved", key_of(1, 3)) == PartitionOffset(1, len(behind))
            messages = receive(consumer, len(behind) + 1)
            assert {message.partition for message in messages} == {1}, "what was not acknowledged there comes again"
            assert sorted(message.value for message in messages) == sorted([*behind, b"moved"])


def test_classes_of_partitioned_topics_are_exported() -> None:
    assert pyreplog.RemotePartitionedTopic is RemotePartitionedTopic
    for name in ("PartitionedTopic", "PartitionedConsumer", "PartitionedProducer", "PartitionRange", "Producer"):
        assert getattr(pyreplog, name).__name__ == name
    assert pyreplog.PartitionOffset is PartitionOffset
