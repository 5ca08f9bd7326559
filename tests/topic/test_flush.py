"""`flush` blocks until all earlier calls are done, and `flush_async` is awaited: of topics, producers and consumers of
all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, InvalidArgumentError, OutcomeUnknownError
from pyreplog.topic.client.remote.client import Client
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire

LINGERS = {**PLAIN, "linger_ms": 60_000}
"""Settings with which no message is sent before a flush."""


@pytest.fixture(params=[None, 2], ids=["one topic", "partitions"])
def topic(request: pytest.FixtureRequest, place: Cluster | Client) -> Any:
    return place.topic("news", partitions=request.param, deduplicate=True, **LINGERS)


@pytest.fixture(params=["topic", "producer"])
def publisher(request: pytest.FixtureRequest, topic: Any) -> Iterator[Any]:
    if request.param == "topic":
        yield topic
    else:
        with topic.producer("me") as producer:
            yield producer


def test_flush_returns_when_all_that_was_submitted_has_an_outcome(publisher: Any) -> None:
    coming = [publisher.submit(b"%d" % at, b"%d" % at) for at in range(8)]
    assert not any(future.done() for future in coming)
    assert publisher.flush(PATIENCE_S) is None
    assert all(future.done() and future.exception() is None for future in coming)
    assert publisher.flush(timeout=PATIENCE_S) is None  # a flush without messages


def test_flush_async_is_awaited_and_sends_at_once(publisher: Any) -> None:
    async def scene() -> None:
        coming = [publisher.submit(b"%d" % at, b"%d" % at) for at in range(8)]
        async with asyncio.timeout(PATIENCE_S):
            assert await publisher.flush_async() is None
        assert all(future.done() for future in coming)

    asyncio.run(scene())
    lingering = publisher.submit(b"more")
    publisher.flush_async()  # its future is not used
    lingering.result(PATIENCE_S)


def test_a_topic_flushes_what_its_producers_have_submitted(topic: Any) -> None:
    with topic.producer("me") as producer:
        coming = [producer.submit(b"%d" % at, b"%d" % at) for at in range(8)]
        topic.flush(PATIENCE_S)
        assert all(future.done() for future in coming)


def test_a_consumers_flush_blocks_and_is_awaited(topic: Any) -> None:
    topic.submit(b"one")
    topic.flush(PATIENCE_S)
    with topic.subscribe("s", start="earliest") as consumer:
        message = consumer.receive(timeout=PATIENCE_S)
        consumer.acknowledge(message)
        assert consumer.flush(timeout=PATIENCE_S) is None

        async def scene() -> None:
            async with asyncio.timeout(PATIENCE_S):
                assert await consumer.flush_async() is None

        asyncio.run(scene())
    several = [topic.partition(at) for at in range(topic.partitions)] if hasattr(topic, "partitions") else [topic]
    assert all(sub.backlog_messages == 0 for each in several for sub in each.stats().subscriptions)


def test_flush_in_a_running_event_loop_is_refused(topic: Any) -> None:
    with topic.subscribe("s") as consumer, topic.producer("me") as producer:

        async def scene(flush: Callable[[], None]) -> None:
            with pytest.raises(InvalidArgumentError, match=r"flush\(\) .* await flush_async\(\)"):
                flush()

        for each in (topic, producer, consumer):
            asyncio.run(scene(each.flush))


def test_flush_of_a_closed_handle_raises_closed_error(topic: Any) -> None:
    consumer, producer = topic.subscribe("s"), topic.producer("me")
    for each in (consumer, producer, topic):
        each.close()
        for call in (each.flush, each.flush_async):
            with pytest.raises(ClosedError):
                call()


def test_a_flush_ends_in_time(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **LINGERS)
    parts = served.client(wire.address).topic("parts", partitions=2, **LINGERS)
    producers = [topic.producer("me"), parts.producer("me")]
    wire.swallow()
    topic.submit(b"one")
    parts.submit(b"one")
    for each in (topic, parts, *producers):
        with pytest.raises(OutcomeUnknownError):
            each.flush(timeout=0.1)
    wire.cut()
    for each in (topic, parts):
        each.flush(timeout=PATIENCE_S)  # let the clients connect again, as closing would wait otherwise
