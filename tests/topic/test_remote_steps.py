"""A consumer of a client, step by step: what it flushes by itself, repeats, drops and fetches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from pyreplog.errors import ClosedError, DiskError, InvalidArgumentError, OutcomeUnknownError
from pyreplog.topic.client.consumer import ACKS_WAIT_S, Consumer
from pyreplog.topic.client.remote.connection_pool import ConnectionPool
from pyreplog.topic.client.remote.remote_subscription import (
    FETCHES,
    FETCHES_LEAST,
    FLUSH_AFTER_S,
    RemoteSubscribeOptions,
    RemoteSubscription,
)
from pyreplog.topic.model.wire.batches import Delivered, encode_delivered
from pyreplog.topic.model.wire.protocol import (
    Acknowledge,
    AcknowledgeAndFetch,
    AcknowledgeCumulative,
    AcknowledgeRange,
    Done,
    Fetch,
    Flow,
    Flush,
    Moved,
    MovedTo,
    Redeliver,
    Resume,
    Resumed,
    Seek,
    Subscribe,
    encode_reply,
)
from tests.topic.publishing import Bench
from tests.topic.test_attachment import Hand

VALUES = [b"one", b"two", b"three"]
ERA = 7


class TimedHand(Hand):
    """A pool whose timers the test runs."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self._version = version

    def version(self, address: Any) -> int:
        return self._version

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object:
        self.timers.append((seconds, call))
        return call

    def pass_time(self) -> None:
        """Run the timer of the flush, which must be the only one."""
        ((seconds, call),) = self.timers
        self.timers.clear()
        assert seconds == FLUSH_AFTER_S
        call()

    def asked(self, kind: type[Any]) -> list[Any]:
        return [request for request, _ in self._asked if isinstance(request, kind)]


class Stand:
    """A consumer that is attached by a pool, and has three messages."""

    def __init__(self, consumer: Consumer, version: int = 2, *, durable: bool = True) -> None:
        self.consumer, self.link = consumer, TimedHand(version)
        self._bench = Bench(holds=False)
        self._bench.submit_batch(VALUES)
        self.subscription = RemoteSubscription(
            cast("ConnectionPool", self.link),
            RemoteSubscribeOptions("news", "s", "earliest", durable, 0, ""),
            consumer,
            lambda _: None,
        )
        attached = self.subscription.attach()
        self.subscribed()
        assert attached.done()
        consumer.attached(self.subscription, 1)

    @property
    def has_eras(self) -> bool:
        return self.link.version(None) > 1

    def subscribed(self, *, counts: bool = True) -> None:
        """The server attaches the consumer."""
        self.link.answer(Subscribe, [encode_reply(Done())])
        if self.has_eras:
            self.link.answer(Resume, [encode_reply(Resumed(0, ERA, counts))])

    def deliver(self, generation: int = 0, era: int = ERA, *, active: bool = True) -> None:
        delivered = Delivered(generation, active, self._bench.ledgers.stored(), {}, era if self.has_eras else None)
        self.link.answer(Fetch, encode_delivered(delivered))

    def received(self) -> list[bytes]:
        batch = self.consumer.receive_batch(timeout=0)
        return [] if batch is None else batch.values()

    def acknowledge(self, *offsets: int) -> None:
        self.consumer.acknowledge([*offsets])

    def lose(self) -> None:
        """The server closes the topic: the consumer asks to be attached again."""
        for _ in self.link.asked(Fetch):
            self.link.answer(Fetch, ClosedError("its topic was closed at this server"))

    def resume(self) -> tuple[int, int, list[list[int]]]:
        """Attach the consumer, up to the RESUME that follows, and return what that says."""
        self.link.answer(Subscribe, [encode_reply(Done())])
        (request,) = self.link.asked(Resume)
        return request.era, request.end, request.ranges.tolist()

    def flushed(self) -> None:
        self.link.answer(Flush, [encode_reply(Done())])


@contextmanager
def standing(version: int = 2) -> Iterator[Stand]:
    with Consumer("news", "s", "c") as consumer:
        stand = Stand(consumer, version)
        stand.deliver()
        assert stand.received() == VALUES
        yield stand


def some(stand: Stand) -> None:
    stand.acknowledge(0, 2)


def a_range(stand: Stand) -> None:
    stand.acknowledge(0, 1)


def up_to_one(stand: Stand) -> None:
    stand.consumer.acknowledge_cumulative_async(1)


HOW = [some, a_range, up_to_one]


