"""The sessions of a client's connection at a server, step by step and without a network: replies, their order, and
refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.wire_fields import WireReader, checksum
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    InvalidEntryError,
    InvalidMessageError,
    ReplogError,
    TopicFencedError,
)
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.net.server_connection import ServerConnection
from pyreplog.origins.origin import Origin
from pyreplog.topic.client.publishing.forwarded import ForwardedBatch
from pyreplog.topic.model.interfaces import AckedOffsets, DeliveredMessages
from pyreplog.topic.model.wire.batches import BATCH_BYTES, Delivered, decode_delivered
from pyreplog.topic.model.wire.protocol import ERROR, OK, PUBLISHED, STALE, Done, Reply, decode_fault, encode_reply
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import ExchangePeer, Topic
from pyreplog.topic.server import client_session
from pyreplog.topic.server.client_session import (
    CONSUMERS_MAX,
    DONE,
    FETCHES_MAX,
    LANES_MAX,
    ORIGINS_MAX,
    WAITING_BYTES,
    ClientSession,
    ConsumerSession,
    OriginSession,
    ProducerSession,
)
from tests.topic.entries import decoded

ERROR_OF_A_TEST = InvalidEntryError("of a test")


class Answers:
    """Collects the replies, as (request, body) in order."""

    def __init__(self) -> None:
        self._answers: list[tuple[int, bytes]] = []

    def reply(self, request: int, *buffers: Any) -> bool:
        self._answers.append((request, b"".join(bytes(buffer) for buffer in buffers)))
        return True

    def take(self) -> list[tuple[int, bytes]]:
        answers, self._answers = self._answers, []
        return answers


def fault_in(body: bytes) -> ReplogError:
    assert body[0] == ERROR
    return decode_fault(WireReader("a reply", memoryview(body), 1))[0]


# ---- consumers -------------------------------------------------------------------------------------------------


class Source:
    """A subscription that records the calls of its consumer."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.detached: list[int] = []
        self.noted: list[tuple[int, AckedOffsets | None]] = []
        self.era = 1
        self.fails = False

    def flow(self, consumer: int, messages: int) -> None:
        assert consumer == 9
        self.given.append(messages)

    def detach(self, consumer: int) -> None:
        self.detached.append(consumer)
        if self.fails:
            raise ERROR_OF_A_TEST

    def acknowledge_noted(self, consumer: int, take: Callable[[], AckedOffsets | None]) -> None:
        self.noted.append((consumer, take()))

    def acknowledge_cumulative(self, consumer: int, end: int, *, if_: Callable[[], bool]) -> AppendFuture[None]:
        future: AppendFuture[None] = AppendFuture()
        self.noted.append((consumer, [(0, end)] if if_() else None))  # type: ignore[arg-type]
        return future


class Consumer:
    """The session of a consumer that is attached with number 9."""

    def __init__(self, *, attached: bool = True) -> None:
        self.answers, self.source = Answers(), Source()
        self.session = ConsumerSession("c", self.answers.reply)
        self._requests = 0
        if attached:
            self.session.attached(cast("Subscription", self.source), 9)

    def fetch(self) -> None:
        self._requests += 1
        self.session.fetch(self._requests)

    def deliver(self, *sizes: int) -> None:
        self.session.deliver(DeliveredMessages(batch_of(*sizes), {}))

    def delivered(self, *, has_era: bool = False) -> list[Delivered]:
        """Return the deliveries that were sent as replies, in order."""
        delivered = []
        for _, body in self.answers.take():
            assert body[0] == OK
            delivered.append(decode_delivered(WireReader("a delivery", memoryview(body), 1), has_era=has_era))
        return delivered

    def faults(self) -> list[ReplogError]:
        return [fault_in(body) for _, body in self.answers.take()]


def batch_of(*sizes: int) -> MessageBatch:
    return decoded([encode_messages([bytes(size)]) for size in sizes], [1] * len(sizes))


def test_so_many_fetches_may_wait() -> None:
    consumer = Consumer()
    for _ in range(FETCHES_MAX):
        consumer.fetch()
    with pytest.raises(InvalidMessageError, match=f"at most {FETCHES_MAX} pending"):
        consumer.fetch()
    consumer.deliver(1)
    assert len(consumer.delivered()) == 1
    consumer.fetch()


