"""A consumer of a client, step by step: which flushes, repetitions, discards and fetches it sends by itself."""

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
from tests.topic.test_attachment import FakeConnectionPool

VALUES = [b"one", b"two", b"three"]
ERA = 7


class TimedConnectionPool(FakeConnectionPool):
    """A connection pool whose timers the test runs."""

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


class ConsumerLab:
    """A consumer that was attached, and has three messages."""

    def __init__(self, consumer: Consumer, version: int = 2, *, durable: bool = True) -> None:
        self.consumer, self.link = consumer, TimedConnectionPool(version)
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
        """Answer that the consumer is attached."""
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
        """Close the topic at the server, so that the consumer asks to be attached again."""
        for _ in self.link.asked(Fetch):
            self.link.answer(Fetch, ClosedError("its topic was closed at this server"))

    def resume(self) -> tuple[int, int, list[list[int]]]:
        """Attach the consumer; return the content of the RESUME that follows."""
        self.link.answer(Subscribe, [encode_reply(Done())])
        (request,) = self.link.asked(Resume)
        return request.era, request.end, request.ranges.tolist()

    def flushed(self) -> None:
        self.link.answer(Flush, [encode_reply(Done())])


@contextmanager
def attached_lab(version: int = 2) -> Iterator[ConsumerLab]:
    with Consumer("news", "s", "c") as consumer:
        lab = ConsumerLab(consumer, version)
        lab.deliver()
        assert lab.received() == VALUES
        yield lab


def some(lab: ConsumerLab) -> None:
    lab.acknowledge(0, 2)


def a_range(lab: ConsumerLab) -> None:
    lab.acknowledge(0, 1)


def up_to_one(lab: ConsumerLab) -> None:
    lab.consumer.acknowledge_cumulative_async(1)


HOW = [some, a_range, up_to_one]


@pytest.mark.parametrize("acknowledge", HOW)
def test_consumer_flushes_acknowledgements_after_a_delay(acknowledge: Callable[[ConsumerLab], None]) -> None:
    """One flush is sent for any number of acknowledgements, and none when there are no new ones."""
    with attached_lab() as lab:
        assert not lab.link.timers, "nothing was acknowledged"
        acknowledge(lab)
        acknowledge(lab)
        assert not lab.link.asked(Flush)
        lab.link.pass_time()
        assert len(lab.link.asked(Flush)) == 1
        lab.flushed()
        assert not lab.link.timers and not lab.link.asked(Flush)
        acknowledge(lab)
        lab.link.pass_time()
        lab.flushed()


@pytest.mark.parametrize("acknowledge", HOW)
def test_acknowledgements_during_a_flush_are_flushed_by_another_one(acknowledge: Callable[[ConsumerLab], None]) -> None:
    with attached_lab() as lab:
        acknowledge(lab)
        lab.link.pass_time()
        lab.acknowledge(1)
        assert not lab.link.timers, "one at a time"
        lab.flushed()
        lab.link.pass_time()
        lab.flushed()
        assert not lab.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_a_flush_that_failed_is_tried_again(acknowledge: Callable[[ConsumerLab], None]) -> None:
    with attached_lab() as lab:
        acknowledge(lab)
        for _ in range(3):
            lab.link.pass_time()
            lab.link.answer(Flush, DiskError("for now"))
        lab.link.pass_time()
        lab.flushed()
        assert not lab.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_unconfirmed_acknowledgements_are_flushed_over_the_next_connection(
    acknowledge: Callable[[ConsumerLab], None],
) -> None:
    """The RESUME repeats the acknowledgement. The flush that was lost with the first connection does not delay the next
    one."""
    with attached_lab() as lab:
        acknowledge(lab)
        lab.link.pass_time()
        lab.lose()
        lab.link.answer(Flush, ClosedError("its topic was closed at this server"))
        assert not lab.link.timers, "there is no connection"
        resumed = len(lab.link.asked(Flush))
        lab.subscribed()
        lab.link.pass_time()
        assert len(lab.link.asked(Flush)) == resumed + 1
        lab.flushed()
        assert not lab.link.timers