@pytest.mark.parametrize("acknowledge", HOW)
def test_what_is_acknowledged_is_flushed_after_a_while(acknowledge: Callable[[Stand], None]) -> None:
    """Once, however many follow; and no flush comes when there is nothing new."""
    with standing() as stand:
        assert not stand.link.timers, "nothing was acknowledged"
        acknowledge(stand)
        acknowledge(stand)
        assert not stand.link.asked(Flush)
        stand.link.pass_time()
        assert len(stand.link.asked(Flush)) == 1
        stand.flushed()
        assert not stand.link.timers and not stand.link.asked(Flush)
        acknowledge(stand)
        stand.link.pass_time()
        stand.flushed()


@pytest.mark.parametrize("acknowledge", HOW)
def test_what_comes_during_a_flush_has_another(acknowledge: Callable[[Stand], None]) -> None:
    with standing() as stand:
        acknowledge(stand)
        stand.link.pass_time()
        stand.acknowledge(1)
        assert not stand.link.timers, "one at a time"
        stand.flushed()
        stand.link.pass_time()
        stand.flushed()
        assert not stand.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_a_flush_that_failed_is_tried_again(acknowledge: Callable[[Stand], None]) -> None:
    with standing() as stand:
        acknowledge(stand)
        for _ in range(3):
            stand.link.pass_time()
            stand.link.answer(Flush, DiskError("for now"))
        stand.link.pass_time()
        stand.flushed()
        assert not stand.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_what_no_flush_had_confirmed_is_flushed_over_the_next_connection(acknowledge: Callable[[Stand], None]) -> None:
    """It was repeated by the RESUME; the flush that the first connection has lost does not stand in its way."""
    with standing() as stand:
        acknowledge(stand)
        stand.link.pass_time()
        stand.lose()
        stand.link.answer(Flush, ClosedError("its topic was closed at this server"))
        assert not stand.link.timers, "there is no connection"
        resumed = len(stand.link.asked(Flush))
        stand.subscribed()
        stand.link.pass_time()
        assert len(stand.link.asked(Flush)) == resumed + 1
        stand.flushed()
        assert not stand.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_what_a_flush_has_confirmed_is_not_repeated(acknowledge: Callable[[Stand], None]) -> None:
    with standing() as stand:
        acknowledge(stand)
        stand.link.pass_time()
        stand.flushed()
        stand.lose()
        assert stand.resume() == (ERA, 0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_messages_of_before_a_seek_are_gone_with_its_answer(version: int) -> None:
    """Though no later delivery has told of it."""
    with standing(version) as stand:
        stand.deliver()
        sought = stand.subscription.seek("earliest")
        stand.link.answer(Seek, [encode_reply(MovedTo(0, 1, ERA + 1) if version > 1 else Moved(0, 1))])
        assert sought.result(0) == 0
        assert stand.received() == []
        stand.deliver(generation=0)
        assert stand.received() == [], "it was on its way"
        stand.deliver(generation=1, era=ERA + 1)
        assert stand.received() == VALUES


def test_acknowledgements_behind_a_seek_count_in_its_generation() -> None:
    with standing() as stand:
        stand.acknowledge(0, 2)
        stand.subscription.seek("earliest")
        stand.link.answer(Seek, [encode_reply(MovedTo(0, 1, ERA + 1))])
        stand.subscription.acknowledge_cumulative(1, 2)
        assert [request.generation for request in stand.link.asked(AcknowledgeCumulative)] == [1]
        stand.lose()
        assert stand.resume() == (ERA + 1, 2, []), "those of before do not count"


@pytest.mark.parametrize("acknowledge", HOW)
def test_a_flush_that_is_due_while_there_is_no_connection_comes_later(acknowledge: Callable[[Stand], None]) -> None:
    with standing() as stand:
        acknowledge(stand)
        stand.lose()
        stand.link.pass_time()
        assert not stand.link.asked(Flush) and not stand.link.timers
        stand.subscribed()
        stand.link.pass_time()
        stand.flushed()


def test_what_the_owner_refused_is_not_repeated() -> None:
    with standing() as stand:
        for acknowledge, kind in ((some, Acknowledge), (up_to_one, AcknowledgeCumulative)):
            acknowledge(stand)
            stand.link.answer(kind, InvalidArgumentError("not so"))
        stand.lose()
        assert stand.resume() == (ERA, 0, [])


def test_what_comes_behind_the_resume_is_sent_when_that_is_answered() -> None:
    """And what was in it is not sent twice."""
    with standing() as stand:
        stand.acknowledge(0)
        stand.lose()
        assert stand.resume() == (ERA, 0, [[0, 1]])
        stand.acknowledge(2)
        sent = len(stand.link.asked(AcknowledgeRange))
        stand.link.answer(Resume, [encode_reply(Resumed(3, ERA, True))])
        assert [request[1:] for request in stand.link.asked(AcknowledgeRange)[sent:]] == [(3, 2, 3)]


def test_acknowledgements_that_do_not_count_any_more_are_unknown_to_who_flushes() -> None:
    """Once: what is acknowledged later has nothing to do with them."""
    with standing() as stand:
        stand.acknowledge(0)
        stand.lose()
        stand.subscribed(counts=False)
        with pytest.raises(OutcomeUnknownError, match="a seek moved the subscription"):
            stand.consumer.flush_async().result(0)
        assert not stand.link.asked(Flush)
        stand.acknowledge(1)
        flushing = stand.consumer.flush_async()
        stand.flushed()
        flushing.result(0)
        stand.lose()
        assert stand.resume() == (ERA, 0, []), "a flush that was asked for confirms as well"


def test_a_delivery_of_the_same_generation_leaves_those_before() -> None:
    with standing() as stand:
        stand.deliver()
        stand.deliver()
        assert [stand.received(), stand.received(), stand.received()] == [VALUES, VALUES, []]


@pytest.mark.parametrize("is_new_era", [True, False])
def test_acknowledgements_that_a_seek_has_overtaken_are_not_sent(is_new_era: bool) -> None:
    """They wait in the consumer for more of them. A redelivery has no new era, and leaves them."""
    with standing() as stand:
        stand.deliver()
        message = stand.consumer.receive(timeout=0)
        assert message is not None
        stand.consumer.acknowledge(message)
        ((seconds, send),) = stand.link.timers
        assert seconds == ACKS_WAIT_S
        stand.link.timers.clear()
        stand.subscription.redeliver(1)
        stand.link.answer(Redeliver, [encode_reply(MovedTo(0, 1, ERA + is_new_era))])
        sent = len(stand.link.asked(AcknowledgeRange))
        send()
        assert len(stand.link.asked(AcknowledgeRange)) == sent + (not is_new_era)
        stand.lose()
        assert stand.resume() == (ERA + is_new_era, 0, [] if is_new_era else [[0, 1]])


# ---- messages --------------------------------------------------------------------------------------------------------


def test_fetches_are_sent_anew_when_few_are_left() -> None:
    """Not with each delivery: the acknowledgement of it may fetch as well."""
    with Consumer("news", "s", "c") as consumer:
        stand = Stand(consumer)
        counts = [len(stand.link.asked(Fetch))]
        for _ in range(4):
            stand.deliver()
            counts.append(len(stand.link.asked(Fetch)))
        assert counts == [FETCHES, FETCHES_LEAST, FETCHES, FETCHES_LEAST, FETCHES]


def test_the_next_connection_permits_what_has_not_come() -> None:
    """And as many again as were taken, and as were discarded: those come again."""
    with Consumer("news", "s", "c", queue=8) as consumer:
        stand = Stand(consumer)
        stand.deliver()
        assert stand.received() == VALUES
        stand.deliver()
        assert [request.messages for request in stand.link.asked(Flow)] == [8], "half of them have not come"
        stand.lose()
        stand.subscribed()
        assert [request.messages for request in stand.link.asked(Flow) if request.consumer == 2] == [8]
        assert stand.received() == []


def test_what_comes_too_late_is_permitted_again() -> None:
    with standing() as stand:
        stand.subscription.redeliver(1)
        stand.link.answer(Redeliver, [encode_reply(MovedTo(0, 1, ERA))])
        before = len(stand.link.asked(Flow))
        stand.deliver(generation=0)
        assert [request.messages for request in stand.link.asked(Flow)[before:]] == [len(VALUES)]


@pytest.mark.parametrize(("durable", "start"), [(True, "earliest"), (False, 3)])
def test_a_subscription_that_is_not_durable_goes_on_behind_the_last_message(durable: bool, start: object) -> None:
    with Consumer("news", "s", "c") as consumer:
        stand = Stand(consumer, durable=durable)
        stand.lose()
        (first,) = stand.link.asked(Subscribe)
        assert first.start == "earliest", "there was no message"
        stand.subscribed()
        stand.deliver()
        stand.lose()
        (again,) = stand.link.asked(Subscribe)
        assert again.start == start


def test_a_delivery_says_who_is_active_and_what_it_comes_behind() -> None:
    with standing() as stand:
        for is_active in (False, False, True):
            stand.deliver(active=is_active)
            assert (stand.consumer.is_active, stand.received()) == (is_active, VALUES)
        stand.deliver()
        stand.acknowledge(0)
        stand.deliver(generation=1, era=ERA + 1)
        assert [stand.received(), stand.received()] == [VALUES, []], "those of before a seek are gone"
        assert stand.subscription.era == ERA + 1
        stand.lose()
        assert stand.resume() == (ERA + 1, 0, [])


def test_an_error_that_does_not_pass_ends_the_consumer() -> None:
    with standing() as stand:
        stand.link.answer(Fetch, InvalidArgumentError("not so"))
        assert not stand.link.asked(Subscribe)
        with pytest.raises(InvalidArgumentError, match="not so"):
            stand.received()
        with pytest.raises(InvalidArgumentError, match="not so"):
            stand.consumer.flush_async().result(0)


def test_a_consumer_that_has_ended_takes_no_acknowledgement_of_a_message() -> None:
    """Nor does it collect them, as it does while nothing is wrong."""
    with standing() as stand:
        stand.deliver()
        message = stand.consumer.receive(timeout=0)
        assert message is not None
        stand.consumer.acknowledge(message)
        stand.link.answer(Fetch, InvalidArgumentError("not so"))
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="not so"):
                stand.consumer.acknowledge(message)