def test_a_fetch_is_answered_when_there_is_something_to_report() -> None:
    consumer = Consumer()
    consumer.fetch()
    assert consumer.answers.take() == []
    consumer.session.set_active(True)
    assert consumer.answers.take() == [], "it knows"
    consumer.session.set_active(False)
    assert consumer.delivered() == [Delivered(0, False, None, {}, None)]
    consumer.fetch()
    consumer.session.discard()
    assert consumer.delivered() == [Delivered(1, False, None, {}, None)]
    consumer.session.set_active(True)
    consumer.deliver(5)
    consumer.fetch()
    (delivered,) = consumer.delivered()
    assert (delivered.generation, delivered.active) == (1, True)
    assert delivered.batch is not None and delivered.batch.values() == [bytes(5)]


def test_messages_that_are_discarded_are_permitted_again() -> None:
    consumer = Consumer()
    consumer.session.flow(6)
    assert consumer.source.given == [6]
    consumer.deliver(1, 2)
    consumer.deliver(3)
    consumer.session.discard()
    assert consumer.source.given == [6, 3]
    consumer.fetch()
    assert consumer.delivered() == [Delivered(1, True, None, {}, None)]
    assert consumer.session.generation == 1


def test_large_deliveries_are_handed_out_in_parts() -> None:
    consumer = Consumer()
    sizes = [BATCH_BYTES // 2 - 1000, BATCH_BYTES // 2 - 1000, 10, BATCH_BYTES]
    consumer.deliver(*sizes)
    consumer.deliver(7)
    handed_out = []
    for _ in range(3):
        consumer.fetch()
        (delivered,) = consumer.delivered()
        assert delivered.batch is not None
        handed_out.append([len(value) for value in delivered.batch.values()])
    assert handed_out == [sizes[:3], sizes[3:], [7]]
    consumer.fetch()
    assert consumer.delivered() == []


def test_no_more_permits_are_passed_on_than_there_is_room_for() -> None:
    """Before the first message has arrived, each message counts as 16 KiB."""
    consumer = Consumer()
    consumer.session.flow(WAITING_BYTES // (16 << 10) + 1)
    assert consumer.source.given == [WAITING_BYTES // (16 << 10)] == [256]


def test_permits_wait_while_less_than_half_of_the_room_is_free() -> None:
    consumer = Consumer()
    half = 128
    consumer.session.flow(half)
    consumer.session.flow(1)  # exactly half of it is free
    assert consumer.source.given == [half, 1]
    consumer.session.flow(1)
    assert consumer.source.given == [half, 1]


def test_one_message_is_permitted_whatever_its_size() -> None:
    consumer = Consumer()
    consumer.session.flow(1)
    consumer.deliver(WAITING_BYTES + 1000)
    consumer.session.flow(3)
    assert consumer.source.given == [1], "it waits yet"
    consumer.fetch()
    assert consumer.source.given == [1, 1]


def test_permits_from_before_the_attachment_are_passed_on_with_it() -> None:
    consumer = Consumer(attached=False)
    consumer.session.flow(4)
    with pytest.raises(ClosedError, match="c is not attached"):
        _ = consumer.session.source
    consumer.session.check_attached()
    consumer.session.attached(cast("Subscription", consumer.source), 9)
    assert (consumer.source.given, consumer.session.number) == ([4], 9)
    assert consumer.session.source is consumer.source


def test_an_error_answers_all_fetches_and_ends_the_rest() -> None:
    consumer = Consumer()
    for _ in range(2):
        consumer.fetch()
    consumer.session.failed(ERROR_OF_A_TEST)
    consumer.session.failed(TopicFencedError("topic", "later"))
    consumer.fetch()
    consumer.session.flow(1)
    consumer.deliver(1)
    faults = consumer.faults()
    assert [(type(fault), str(fault)) for fault in faults] == [(InvalidEntryError, "of a test")] * 3
    assert consumer.source.given == []
    with pytest.raises(InvalidEntryError, match="of a test"):
        _ = consumer.session.source
    with pytest.raises(ClosedError, match="consumer c: of a test"):
        consumer.session.check_attached()
    consumer.session.detach(ClosedError("gone"))
    assert consumer.source.detached == [], "the subscription has ended it"


def test_detach_answers_pending_fetches_before_it_frees_the_consumer_slot() -> None:
    consumer, places = Consumer(), list[str]()
    consumer.deliver(1)
    consumer.session.detach(ClosedError("gone"), lambda: places.append("free"))
    consumer.session.detach(ClosedError("again"), lambda: places.append("twice"))
    assert (consumer.source.detached, places) == ([9], ["free", "twice"])
    consumer.fetch()
    assert [str(fault) for fault in consumer.faults()] == ["gone"]


def test_its_place_is_free_though_the_subscription_fails(caplog: pytest.LogCaptureFixture) -> None:
    consumer, places = Consumer(), list[str]()
    consumer.source.fails = True
    consumer.session.detach(ClosedError("gone"), lambda: places.append("free"))
    assert places == ["free"] and "of a test" in caplog.text


@pytest.mark.parametrize("error", [ClosedError("gone"), ERROR_OF_A_TEST])
def test_consumer_detached_before_it_was_attached_leaves_the_subscription(error: ReplogError) -> None:
    consumer = Consumer(attached=False)
    consumer.session.flow(1)
    consumer.session.detach(error)
    consumer.session.attached(cast("Subscription", consumer.source), 9)
    assert consumer.source.detached == ([9] if isinstance(error, ClosedError) else [])
    assert consumer.source.given == []


def test_a_topic_that_is_closed_here_detaches_its_consumers() -> None:
    consumer = Consumer()
    consumer.fetch()
    consumer.session.close()
    (fault,) = consumer.faults()
    assert isinstance(fault, ClosedError) and "its topic was closed at this server" in str(fault)
    assert consumer.source.detached == [9]


def test_acknowledgements_of_before_a_seek_do_not_count() -> None:
    consumer = Consumer()

    def counts(generation: int) -> list[bool]:
        consumer.session.acknowledge(generation, cast("AckedOffsets", [(0, 1)]))
        consumer.session.acknowledge_cumulative(generation, 1)
        noted, consumer.source.noted = consumer.source.noted, []
        assert [number for number, _ in noted] == [9, 9]
        return [offsets is not None for _, offsets in noted]

    assert counts(0) == [True, True]
    consumer.session.discard()
    assert counts(0) == counts(1) == [True, True], "its messages went to others: that was no seek"
    consumer.session.forget_acks(5)
    assert counts(0) == counts(1) == counts(2) == [False, False], "the consumer cannot know yet"
    consumer.session.discard(sought=True)
    assert counts(1) == [False, False]
    assert counts(2) == counts(3) == [True, True]


# ---- producers -------------------------------------------------------------------------------------------------


class Publisher:
    """The publisher of a topic. room_: how many more batches it takes."""

    def __init__(self) -> None:
        self.room_ = 1 << 30
        self.held: ReplogError | None = None
        self.error: ReplogError | None = None
        self.rooms: list[AppendFuture[None]] = []
        self.forwarded: list[tuple[ForwardedBatch, AppendFuture[range]]] = []

    @property
    def has_room(self) -> bool:
        return self.room_ > 0

    def room(self) -> AppendFuture[None]:
        self.rooms.append(AppendFuture())
        return self.rooms[-1]

    def make_room(self, batches: int) -> None:
        self.room_ = batches
        (room,), self.rooms = self.rooms, []
        set_result(room, None)

    def quota_error(self) -> ReplogError | None:
        return self.held

    def forward(self, batch: ForwardedBatch) -> AppendFuture[range]:
        if self.error is not None:
            raise self.error
        self.room_ -= 1
        self.forwarded.append((batch, AppendFuture()))
        return self.forwarded[-1][1]

    @property
    def requests(self) -> list[int]:
        """Return the numbers of the requests that were forwarded: a batch has as many messages as its number."""
        return [batch.messages_submitted for batch, _ in self.forwarded]


class Producer:
    def __init__(self) -> None:
        class TopicStub(NamedTuple):
            name: str
            publisher: Publisher

        self.answers, self.publisher = Answers(), Publisher()
        topic = cast("Topic", TopicStub("topic", self.publisher))
        self.session = ProducerSession(topic, "p", "client", self.answers.reply)

    def publish(self, request: int) -> None:
        """Publish a batch of `request` messages."""
        self.session.publish(request, [encode_messages([b"%d" % number]) for number in range(request)])


def test_batches_are_forwarded_in_order_as_there_is_room() -> None:
    producer = Producer()
    producer.publisher.room_ = 1
    for request in range(1, 6):
        producer.publish(request)
    assert producer.publisher.requests == [1] and len(producer.publisher.rooms) == 1
    producer.publisher.make_room(2)
    assert producer.publisher.requests == [1, 2, 3] and len(producer.publisher.rooms) == 1
    producer.publisher.make_room(2)
    assert producer.publisher.requests == [1, 2, 3, 4, 5] and not producer.publisher.rooms
    assert producer.answers.take() == []


def test_a_batch_is_answered_with_what_is_stored() -> None:
    producer = Producer()
    for offsets, kept, expected in (
        (range(7, 10), None, (7, 3, 3)),
        (range(7, 9), np.array([True, False, True]), (7, 3, 2)),
        (range(0), np.array([False, False, False]), (-1, 3, 0)),
    ):
        producer.publish(3)
        batch, future = producer.publisher.forwarded[-1]
        batch.kept = kept
        set_result(future, offsets)
        ((answered, body),) = producer.answers.take()
        assert (answered, body[0]) == (3, OK)
        reader = WireReader("a reply", memoryview(body), 1)
        assert tuple(PUBLISHED.decode(reader)) == expected
        assert bytes(reader.rest()) == (b"\xa0" if kept is not None and len(offsets) else b"")


def test_a_batch_that_fails_is_answered_with_its_error_and_the_next_one_goes_on() -> None:
    producer = Producer()
    producer.publish(1)
    producer.publish(2)
    (_, first), (_, second) = producer.publisher.forwarded
    set_result(second, range(1))
    set_exception(first, ERROR_OF_A_TEST)
    (other, body), (request, fault) = producer.answers.take()
    assert (other, body[0], request) == (2, OK, 1)
    assert isinstance(fault_in(fault), InvalidEntryError)


def test_publish_of_an_invalid_batch_raises_and_publishes_nothing() -> None:
    producer = Producer()
    with pytest.raises(InvalidEntryError):
        producer.session.publish(1, [b"none"])
    producer.publish(2)
    assert producer.publisher.requests == [2] and producer.answers.take() == []


def test_batches_after_one_that_cannot_be_forwarded_fail_too() -> None:
    producer = Producer()
    producer.publisher.room_ = 0
    for request in (1, 2):
        producer.publish(request)
    producer.publisher.error = TopicFencedError("topic", "another process owns it")
    producer.publisher.make_room(5)
    producer.publisher.error = None
    producer.publish(3)
    answers = producer.answers.take()
    assert [request for request, _ in answers] == [1, 2, 3]
    assert all(isinstance(fault_in(body), TopicFencedError) for _, body in answers)
    assert producer.publisher.requests == []


def test_a_session_that_has_ended_publishes_nothing_more() -> None:
    producer = Producer()
    producer.publisher.room_ = 0
    producer.publish(1)
    ended = producer.session.end()
    assert ended.done() and producer.answers.take() == [(1, bytes((STALE,)))]
    producer.session.end(b"later").result(0)
    producer.publisher.make_room(1)
    producer.publish(2)
    assert producer.answers.take() == [(2, bytes((STALE,)))] and producer.publisher.requests == []


def test_leaving_waits_for_the_batches() -> None:
    producer, left = Producer(), list[str]()
    producer.session.leave(lambda: left.append("first"))
    assert left == ["first"]
    producer.publisher.room_ = 0
    producer.publish(1)
    producer.session.leave(lambda: left.append("second"))
    assert left == ["first"]
    producer.publisher.make_room(1)
    assert (left, producer.publisher.requests) == (["first", "second"], [1])
    producer.publisher.make_room(1) if producer.publisher.rooms else producer.publish(2)
    assert left == ["first", "second"], "each is called once"


def test_leaving_waits_for_no_quota() -> None:
    producer, left = Producer(), list[str]()
    producer.publisher.room_ = 0
    for request in (1, 2):
        producer.publish(request)
    producer.publisher.held = BacklogFullError("topic", "a quota holds publishers")
    assert producer.answers.take() == [], "while it stays it waits"
    producer.session.leave(lambda: left.append("left"))
    answers = producer.answers.take()
    assert [request for request, _ in answers] == [1, 2] and left == ["left"]
    assert all(isinstance(fault_in(body), BacklogFullError) for _, body in answers)


# ---- connections -----------------------------------------------------------------------------------------------


def connection() -> tuple[ClientSession, Answers]:
    answers = Answers()
    return ClientSession(cast("ServerConnection", answers)), answers


def test_a_request_with_a_checksum_is_answered_with_one_once() -> None:
    session, answers = connection()
    session.checks(1)
    for request in (2, 1, 1):
        session.reply(request, b"head", b"records")
    plain, checked = b"headrecords", b"head" + checksum(b"head") + b"records"
    assert answers.take() == [(2, plain), (1, checked), (1, plain)]


def test_requests_are_answered_with_results_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    session, answers = connection()
    session.done(1)
    futures: list[AppendFuture[int]] = [AppendFuture() for _ in range(3)]
    seen: list[int] = []

    def reply(result: int) -> Reply:
        seen.append(result)
        return Done()

    for number, future in enumerate(futures):
        session.answer(2 + number, future, reply)
    set_result(futures[1], 7)
    set_exception(futures[0], ERROR_OF_A_TEST)
    assert not caplog.text
    set_exception(futures[2], ValueError("a mistake"))
    first, second, third, fourth = answers.take()
    assert encode_reply(Done()) == DONE
    assert (first, second, third[0], fourth[0], seen) == ((1, DONE), (3, DONE), 2, 4, [7])
    assert isinstance(fault_in(third[1]), InvalidEntryError)
    assert "ValueError: a mistake" in str(fault_in(fourth[1])) and "a mistake" in caplog.text
    session.fail(9, ERROR_OF_A_TEST, "host:1")
    ((_, body),) = answers.take()
    assert decode_fault(WireReader("a reply", memoryview(body), 1))[1] == "host:1"


@pytest.mark.parametrize("kind", ["producer", "consumer", "origin", "exchange"])
def test_a_handle_is_used_once_and_there_are_not_too_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (LANES_MAX, CONSUMERS_MAX, ORIGINS_MAX) == (4096, 4096, 1 << 16)
    for name in ("LANES_MAX", "CONSUMERS_MAX", "ORIGINS_MAX"):
        monkeypatch.setattr(client_session, name, 2)
    session, _ = connection()

    topics = count()

    def add(handle: int) -> None:
        if kind == "producer":
            session.add_producer(handle, Producer().session)
        elif kind == "consumer":
            session.add_consumer(handle, Consumer().session)
        elif kind == "origin":
            session.add_origin(handle, origin_of(f"topic {next(topics)}"))
        else:
            session.add_exchange(handle, cast("ExchangePeer", Peer()))

    add(1)
    with pytest.raises(InvalidMessageError, match="handle 1: expected one of at most 2, not in use"):
        add(1)
    add(5)
    with pytest.raises(InvalidMessageError, match="handle 3: expected one of at most 2"):
        add(3)
    session.end(ERROR_OF_A_TEST)
    with pytest.raises(ClosedError, match="the connection was lost: of a test"):
        add(7)


def origin_of(topic: str) -> OriginSession:
    class TopicStub(NamedTuple):
        name: str

    return OriginSession(cast("Topic", TopicStub(topic)), cast("Origin", "origin"), 1)


def test_a_new_session_of_an_origin_takes_the_place_of_the_older_one() -> None:
    session, _ = connection()
    opened = [origin_of(name) for name in ("a", "a", "b")]
    for handle, each in enumerate(opened):
        session.add_origin(handle, each)
    assert [session.origin(handle) for handle in range(4)] == [None, opened[1], opened[2], None]
    session.end(ERROR_OF_A_TEST)
    assert session.origin(1) is None


class Peer:
    """The part of a peer that exchanges about replicated subscriptions use."""

    def __init__(self) -> None:
        self.lost: list[int] = []

    def connection_lost(self, number: int) -> None:
        self.lost.append(number)


def test_a_connection_that_ends_takes_its_sessions_along() -> None:
    session, answers = connection()
    producers, consumers, peer = [Producer() for _ in range(2)], [Consumer() for _ in range(3)], Peer()
    for handle, producer in enumerate(producers):
        producer.publisher.room_ = 0
        producer.publish(handle + 1)
        session.add_producer(handle, producer.session)
        assert session.producer_session(handle) is producer.session
    for handle, consumer in enumerate(consumers):
        consumer.fetch()
        session.add_consumer(handle, consumer.session)
        assert session.consumer_session(handle) is consumer.session
    session.add_exchange(4, cast("ExchangePeer", peer))
    assert session.remove_producer(0) is producers[0].session and session.remove_producer(0) is None
    assert session.remove_consumer(1, consumers[0].session) is None
    assert session.remove_consumer(1, consumers[1].session) is consumers[1].session
    assert session.remove_consumer(2) is consumers[2].session and session.remove_consumer(2) is None
    assert session.end(ERROR_OF_A_TEST) == [producers[1].session]
    assert [producer.answers.take() for producer in producers] == [[], [(2, bytes((STALE,)))]]
    assert [consumer.source.detached for consumer in consumers] == [[9], [], []]
    assert ["the connection was lost" in str(fault) for fault in consumers[0].faults()] == [True]
    assert peer.lost == [4] and answers.take() == []
    assert session.producer_session(1) is session.consumer_session(0) is None
    assert session.end(ERROR_OF_A_TEST) == []
    assert peer.lost == [4]