@pytest.mark.parametrize("acknowledge", HOW)
def test_resume_omits_acknowledgements_that_a_flush_confirmed(acknowledge: Callable[[ConsumerLab], None]) -> None:
    with attached_lab() as lab:
        acknowledge(lab)
        lab.link.pass_time()
        lab.flushed()
        lab.lose()
        assert lab.resume() == (ERA, 0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_messages_of_before_a_seek_are_gone_with_its_answer(version: int) -> None:
    """They are dropped although no later delivery has reported the seek."""
    with attached_lab(version) as lab:
        lab.deliver()
        sought = lab.subscription.seek("earliest")
        lab.link.answer(Seek, [encode_reply(MovedTo(0, 1, ERA + 1) if version > 1 else Moved(0, 1))])
        assert sought.result(0) == 0
        assert lab.received() == []
        lab.deliver(generation=0)
        assert lab.received() == [], "it was on its way"
        lab.deliver(generation=1, era=ERA + 1)
        assert lab.received() == VALUES


def test_acknowledgements_behind_a_seek_count_in_its_generation() -> None:
    with attached_lab() as lab:
        lab.acknowledge(0, 2)
        lab.subscription.seek("earliest")
        lab.link.answer(Seek, [encode_reply(MovedTo(0, 1, ERA + 1))])
        lab.subscription.acknowledge_cumulative(1, 2)
        assert [request.generation for request in lab.link.asked(AcknowledgeCumulative)] == [1]
        lab.lose()
        assert lab.resume() == (ERA + 1, 2, []), "those of before do not count"


@pytest.mark.parametrize("acknowledge", HOW)
def test_a_flush_that_is_due_while_there_is_no_connection_comes_later(
    acknowledge: Callable[[ConsumerLab], None],
) -> None:
    with attached_lab() as lab:
        acknowledge(lab)
        lab.lose()
        lab.link.pass_time()
        assert not lab.link.asked(Flush) and not lab.link.timers
        lab.subscribed()
        lab.link.pass_time()
        lab.flushed()


def test_resume_omits_acknowledgements_that_the_owner_refused() -> None:
    with attached_lab() as lab:
        for acknowledge, kind in ((some, Acknowledge), (up_to_one, AcknowledgeCumulative)):
            acknowledge(lab)
            lab.link.answer(kind, InvalidArgumentError("not so"))
        lab.lose()
        assert lab.resume() == (ERA, 0, [])


def test_acknowledgements_made_after_a_resume_are_sent_once_it_is_answered() -> None:
    """The acknowledgements of the RESUME are not sent twice."""
    with attached_lab() as lab:
        lab.acknowledge(0)
        lab.lose()
        assert lab.resume() == (ERA, 0, [[0, 1]])
        lab.acknowledge(2)
        sent = len(lab.link.asked(AcknowledgeRange))
        lab.link.answer(Resume, [encode_reply(Resumed(3, ERA, True))])
        assert [request[1:] for request in lab.link.asked(AcknowledgeRange)[sent:]] == [(3, 2, 3)]


def test_flush_of_lost_acknowledgements_raises_outcome_unknown_error_once() -> None:
    """The error is raised once, as later acknowledgements are not affected."""
    with attached_lab() as lab:
        lab.acknowledge(0)
        lab.lose()
        lab.subscribed(counts=False)
        with pytest.raises(OutcomeUnknownError, match="a seek moved the subscription"):
            lab.consumer.flush_async().result(0)
        assert not lab.link.asked(Flush)
        lab.acknowledge(1)
        flushing = lab.consumer.flush_async()
        lab.flushed()
        flushing.result(0)
        lab.lose()
        assert lab.resume() == (ERA, 0, []), "a flush that was asked for confirms as well"


def test_a_delivery_of_the_same_generation_leaves_those_before() -> None:
    with attached_lab() as lab:
        lab.deliver()
        lab.deliver()
        assert [lab.received(), lab.received(), lab.received()] == [VALUES, VALUES, []]


@pytest.mark.parametrize("is_new_era", [True, False])
def test_acknowledgements_that_a_seek_has_overtaken_are_not_sent(is_new_era: bool) -> None:
    """They were gathered in the consumer. A redelivery does not change the era, so that they stay valid."""
    with attached_lab() as lab:
        lab.deliver()
        message = lab.consumer.receive(timeout=0)
        assert message is not None
        lab.consumer.acknowledge(message)
        ((seconds, send),) = lab.link.timers
        assert seconds == ACKS_WAIT_S
        lab.link.timers.clear()
        lab.subscription.redeliver(1)
        lab.link.answer(Redeliver, [encode_reply(MovedTo(0, 1, ERA + is_new_era))])
        sent = len(lab.link.asked(AcknowledgeRange))
        send()
        assert len(lab.link.asked(AcknowledgeRange)) == sent + (not is_new_era)
        lab.lose()
        assert lab.resume() == (ERA + is_new_era, 0, [] if is_new_era else [[0, 1]])


# ---- messages --------------------------------------------------------------------------------------------------------


def test_fetches_are_sent_anew_when_few_are_left() -> None:
    """A delivery alone causes no fetch, as its acknowledgement may carry one."""
    with Consumer("news", "s", "c") as consumer:
        lab = ConsumerLab(consumer)
        counts = [len(lab.link.asked(Fetch))]
        for _ in range(4):
            lab.deliver()
            counts.append(len(lab.link.asked(Fetch)))
        assert counts == [FETCHES, FETCHES_LEAST, FETCHES, FETCHES_LEAST, FETCHES]


def test_the_next_connection_permits_what_has_not_come() -> None:
    """It permits as many messages as were received or discarded: discarded ones are delivered again."""
    with Consumer("news", "s", "c", queue=8) as consumer:
        lab = ConsumerLab(consumer)
        lab.deliver()
        assert lab.received() == VALUES
        lab.deliver()
        assert [request.messages for request in lab.link.asked(Flow)] == [8], "half of them have not come"
        lab.lose()
        lab.subscribed()
        assert [request.messages for request in lab.link.asked(Flow) if request.consumer == 2] == [8]
        assert lab.received() == []


def test_discarded_deliveries_of_an_old_generation_return_their_permits() -> None:
    with attached_lab() as lab:
        lab.subscription.redeliver(1)
        lab.link.answer(Redeliver, [encode_reply(MovedTo(0, 1, ERA))])
        before = len(lab.link.asked(Flow))
        lab.deliver(generation=0)
        assert [request.messages for request in lab.link.asked(Flow)[before:]] == [len(VALUES)]


@pytest.mark.parametrize(("durable", "start"), [(True, "earliest"), (False, 3)])
def test_a_subscription_that_is_not_durable_goes_on_behind_the_last_message(durable: bool, start: object) -> None:
    with Consumer("news", "s", "c") as consumer:
        lab = ConsumerLab(consumer, durable=durable)
        lab.lose()
        (first,) = lab.link.asked(Subscribe)
        assert first.start == "earliest", "there was no message"
        lab.subscribed()
        lab.deliver()
        lab.lose()
        (again,) = lab.link.asked(Subscribe)
        assert again.start == start


def test_delivery_carries_the_active_flag_and_the_generation() -> None:
    with attached_lab() as lab:
        for is_active in (False, False, True):
            lab.deliver(active=is_active)
            assert (lab.consumer.is_active, lab.received()) == (is_active, VALUES)
        lab.deliver()
        lab.acknowledge(0)
        lab.deliver(generation=1, era=ERA + 1)
        assert [lab.received(), lab.received()] == [VALUES, []], "those of before a seek are gone"
        assert lab.subscription.era == ERA + 1
        lab.lose()
        assert lab.resume() == (ERA + 1, 0, [])


def test_an_error_that_does_not_pass_ends_the_consumer() -> None:
    with attached_lab() as lab:
        lab.link.answer(Fetch, InvalidArgumentError("not so"))
        assert not lab.link.asked(Subscribe)
        with pytest.raises(InvalidArgumentError, match="not so"):
            lab.received()
        with pytest.raises(InvalidArgumentError, match="not so"):
            lab.consumer.flush_async().result(0)


def test_a_consumer_that_has_ended_takes_no_acknowledgement_of_a_message() -> None:
    """It does not gather acknowledgements either, as it does while there is no error."""
    with attached_lab() as lab:
        lab.deliver()
        message = lab.consumer.receive(timeout=0)
        assert message is not None
        lab.consumer.acknowledge(message)
        lab.link.answer(Fetch, InvalidArgumentError("not so"))
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="not so"):
                lab.consumer.acknowledge(message)


