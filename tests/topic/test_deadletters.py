"""Dead letters reach their topic, with any settings and sizes. A subscription whose dead letters could go nowhere is
refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.topic.messages import Message
from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, ReplogError
from pyreplog.topic.client.remote import connection_pool
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.dead_letters import INHERITED
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server import topic_server
from tests.topic.partitioning import PLAIN, stored
from tests.topic.remoting import serve_cluster
from tests.waiting import PATIENCE_S, until

ALWAYS = ("cause", "offset", "publish_time", "redeliveries", "subscription", "topic")
"""The properties of a dead letter that has room for them."""
AT_ONCE: dict[str, Any] = {"type": "shared", "start": "earliest", "nack_min_ms": 0, "max_redeliveries": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one bookie, where a topic with the default settings could not be written."""
    with Cluster.embedded(tmp_path_factory.mktemp("dead"), bookies=1, segment_bytes=16 << 20) as cluster:
        yield cluster


def refuse(topic: Topic, values: list[bytes], **settings: Any) -> None:
    """Refuse all messages until they are dead letters."""
    with topic.subscribe("s", **AT_ONCE, **settings) as consumer:
        topic.publish_batch(values, properties=[{"mine": "kept"}] * len(values))
        left = len(values)
        while left:
            messages = consumer.receive(max_messages=left, timeout=PATIENCE_S)
            assert messages
            consumer.nack(messages)
            left -= len(messages)
        until(lambda: topic.stats().subscriptions[0].dead_lettered_messages == len(values))
        assert topic.stats().subscriptions[0].backlog_messages == 0


def test_their_topic_is_made_with_as_many_copies(cluster: Cluster) -> None:
    with cluster.topic("jobs", **PLAIN) as jobs:
        refuse(jobs, [b"bad"])
    with cluster.topic("jobs-s-DLQ", create=False) as dead:
        assert [value for batch in dead.read() for value in batch.values()] == [b"bad"]
        assert {name: getattr(dead.config, name) for name in INHERITED} == {
            name: getattr(TopicConfig(**PLAIN), name) for name in INHERITED
        }


def test_a_topic_that_is_there_keeps_its_settings(cluster: Cluster) -> None:
    with cluster.topic("there", **PLAIN, ttl_ms=1 << 40) as topic, cluster.topic("some", **PLAIN) as some:
        before = topic.config
        refuse(some, [b"bad"], dead_letter="there")
        assert (topic.config, len(topic)) == (before, 1)


@pytest.mark.parametrize("partitions", [None, 2])
def test_their_times_stay_whatever_they_look_like(cluster: Cluster, partitions: int | None) -> None:
    """A device with a wrong clock sends datetimes that look like seconds when they are given as numbers."""
    name, clock_unset = f"devices-{partitions}", datetime(1970, 1, 1, 0, 20, tzinfo=UTC)
    with cluster.topic(name, **PLAIN) as devices, cluster.topic(f"{name}-DLQ", partitions=partitions, **PLAIN) as dead:
        with devices.subscribe("s", **AT_ONCE, dead_letter=f"{name}-DLQ") as consumer:
            devices.publish(b"v", b"k", event_time=clock_unset)
            consumer.nack(consumer.receive(timeout=PATIENCE_S))
            until(lambda: devices.stats().subscriptions[0].dead_lettered_messages == 1)
        batches = [batch for at in range(partitions or 1) for batch in (dead.read(at) if partitions else dead.read())]
        assert [message.event_time for batch in batches for message in batch] == [1_200_000_000]


def letters(cluster: Cluster, name: str) -> list[Message]:
    return [message for batch in cluster.topic(name, create=False).read() for message in batch]


def test_dead_letter_properties_name_origin_cause_and_reason(cluster: Cluster) -> None:
    with cluster.topic("orders", **PLAIN) as orders:
        with orders.subscribe("s", **{**AT_ONCE, "max_redeliveries": 1}) as consumer:
            orders.publish(b"bad", b"key", properties={"mine": "kept"}, event_time=1_700_000_000_000_000)
            for reason in ("first", "é" * 1000):
                message = consumer.receive(timeout=PATIENCE_S)
                consumer.nack(message, reason=reason)
            until(lambda: orders.stats().subscriptions[0].dead_lettered_messages == 1)
        (original,) = [message for batch in orders.read() for message in batch]
    (letter,) = letters(cluster, "orders-s-DLQ")
    assert (letter.value, letter.key, letter.event_time) == (b"bad", b"key", 1_700_000_000_000_000)
    assert letter.properties == {
        "mine": b"kept",
        "pyreplog.topic": b"orders",
        "pyreplog.subscription": b"s",
        "pyreplog.offset": b"0",
        "pyreplog.publish_time": b"%d" % original.publish_time,
        "pyreplog.redeliveries": b"1",
        "pyreplog.cause": b"nack",
        "pyreplog.reason": ("é" * 512).encode(),
    }


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("older", ["client", "server"])
def test_dead_letters_have_reasons_of_remote_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str, version: int
) -> None:
    """Clients and servers before version 3 of the wire do not transmit reasons."""
    monkeypatch.setattr(connection_pool if older == "client" else topic_server, "VERSION", version)
    with serve_cluster(tmp_path) as served, served.client() as client:
        jobs = client.topic("jobs", **PLAIN)
        with jobs.subscribe("s", **AT_ONCE) as consumer:
            jobs.publish_batch([b"a", b"b"])
            for _ in range(2):
                message = consumer.receive(timeout=PATIENCE_S)
                consumer.nack(message, reason=f"of {message.value.decode()}")
            until(lambda: jobs.stats().subscriptions[0].dead_lettered_messages == 2)
        dead = letters(served.cluster, "jobs-s-DLQ")
    reasons = {letter.value: letter.properties.get("pyreplog.reason") for letter in dead}
    assert reasons == ({b"a": b"of a", b"b": b"of b"} if version == 3 else {b"a": None, b"b": None})


