"""Acknowledgements of a client are in flight to the owner while another client moves the subscription."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.remote_subscription import FETCHES_LEAST
from pyreplog.topic.server.client_session import ConsumerSession
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire, receive

VALUES = [b"one", b"two", b"three", b"four"]

ACKNOWLEDGE: dict[str, Callable[[Consumer], object]] = {
    "some": lambda consumer: consumer.acknowledge([0, 2]),
    "a range": lambda consumer: consumer.acknowledge([0, 1, 2]),
    "up to one": lambda consumer: consumer._source.acknowledge_cumulative(consumer._id, 3),  # its future is not used
}


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when the owner has handled an acknowledgement of a client."""
    event = threading.Event()
    for name in ("acknowledge", "acknowledge_cumulative"):
        done = getattr(ConsumerSession, name)

        def spy(outlet: ConsumerSession, *args: Any, done: Callable[..., Any] = done) -> Any:
            try:
                return done(outlet, *args)
            finally:
                event.set()

        monkeypatch.setattr(ConsumerSession, name, spy)
    return event


def backlog(served: ServedCluster) -> int:
    return served.cluster.topic("news").stats().subscriptions[0].backlog_messages


@pytest.mark.parametrize("how", ACKNOWLEDGE)
def test_acknowledgements_sent_before_a_seek_became_known_are_ignored(
    served: ServedCluster, wire: Wire, came: threading.Event, how: str
) -> None:
    served.client().topic("news", **PLAIN).publish_batch(VALUES)
    with served.client(wire.address).topic("news").subscribe("s", start="earliest") as consumer:
        assert receive(consumer, 4) == VALUES
        wire.swallow()
        assert served.client().topic("news").seek("s", "earliest") == 0
        ACKNOWLEDGE[how](consumer)
        assert came.wait(PATIENCE_S)
        assert backlog(served) == 4, "all that lies behind the place it was moved to comes again"
        wire.cut_and_mend()
        assert receive(consumer, 4) == VALUES
        ACKNOWLEDGE[how](consumer)
        until(lambda: backlog(served) == (2 if how == "some" else 1))


@pytest.mark.parametrize("how", ["some", "a range"])
def test_acknowledgements_before_a_seek_takes_effect_do_not_count(
    served: ServedCluster, came: threading.Event, how: str
) -> None:
    """The deliveries of the consumer are not discarded yet, as another thread is about to do that."""
    topic = served.client().topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    is_blocked, resume = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        assert resume.wait(PATIENCE_S)

    with topic.subscribe("s", start="earliest") as consumer, ThreadPoolExecutor(1) as pool:
        assert receive(consumer, 4) == VALUES
        subscription = served.cluster.topic("news").subscription("s")
        blocking = pool.submit(subscription.events.post, block)
        try:
            assert is_blocked.wait(PATIENCE_S)
            sought = subscription.seek("earliest")
            ACKNOWLEDGE[how](consumer)
            assert came.wait(PATIENCE_S)
        finally:
            resume.set()
        blocking.result(PATIENCE_S)
        assert sought.result(PATIENCE_S) == 0
        assert backlog(served) == 4
        assert receive(consumer, 4) == VALUES


@pytest.mark.parametrize("again", ["a seek", "others"])
def test_acknowledgements_between_two_seeks_count_for_the_messages_received(
    served: ServedCluster, came: threading.Event, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The client receives messages after the first of two seeks, or messages that another consumer had, when the second
    seek is done already."""
    topic = served.client().topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    delivered = threading.Event()
    stands = [(threading.Event(), threading.Event()) for _ in range(2)]

    def block(is_blocked: threading.Event, resume: threading.Event) -> None:
        is_blocked.set()
        assert resume.wait(PATIENCE_S)

    with topic.subscribe("s", start="earliest") as consumer, ThreadPoolExecutor(1) as pool:
        assert receive(consumer, 4) == VALUES
        subscription = served.cluster.topic("news").subscription("s")
        (outlet,) = subscription.attached()
        assert isinstance(outlet, ConsumerSession)
        until(lambda: len(outlet._fetches) >= FETCHES_LEAST)  # one is answered by the discard, and one by the delivery
        blocking = pool.submit(outlet._events.post, partial(block, *stands[0]))
        try:
            assert stands[0][0].wait(PATIENCE_S)
            post = outlet.deliver
            monkeypatch.setattr(outlet, "deliver", lambda delivery: (post(delivery), delivered.set()))
            first = subscription.seek("earliest") if again == "a seek" else subscription.redeliver(outlet.number)
            assert delivered.wait(PATIENCE_S)
            outlet._events.post(partial(block, *stands[1]))
            second = subscription.seek("earliest")
            stands[0][1].set()
            assert stands[1][0].wait(PATIENCE_S)
            assert receive(consumer, 4) == VALUES
            consumer.acknowledge([0, 2])
            assert came.wait(PATIENCE_S)
            assert backlog(served) == 4
        finally:
            for _, resume in stands:
                resume.set()
        blocking.result(PATIENCE_S)
        assert second.result(PATIENCE_S) == 0 and (first is None or first.result(PATIENCE_S) == 0)
        assert receive(consumer, 4) == VALUES
        consumer.acknowledge([0, 2])
        until(lambda: backlog(served) == 2)


@pytest.mark.parametrize("how", ["some", "a range"])
def test_acknowledgements_after_a_known_seek_count(served: ServedCluster, how: str) -> None:
    topic = served.client().topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        for _ in range(3):
            assert receive(consumer, 4) == VALUES
            assert served.client().topic("news").seek("s", "earliest") == 0
            assert receive(consumer, 4) == VALUES
            ACKNOWLEDGE[how](consumer)
            consumer.flush()
            assert backlog(served) == (2 if how == "some" else 1)
            assert consumer.seek("earliest") == 0


@pytest.mark.parametrize("how", ACKNOWLEDGE)
def test_acknowledgements_count_when_messages_went_to_another_consumer(
    served: ServedCluster, wire: Wire, came: threading.Event, how: str
) -> None:
    """The messages belong to another consumer now, but their acknowledgements still count."""
    served.client().topic("news", **PLAIN).publish_batch(VALUES)
    with (
        served.client(wire.address).topic("news").subscribe("s", start="earliest", type="failover", priority=1) as first
    ):
        assert receive(first, 4) == VALUES
        wire.swallow()
        with served.client().topic("news").subscribe("s", type="failover", priority=0) as second:
            assert receive(second, 4) == VALUES
            ACKNOWLEDGE[how](first)
            assert came.wait(PATIENCE_S)
            until(lambda: backlog(served) == (2 if how == "some" else 1))
            wire.cut_and_mend()
