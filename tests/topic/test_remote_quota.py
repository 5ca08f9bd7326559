"""A quota holds publishers over TCP: they wait, and closing reports at once which messages were not published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import BacklogFullError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.model.wire.protocol import OK, decode_fault
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.client_session import ProducerSession
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster
from tests.waiting import until

NEVER_S = 1e6
"""A time-out so long that a publisher waits for the quota."""


def held(served: ServedCluster, **settings: Any) -> Topic:
    """Return a topic whose only message is not acknowledged and fills the quota."""
    topic = served.cluster.topic("news", **PLAIN, quota_bytes=1, **settings)
    topic.create_subscription("slow")
    topic.publish(b"first")
    until(lambda: topic.publisher.quota == "held")
    return topic


def values_of(topic: Topic) -> list[bytes]:
    return [value for batch in topic.read() for value in batch.values()]


def waits(topic: Topic) -> bool:
    """Return whether a message of a client waits at the owner."""
    return topic.publisher.waiting > 0


def test_close_fails_messages_that_a_quota_held(served: ServedCluster) -> None:
    owner = held(served)
    topic = served.client(timeout=NEVER_S).topic("news")
    futures: list[AppendFuture[Any]] = [topic.submit(b"%d" % at) for at in range(3)]
    futures.append(topic.submit_batch([b"3", b"4"]))
    until(lambda: waits(owner))
    with pytest.raises(BacklogFullError, match="slow"):
        topic.close()
    for future in futures:
        with pytest.raises(BacklogFullError, match="slow"):
            future.result(0)
    owner.clear("slow")
    until(lambda: owner.publisher.quota == "open")
    assert values_of(owner) == [b"first"]


def test_messages_refused_by_a_quota_can_be_published_by_the_next_producer(served: ServedCluster) -> None:
    """They keep their sequence numbers: the next producer with this name does not collide with the refused messages."""
    owner = held(served, deduplicate=True)
    client = served.client(timeout=NEVER_S)
    producer = client.topic("news").producer("me")
    refused = [producer.submit(b"%d" % at) for at in range(3)]
    until(lambda: waits(owner))
    with pytest.raises(BacklogFullError):
        client.close()
    assert [type(future.exception()) for future in refused] == [BacklogFullError] * 3
    owner.clear("slow")
    until(lambda: owner.publisher.quota == "open")
    with served.client(timeout=NEVER_S).topic("news").producer("me") as again:
        assert again.last_sequence == -1
        assert again.publish_batch([b"0", b"1", b"2"], sequences=range(3)) == range(1, 4)
    assert values_of(owner) == [b"first", b"0", b"1", b"2"]


def test_a_publisher_that_does_not_close_waits(served: ServedCluster) -> None:
    owner = held(served)
    topic = served.client(timeout=NEVER_S).topic("news")
    future = topic.submit(b"second")
    until(lambda: waits(owner))
    assert not future.done()
    owner.clear("slow")
    assert future.result(PATIENCE_S) == 1
    topic.close()


class Room:
    """A publisher of a topic that has no room until `make`. reason: why a quota holds publishers."""

    def __init__(self) -> None:
        self.forwarded: list[AppendFuture[range]] = []
        self.reason = ""
        self._is_there, self._waiting = False, list[AppendFuture[None]]()

    @property
    def has_room(self) -> bool:
        return self._is_there and not self.reason

    def quota_error(self) -> BacklogFullError | None:
        return BacklogFullError("news", self.reason) if self.reason else None

    def room(self) -> AppendFuture[None]:
        self._waiting.append(AppendFuture())
        return self._waiting[-1]

    def make(self) -> None:
        self._is_there = True
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            set_result(future, None)

    def forward(self, forwarded: Any) -> AppendFuture[range]:
        self.forwarded.append(forwarded.future)
        return self.forwarded[-1]


class Left:
    """A session at a server with two PUBLISHes that wait for room, whose client has left."""

    def __init__(self) -> None:
        self.room, self.answers, self.is_over = Room(), dict[int, bytes](), False
        topic: Any = SimpleNamespace(name="news", publisher=self.room)
        session = ProducerSession(topic, "", "client", self.answers.__setitem__)
        for request in (1, 2):
            session.publish(request, [encode_messages([b"%d" % request])])
        session.leave(self.over)

    def over(self) -> None:
        assert not self.is_over, "told once"
        self.is_over = True


def test_messages_waiting_for_room_are_published_after_their_client_disconnected() -> None:
    left = Left()
    assert not left.is_over and not left.answers, "no quota holds it"
    left.room.make()
    assert left.is_over and len(left.room.forwarded) == 2
    for at, future in enumerate(left.room.forwarded):
        set_result(future, range(at, at + 1))
    assert [answer[0] for answer in left.answers.values()] == [OK, OK]


def test_a_quota_that_comes_to_hold_when_a_client_has_left_refuses_all() -> None:
    left = Left()
    left.room.reason = "slow has too much"
    left.room.make()
    assert left.is_over and not left.room.forwarded
    for request in (1, 2):
        error, _ = decode_fault(WireReader("reply", memoryview(left.answers[request]), 1))
        assert isinstance(error, BacklogFullError) and "slow has too much" in str(error)