def test_dead_letters_have_reasons_of_partitioned_consumers(cluster: Cluster) -> None:
    with cluster.topic("several", partitions=2, **PLAIN) as several:
        with several.subscribe("s", **AT_ONCE, dead_letter="of-several") as consumer:
            several.publish_batch([b"a", b"b", b"c"], keys=[b"1", b"2", b"3"])
            for _ in range(3):
                message = consumer.receive(timeout=PATIENCE_S)
                consumer.nack([message], reason=f"of {message.value.decode()}")
            until(lambda: several.stats().total.subscriptions[0].dead_lettered_messages == 3)
    properties_by_value = {letter.value: letter.properties for letter in letters(cluster, "of-several")}
    assert {value: properties["pyreplog.reason"] for value, properties in properties_by_value.items()} == {
        b"a": b"of a", b"b": b"of b", b"c": b"of c",
    }  # fmt: skip
    assert {properties["pyreplog.topic"][:-1] for properties in properties_by_value.values()} == {b"several-partition-"}


def test_dead_letter_without_room_for_its_reason_omits_it(cluster: Cluster) -> None:
    with cluster.topic("tight", **PLAIN) as tight:
        size = largest(tight) - 400
        with tight.subscribe("s", **AT_ONCE) as consumer:
            tight.publish(bytes(size), properties={"mine": "kept"})
            consumer.nack(consumer.receive(timeout=PATIENCE_S), reason="x" * 1000)
            until(lambda: tight.stats().subscriptions[0].dead_lettered_messages == 1)
    (letter,) = letters(cluster, "tight-s-DLQ")
    assert sorted(letter.properties) == ["mine", *(f"pyreplog.{name}" for name in ALWAYS)]


def test_dead_letter_topic_may_have_partitions(cluster: Cluster) -> None:
    with cluster.topic("parts", partitions=2, **PLAIN) as parts, cluster.topic("others", **PLAIN) as others:
        refuse(others, [b"a", b"b"], dead_letter="parts")
        assert sorted(value for values in stored(parts) for value in values) == [b"a", b"b"]


def test_dead_letter_without_room_for_its_origin_omits_it(cluster: Cluster) -> None:
    with cluster.topic("large", **PLAIN) as large:
        refuse(large, [b"small", bytes(largest(large))])
    with cluster.topic("large-s-DLQ", create=False) as dead:
        letters = [message for batch in dead.read() for message in batch]
    assert sorted((len(letter.value) > 5, *sorted(letter.properties)) for letter in letters) == [
        (False, "mine", *(f"pyreplog.{name}" for name in ALWAYS)),
        (True, "mine"),
    ]


def largest(topic: Topic) -> int:
    """Return the size of the largest value that fits together with the properties of `refuse`."""
    low, high = 1 << 20, 8 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            topic.publish(bytes(middle), properties={"mine": "kept"})
        except RecordTooLargeError:
            high = middle
        else:
            low = middle
    topic.create_subscription("s", start="latest")
    return low


@pytest.mark.parametrize(
    ("topic", "name"),
    [("t" * 199, None), ("control", "a\nb"), ("itself", "itself"), ("of-many-partition-0", "of-many")],
)
def test_a_name_that_they_cannot_go_to_is_refused(cluster: Cluster, topic: str, name: str | None) -> None:
    with cluster.topic(topic, **PLAIN) as new_topic:
        with pytest.raises(InvalidArgumentError):
            new_topic.subscribe("s", max_redeliveries=0, dead_letter=name)
        with pytest.raises(ReplogError):
            new_topic.create_subscription("s", max_redeliveries=0, dead_letter=name)
        assert new_topic.subscriptions() == []
        new_topic.subscribe("s", dead_letter=name).close()  # no message will become a dead letter