# ---- acknowledgements that are repeated ------------------------------------------------------------------------------


def test_acknowledged_range_is_sent_with_the_next_fetch() -> None:
    """Then as many fetches as allowed are waiting: the next range is sent alone."""
    with attached_lab() as lab:
        lab.acknowledge(0, 1)
        lab.acknowledge(2)
        assert [request[1:] for request in lab.link.asked(AcknowledgeAndFetch)] == [(0, 0, 2)]
        assert [request[1:] for request in lab.link.asked(AcknowledgeRange)] == [(0, 2, 3)]


def test_acknowledgements_that_were_lost_are_repeated() -> None:
    with attached_lab() as lab:
        lab.acknowledge(0, 2)
        done = lab.consumer.acknowledge_cumulative_async(1)
        for kind in (Acknowledge, AcknowledgeCumulative):
            lab.link.answer(kind, ClosedError("its topic was closed at this server"))
        assert lab.resume() == (ERA, 2, [[0, 1], [2, 3]])
        assert not done.done()
        lab.link.answer(Resume, [encode_reply(Resumed(0, ERA, True))])
        assert done.result(0) is None and not lab.link.asked(AcknowledgeCumulative), "the RESUME had it"


def test_resume_repeats_acknowledgements_that_no_flush_confirmed() -> None:
    with attached_lab() as lab:
        done = lab.consumer.acknowledge_cumulative_async(1)
        lab.link.answer(AcknowledgeCumulative, [encode_reply(Done())])
        assert done.result(0) is None
        lab.lose()
        assert lab.resume() == (ERA, 2, [])


