"""The requests that are exchanged when messages are published and received one by one."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_subscription import FETCHES
from pyreplog.topic.model.interfaces import DeliveredMessages
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import BATCH_BYTES
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.server.client_session import WAITING_BYTES, ConsumerSession
from pyreplog.topic.server.topic_server import TopicService
from tests.topic.entries import records_of
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, receive

MESSAGES = 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Count the requests of each kind that reach the server."""
    kinds: Counter[type] = Counter()
    handle = TopicService._handle

    def spy(service: TopicService, session: object, number: int, request: object) -> None:
        kinds[type(request)] += 1
        handle(service, session, number, request)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicService, "_handle", spy)
    return kinds


def test_an_acknowledgement_asks_for_the_next_message(
    served: ServedCluster, client: Client, asked: Counter[type]
) -> None:
    topic = client.topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest") as consumer:
        for number in range(MESSAGES):
            topic.publish(b"%d" % number)
            message = consumer.receive(timeout=PATIENCE_S)
            assert message is not None and message.value == b"%d" % number
            consumer.acknowledge(message)
            consumer.flush()
    assert asked[protocol.Publish] == asked[protocol.AcknowledgeAndFetch] == MESSAGES
    assert asked[protocol.Fetch] == FETCHES
    assert not asked[protocol.AcknowledgeRange]
    assert served.cluster.topic("news").stats().subscriptions[0].backlog_messages == 0


def test_a_consumer_that_acknowledges_nothing_gets_more(client: Client, asked: Counter[type]) -> None:
    topic = client.topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest") as consumer:
        for number in range(MESSAGES):
            topic.publish(b"%d" % number)
            assert receive(consumer, 1) == [b"%d" % number]
        assert not asked[protocol.AcknowledgeAndFetch]
        consumer.acknowledge(range(MESSAGES))
        consumer.flush()
        (subscription,) = topic.stats().subscriptions
        assert subscription.backlog_messages == 0


def test_batches_that_come_while_a_session_is_opened_wait_for_it(
    served: ServedCluster, client: Client, asked: Counter[type]
) -> None:
    served.cluster.topic("news", **PLAIN)
    topic = client.topic("news")
    asked.clear()
    futures = [topic.submit_batch([b"%d" % number]) for number in range(MESSAGES)]
    assert [future.result(PATIENCE_S).start for future in futures] == list(range(MESSAGES))
    assert asked[protocol.Open] == 1


class Flows:
    """A subscription that records permits."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def flow(self, consumer: int, messages: int) -> None:
        self.given.append(messages)


def test_large_delivery_taken_in_parts_leaves_room_for_as_many_messages_again() -> None:
    """Three entries, each of which nearly fills a delivery."""
    flows, answers = Flows(), list[tuple[int, int]]()
    outlet = ConsumerSession("c", lambda request, *buffers: answers.append((request, sum(map(len, buffers)))))
    outlet.attached(cast("Subscription", flows), 1)
    entries = [encode_messages([bytes(BATCH_BYTES - 1000)]) for _ in range(3)]
    batch = decode_messages(records_of(entries, [1] * 3), offset=0, entries=0, size=0)
    for number in range(5):
        outlet.flow(3)
        assert sum(flows.given) == 3 * number + 3
        outlet.deliver(DeliveredMessages(batch, {}))
        for request in range(3):
            outlet.fetch(request)
        for request, (answered, size) in enumerate(answers):
            assert answered == request and BATCH_BYTES - 1000 < size < BATCH_BYTES
        answers.clear()
    outlet.flow(100)
    assert flows.given[-1] == WAITING_BYTES // (BATCH_BYTES - 1000)


def test_permits_are_passed_on_when_half_of_the_room_is_free() -> None:
    """One request of permits covers many messages, and is sent early enough that the consumer does not wait."""
    flows, number = Flows(), 0
    session = ConsumerSession("c", lambda request, *buffers: None)
    session.attached(cast("Subscription", flows), 1)
    entry = encode_messages([bytes(WAITING_BYTES // 8 - 1000)])
    batch = decode_messages(records_of([entry], [1]), offset=0, entries=0, size=0)

    def hand_out() -> int:
        nonlocal number
        session.deliver(DeliveredMessages(batch, {}))
        session.fetch(number := number + 1)
        return sum(flows.given)

    for _ in range(20):  # until the size of messages is known
        session.flow(1)
        hand_out()
    before = sum(flows.given)
    session.flow(100)
    assert sum(flows.given) == before + 8
    assert [hand_out() - before for _ in range(8)] == [8, 8, 8, 12, 12, 12, 12, 16]
