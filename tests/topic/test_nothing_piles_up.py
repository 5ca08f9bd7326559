"""Closed producers, names of missing topics and finished calls leave nothing behind, however many there were."""

from __future__ import annotations

import asyncio
import gc

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, NoSuchTopicError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.server import client_session
from tests.topic.remoting import PLAIN, ServedCluster, producers_of, receive
from tests.waiting import until

ONCE = {**PLAIN, "deduplicate": True}


def test_a_closed_producer_gives_its_place_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "LANES_MAX", 4)
    topic = client.topic("news", **ONCE)
    topic.publish(b"x")
    for at in range(12):
        with topic.producer(f"p{at}") as producer:
            assert producer.publish(b"x") == at + 1
        until(lambda: producers_of(topic) == [""])
    with pytest.raises(ClosedError):
        producer.publish(b"x")
    assert topic.publish(b"y") == 13


def test_a_closed_producer_of_partitions_gives_all_its_places_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "LANES_MAX", 5)
    topic = client.topic("clicks", partitions=2, **ONCE)
    for at in range(8):
        with topic.producer(f"p{at}") as producer:
            future = producer.submit(b"x")
        assert future.result() == (at % 2, at // 2)
        until(lambda: all(producers_of(topic.partition(part)) == [""] for part in range(2)))
    for closed in (lambda: producer.publish(b"x"), lambda: producer.submit_batch([b"x", b"y"])):
        with pytest.raises(ClosedError, match="the producer 'p7'"):
            closed()
    producer.close()

    async def scene() -> list[int]:
        again = await asyncio.to_thread(topic.producer, "p0")
        await asyncio.gather(again.submit(b"a"), again.submit(b"b"))  # the publishes need not wait for an owner
        again.close()
        return await again.last_sequences_async()

    assert sorted(asyncio.run(scene())) == [0, 1]


def test_sequence_numbers_of_a_reopened_producer_go_on(client: Client) -> None:
    topic = client.topic("news", **ONCE)
    first, second = topic.producer("p"), topic.producer("p")
    assert first.publish(b"0", sequence=5) == 0
    first.close()
    assert second.publish(b"1") == 1, "the other one of that name goes on"
    future = second.submit(b"2")
    second.close()
    assert future.result() == 2
    until(lambda: producers_of(topic) == [""])
    with topic.producer("p") as third:
        assert third.last_sequence == 7
        assert third.publish(b"again", sequence=6) == -1
        assert third.publish(b"3") == 3


def test_a_name_that_is_given_to_publish_stays(client: Client) -> None:
    topic = client.topic("news", **ONCE)
    assert topic.publish(b"0", producer="p") == 0
    with topic.producer("p") as producer:
        assert producer.publish(b"1") == 1
    assert topic.publish(b"2", producer="p") == 2
    assert sorted(producers_of(topic)) == ["", "p"]


def futures() -> int:
    """Return how many futures exist in this process."""
    gc.collect()
    return sum(type(each) is AppendFuture for each in gc.get_objects())


def test_receiving_again_and_again_where_nothing_comes(place: Cluster | Client) -> None:
    topic = place.topic("news", **PLAIN)
    with topic.subscribe("s") as consumer:
        assert consumer.receive(timeout=0) is None
        before = futures()
        for _ in range(500):
            assert consumer.receive(timeout=0) is consumer.receive_batch(timeout=0) is None
        assert futures() < before + 100
        topic.publish(b"x")
        assert receive(consumer, 1) == [b"x"]


def test_names_of_missing_topics_leave_nothing_behind(served: ServedCluster, client: Client) -> None:
    topics = served.cluster.topics
    for at in range(8):
        for place in (served.cluster, client):
            with pytest.raises(NoSuchTopicError):
                place.topic(f"none{at}", create=False)
            with pytest.raises(NoSuchTopicError):
                place.topic(f"none{at}", create=False, partitions=2)
    client.topic("some", **PLAIN).close()
    assert (len(topics._opening), len(topics.partitioned._opening)) == (0, 0)
