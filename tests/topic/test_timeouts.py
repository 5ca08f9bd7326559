"""Calls of topics return in time when no answer arrives, no server runs, or a window is full."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, NotConnectedError, OutcomeUnknownError, WindowFullError
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.server.topic_server import TopicServer
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire, channels_of, receive

SOON_S = 0.3
LATE_S = 12.0
"""A connection without answers is closed after 15 s: no call waits for that."""


def ends_in_time(call: Callable[[], object]) -> None:
    begun = time.monotonic()
    with pytest.raises((OutcomeUnknownError, NotConnectedError)):
        call()
    assert time.monotonic() - begun < LATE_S


def test_without_answers_all_calls_of_a_client_end(served: ServedCluster, wire: Wire) -> None:
    client = served.client(wire.address, timeout=SOON_S)
    topic, numbered = client.topic("news", **PLAIN), client.topic("numbered", **PLAIN, deduplicate=True)
    parts = client.topic("parts", partitions=2, **PLAIN)
    producer = numbered.producer("me")
    with pytest.raises(OutcomeUnknownError):  # closing the topic, too
        with topic.subscribe("s", start="earliest") as consumer, parts.subscribe("s", start="earliest") as several:
            topic.publish_batch([b"one", b"two"])
            assert receive(consumer, 2) == [b"one", b"two"]
            wire.swallow()
            calls: list[Callable[[], object]] = [
                lambda: topic.publish(b"x"),
                lambda: topic.publish_batch([b"x", b"y"]),
                lambda: producer.publish(b"x"),
                lambda: producer.publish_batch([b"x"], timeout=SOON_S / 2),
                lambda: parts.publish(b"x"),
                lambda: parts.publish_batch([b"x", b"y"], [b"k", b"l"]),
                producer.close,
                topic.stats,
                topic.offsets,
                lambda: topic.seek("s", 0),
                lambda: topic.subscribe("others"),
                lambda: client.topic("new", **PLAIN),
                consumer.flush,
                lambda: consumer.acknowledge_cumulative(0),
                lambda: consumer.seek(0),
                several.flush,
                lambda: several.seek("earliest"),
            ]
            with ThreadPoolExecutor(len(calls)) as pool:
                list(pool.map(ends_in_time, calls))
            begun = time.monotonic()
            client.close()
    assert time.monotonic() - begun < LATE_S


def test_a_call_may_be_shorter_than_its_client(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN, deduplicate=True)
    with topic.subscribe("s", start="earliest") as consumer:
        topic.publish(b"one", producer="me")
        assert receive(consumer, 1) == [b"one"]
        wire.swallow()
        calls: list[Callable[[], object]] = [
            lambda: topic.publish(b"two", timeout=SOON_S),
            lambda: topic.publish(b"three", producer="me", timeout=SOON_S),
            lambda: consumer.acknowledge_cumulative(0, timeout=SOON_S),
            lambda: consumer.flush(timeout=SOON_S),
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(ends_in_time, calls))
        wire.cut()
        consumer.flush(PATIENCE_S)
        topic.publish(b"end")
        topic.publish(b"end", producer="me")  # after all requests that were sent again
    values = [value for batch in served.cluster.topic("news").read() for value in batch.values()]
    assert values.count(b"three") == 1, "a named producer goes on"


def test_with_a_full_window_nothing_is_published(place: Cluster | Client, served: ServedCluster) -> None:
    topic = place.topic("news", **PLAIN)
    publisher = served.cluster.topic("news").publisher
    with pytest.MonkeyPatch.context() as patch:
        publisher.set_quota("held", "the test holds it")
        patch.setattr(publisher, "set_quota", lambda *_: None)  # no maintenance ends the quota
        if place is served.cluster:
            with pytest.raises(WindowFullError, match="nothing was published"):
                topic.publish(b"x", timeout=SOON_S)
            with pytest.raises(WindowFullError):
                topic.submit_batch([b"x", b"y"], timeout=SOON_S)
        else:
            with pytest.raises(OutcomeUnknownError):
                topic.publish(b"x", timeout=SOON_S)
    publisher.set_quota("open", "")
    assert topic.publish(b"y", timeout=PATIENCE_S) == (0 if place is served.cluster else 1)


def test_publishing_while_the_server_is_away_waits_for_it(served: ServedCluster, wire: Wire) -> None:
    """A message without a sequence number waits as well, as it was never sent."""
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish(b"one")
    served.server.close()
    until(lambda: all(channel.error for channel in channels_of(topic)))
    served.cluster.topic("news").close()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(topic.publish, b"two")
        until(lambda: topic._publishers[""][1]._queue)
        with TopicServer(served.cluster) as server:
            wire.lead_to(server.address)
            assert publishing.result(PATIENCE_S) == 1


def test_publishing_without_a_server_reports_that_nothing_was_sent(served: ServedCluster) -> None:
    topic = served.client(timeout=3.0).topic("news", **PLAIN)
    topic.publish(b"one")
    served.server.close()
    with pytest.raises((NotConnectedError, OutcomeUnknownError)):
        topic.submit(b"two").result(PATIENCE_S)


def test_a_mere_question_is_asked_again(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish(b"one")
    wire.swallow()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(topic.stats)
        assert wire.swallowed.wait(PATIENCE_S)
        wire.cut()
        assert asking.result(PATIENCE_S).end.offset == 1


@pytest.mark.parametrize("call", ["flush", "seek", "acknowledge_cumulative"])
def test_a_consumer_that_its_server_does_not_know_is_attached_anew(served: ServedCluster, call: str) -> None:
    """The lost state is at the server only, so that the client learns of it by the error of its call."""
    topic = served.client().topic("news", **PLAIN)
    topic.publish_batch([b"one", b"two"])
    with topic.subscribe("s", start="earliest") as consumer:
        assert receive(consumer, 2) == [b"one", b"two"]
        (session,) = [
            each_session for each_session in served.server.service.sessions.values() if each_session._consumers
        ]
        (outlet,) = session._consumers.values()
        session._consumers.clear()
        arguments = {"flush": (), "seek": (1,), "acknowledge_cumulative": (0,)}[call]
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(getattr(consumer, call), *arguments)
            until(lambda: calling.done() or not consumer._source._handle)  # type: ignore[attr-defined]
            outlet.detach(ClosedError("forgotten"))  # the former consumer has left
            calling.result(PATIENCE_S)
        assert receive(consumer, 1) == [b"one" if call == "flush" else b"two"]


def test_an_address_without_a_server_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    with connect(f"pyreplog://{address}", timeout=SOON_S) as client, pytest.raises(NotConnectedError) as caught:
        client.topics()
    assert address in str(caught.value) and "refused: is it running there" in str(caught.value)
    assert "hello" not in str(caught.value)