@pytest.mark.parametrize("has_moved", [False, True])
def test_cumulative_acknowledgement_made_during_a_resume_is_sent_afterwards(has_moved: bool) -> None:
    """It is not sent if a seek has moved the subscription meanwhile, as it does not count then."""
    with attached_lab() as lab:
        lab.lose()
        assert lab.resume() == (ERA, 0, [])
        done = lab.consumer.acknowledge_cumulative_async(1)
        lab.link.answer(Resume, [encode_reply(Resumed(3, ERA + has_moved, not has_moved))])
        sent = [request[1:] for request in lab.link.asked(AcknowledgeCumulative)]
        assert (sent, done.done()) == (([], True) if has_moved else ([(3, 2)], False))


def test_at_a_server_without_eras_one_below_a_message_is_sent_once() -> None:
    """If its answer was lost, the outcome is unknown."""
    with attached_lab(version=1) as lab:
        lab.lose()
        waited = lab.consumer.acknowledge_cumulative_async(0)
        lab.subscribed()
        lab.link.answer(AcknowledgeCumulative, [encode_reply(Done())])
        assert waited.result(0) is None
        lost = lab.consumer.acknowledge_cumulative_async(1)
        lab.link.answer(AcknowledgeCumulative, ClosedError("its topic was closed at this server"))
        lab.subscribed()
        with pytest.raises(OutcomeUnknownError, match="before the answer arrived"):
            lost.result(0)
        assert not lab.link.asked(AcknowledgeCumulative)