# ---- acknowledgements that are repeated ------------------------------------------------------------------------------


def test_one_range_goes_with_the_next_fetch() -> None:
    """As many fetches wait then as may: the next range goes alone."""
    with standing() as stand:
        stand.acknowledge(0, 1)
        stand.acknowledge(2)
        assert [request[1:] for request in stand.link.asked(AcknowledgeAndFetch)] == [(0, 0, 2)]
        assert [request[1:] for request in stand.link.asked(AcknowledgeRange)] == [(0, 2, 3)]


def test_acknowledgements_that_were_lost_are_repeated() -> None:
    with standing() as stand:
        stand.acknowledge(0, 2)
        done = stand.consumer.acknowledge_cumulative_async(1)
        for kind in (Acknowledge, AcknowledgeCumulative):
            stand.link.answer(kind, ClosedError("its topic was closed at this server"))
        assert stand.resume() == (ERA, 2, [[0, 1], [2, 3]])
        assert not done.done()
        stand.link.answer(Resume, [encode_reply(Resumed(0, ERA, True))])
        assert done.result(0) is None and not stand.link.asked(AcknowledgeCumulative), "the RESUME had it"


def test_what_the_owner_has_but_no_flush_has_confirmed_is_repeated() -> None:
    with standing() as stand:
        done = stand.consumer.acknowledge_cumulative_async(1)
        stand.link.answer(AcknowledgeCumulative, [encode_reply(Done())])
        assert done.result(0) is None
        stand.lose()
        assert stand.resume() == (ERA, 2, [])


