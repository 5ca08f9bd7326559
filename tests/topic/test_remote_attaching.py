"""The client does not learn that it was attached: the attached consumer leaves before the next attempt."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import ClosedError, MetadataUnavailableError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.net.connection import Connection
from pyreplog.topic.client.remote.connection_pool import reads
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic.server.client_session import ClientSession, ConsumerSession
from pyreplog.topic.server.topic_server import TopicService
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, pool_of, receive

VALUES = [b"one", b"two"]
TIMEOUT_S = 1.0


class Unanswered:
    """Loses the answer to the next request of a kind, which is carried out, on a connection that stays open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        self.request = -1
        frames, reply = TopicService.frames, ClientSession.reply

        def note(service: TopicService, connection: Connection, batch: FrameBatch) -> None:
            for number, body in batch:
                if self.request < 0 <= number and body and type(protocol.decode_request(body)) is kind:
                    self.request = number
            frames(service, connection, batch)

        def lose(session: ClientSession, request: int, *buffers: Any) -> bool:
            return True if request == self.request else reply(session, request, *buffers)

        monkeypatch.setattr(TopicService, "frames", note)
        monkeypatch.setattr(ClientSession, "reply", lose)


@pytest.mark.parametrize("kind", [protocol.Subscribe, protocol.Resume])
def test_an_unanswered_attempt_to_attach_makes_room_for_the_next_one(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    client = served.client()
    topic = client.topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:  # an exclusive subscription
        assert receive(consumer, 2) == VALUES
        unanswered = Unanswered(monkeypatch, kind)
        pool_of(client).timeout = TIMEOUT_S
        served.cluster.topic("news").close()  # the consumer has to be attached again
        until(lambda: unanswered.request >= 0)
        pool_of(client).timeout = PATIENCE_S / 3  # the time-out of later attempts
        assert receive(consumer, 2) == VALUES
        assert len(topic.stats().subscriptions[0].consumers) == 1


def test_an_attempt_whose_acknowledgements_fail_makes_room_for_the_next_one(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client()
    topic = client.topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        assert receive(consumer, 2) == VALUES
        resume, failures = ConsumerSession.resume, [MetadataUnavailableError("the store is away")]

        def fail(session: ConsumerSession, *arguments: Any) -> AppendFuture[protocol.Resumed]:
            if not failures:
                return resume(session, *arguments)
            future: AppendFuture[protocol.Resumed] = AppendFuture()
            set_exception(future, failures.pop())
            return future

        monkeypatch.setattr(ConsumerSession, "resume", fail)
        pool_of(client).timeout = PATIENCE_S / 3
        served.cluster.topic("news").close()
        assert receive(consumer, 2) == VALUES
        assert not failures and len(topic.stats().subscriptions[0].consumers) == 1


def test_a_consumer_that_leaves_before_it_is_attached_is_not_attached_later(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the topic, and may wait longer than the client."""
    client = served.client()
    topic, pool = client.topic("news", **PLAIN), pool_of(client)
    topic.create_subscription("s", start="earliest")
    opening, free, open_topic = threading.Event(), threading.Event(), Topics.open

    def wait(topics: Topics, name: str, **settings: Any) -> Any:
        opening.set()
        assert free.wait(PATIENCE_S)
        return open_topic(topics, name, **settings)

    monkeypatch.setattr(Topics, "open", wait)
    done = reads(protocol.Done)
    handle = pool.next_handle()
    request = protocol.Subscribe(handle, 0, True, "earliest", "news", "s", "me", "")
    attached = pool.ask_for("news", request, done)
    assert opening.wait(PATIENCE_S)
    pool.ask_for("news", protocol.Detach(handle), done).result(PATIENCE_S)
    free.set()
    assert isinstance(attached.exception(PATIENCE_S), ClosedError)
    assert not topic.stats().subscriptions[0].consumers