@pytest.mark.parametrize("has_moved", [False, True])
def test_one_below_a_message_that_comes_behind_the_resume_is_sent(has_moved: bool) -> None:
    """Unless a seek has moved the subscription meanwhile: then it does not count."""
    with standing() as stand:
        stand.lose()
        assert stand.resume() == (ERA, 0, [])
        done = stand.consumer.acknowledge_cumulative_async(1)
        stand.link.answer(Resume, [encode_reply(Resumed(3, ERA + has_moved, not has_moved))])
        sent = [request[1:] for request in stand.link.asked(AcknowledgeCumulative)]
        assert (sent, done.done()) == (([], True) if has_moved else ([(3, 2)], False))


def test_at_a_server_without_eras_one_below_a_message_is_sent_once() -> None:
    """If nobody has told what came of it, it is unknown."""
    with standing(version=1) as stand:
        stand.lose()
        waited = stand.consumer.acknowledge_cumulative_async(0)
        stand.subscribed()
        stand.link.answer(AcknowledgeCumulative, [encode_reply(Done())])
        assert waited.result(0) is None
        lost = stand.consumer.acknowledge_cumulative_async(1)
        stand.link.answer(AcknowledgeCumulative, ClosedError("its topic was closed at this server"))
        stand.subscribed()
        with pytest.raises(OutcomeUnknownError, match="before the answer arrived"):
            lost.result(0)
        assert not stand.link.asked(AcknowledgeCumulative)
