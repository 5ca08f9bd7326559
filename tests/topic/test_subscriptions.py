"""Subscriptions through their consumers: which consumer gets a message, how it is acknowledged, and what is delivered
again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from pyreplog.clock import ManualClock
from pyreplog.cluster import Cluster
from pyreplog.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    OutOfRangeError,
    SubscriptionBusyError,
)
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import (
    PATIENCE_S,
    SMALL,
    US,
    HeldPlaces,
    check_backlog,
    fill,
    note_reads,
    nothing_comes,
    offsets,
    open_cluster,
    receive,
    received,
    until,
    values,
)

QUICK: dict[str, Any] = {"nack_min_ms": 0, "nack_max_ms": 0}


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("subscriptions"), clock=clock) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """A topic of twenty messages, two to an entry and six to a ledger; all are kept."""
    with cluster.topic(request.node.name[:100], **SMALL) as topic:
        fill(topic, 20)
        yield topic


def test_subscriptions_that_wait_get_all_that_comes(topic: Topic) -> None:
    def take(consumer: Consumer) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < 100:
            messages = consumer.receive(max_messages=10, timeout=PATIENCE_S)
            assert 1 <= len(messages) <= 10, f"{len(numbers)} came"
            numbers += offsets(messages)
        return numbers

    with ExitStack() as stack, ThreadPoolExecutor(10) as pool:
        consumers = [stack.enter_context(topic.subscribe(f"s{at}")) for at in range(10)]
        taken = [pool.submit(take, consumer) for consumer in consumers]
        until(lambda: all(subscription.consumers[0].permits for subscription in topic.stats().subscriptions))
        fill(topic, 100)
        assert [item.result() for item in taken] == [list(range(20, 120))] * 10


def test_a_ledger_of_which_all_is_acknowledged_is_not_read(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        consumer.acknowledge(range(6, 12))
        consumer.flush(PATIENCE_S)
    reads = note_reads(monkeypatch)
    with topic.subscribe("s", type="shared") as consumer:
        assert received(consumer, 14) == [*range(6), *range(12, 20)]
    ledgers = [item.ledger for item in topic.managed.chain.ledgers]
    assert sorted({ledger for ledger, _, _ in reads}) == [ledgers[0], *ledgers[2:4]]


# ---- types -----------------------------------------------------------------------------------------------------


def test_an_exclusive_subscription_has_one_consumer(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest") as first:
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s")
        assert received(first, 5) == list(range(5))
        fill(topic, 4)
        assert received(first, 19) == list(range(5, 24))
    with topic.subscribe("s") as second:
        assert received(second, 24) == list(range(24))


def test_a_consumer_that_joins_a_failover_subscription_waits_for_the_active_one(topic: Topic) -> None:
    """Wherever its name sorts, it takes over exactly the remaining messages when the first consumer leaves."""
    first = topic.subscribe("s", start="earliest", type="failover", name="b")
    had = receive(first, 12)
    first.acknowledge([had[0], had[5]])
    with topic.subscribe("s", type="failover", name="a") as second:
        assert nothing_comes(second)
        assert received(first, 8) == list(range(12, 20))
        first.acknowledge(had[1:4])
        first.close()
        came = receive(second, 15)
        assert offsets(came) == [4, *range(6, 20)] and {message.redelivered for message in came} == {1}
        second.acknowledge(came)
        second.flush()
        check_backlog(topic, "s", [])
        with topic.subscribe("s", type="failover", name="z", priority=-1) as third:
            until(lambda: third.is_active and not second.is_active)  # a lower number has priority


def test_a_failover_subscription_changes_its_active_consumer(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="failover", name="a") as first:
        with topic.subscribe("s", type="failover", name="b") as second:
            until(lambda: first.is_active and not second.is_active)
            first.acknowledge_cumulative(receive(first, 7)[-1])
            assert nothing_comes(second)
            first.close()
            assert received(second, 13) == list(range(7, 20))
            until(lambda: second.is_active)


def test_a_shared_subscription_spreads_messages_over_consumers(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="shared", queue=4) as first:
        with topic.subscribe("s", type="shared", queue=4) as second:
            numbers: list[int] = []
            while len(numbers) < 20:
                for consumer in (first, second):
                    if message := consumer.receive(timeout=0.005):
                        numbers.append(message.offset)
                        consumer.acknowledge(message)
            assert sorted(numbers) == list(range(20))
            with pytest.raises(InvalidArgumentError):
                first.acknowledge_cumulative(3)


def test_a_key_shared_subscription_keeps_the_order_of_keys(topic: Topic) -> None:
    keys = [b"%d" % (at % 7) for at in range(70)]
    topic.publish_batch(values(70), keys)
    with topic.subscribe("s", start=20, type="key_shared") as first, topic.subscribe("s", type="key_shared") as second:
        last: dict[bytes, int] = {}
        count = 0
        while count < 70:
            for consumer in (first, second):
                if (message := consumer.receive(timeout=0.005)) is not None:
                    assert message.key is not None and last.get(message.key, -1) < message.offset
                    last[message.key] = message.offset
                    consumer.acknowledge(message)
                    count += 1


def test_settings_of_others_must_be_the_same(topic: Topic) -> None:
    with topic.subscribe("s", type="shared"):
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s", type="failover")
        topic.subscribe("s").close()
    topic.subscribe("s", type="failover").close()


def test_a_refused_consumer_takes_no_read_with_it(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the subscription knows that the topic has grown. The present consumer gets all messages all the
    same."""
    with topic.subscribe("s", start="latest") as consumer:
        subscription = topic.subscription("s")
        with monkeypatch.context() as deaf:
            deaf.setattr(topic.managed, "on_grow", [])
            topic.publish(b"x")
            with pytest.raises(SubscriptionBusyError):
                topic.subscribe("s")
        subscription.grew()
        assert received(consumer, 1) == [20]


def test_eight_producers_and_eight_consumers(topic: Topic) -> None:
    """While no consumer refuses messages, none is lost and none is delivered twice."""
    topic.configure(roll_entries=50)
    count, counts, lock = 250, Counter[bytes](), threading.Lock()
    consumers = [topic.subscribe("s", type="shared", queue=50) for _ in range(8)]
    done = threading.Event()

    def produce(number: int) -> None:
        futures = [topic.submit(b"%d.%d" % (number, at)) for at in range(count)]
        assert all(future.result(PATIENCE_S) >= 20 for future in futures)

    def consume(number: int) -> None:
        while not done.is_set():
            message = consumers[number].receive(timeout=0.05)
            if message is not None:
                consumers[number].acknowledge(message)
                with lock:
                    counts[message.value] += 1
                    if len(counts) == 8 * count:
                        done.set()

    with ThreadPoolExecutor(16) as pool:
        work = [pool.submit(call, number) for number in range(8) for call in (produce, consume)]
        try:
            assert done.wait(PATIENCE_S), f"{len(counts)} of {8 * count} came"
        finally:
            done.set()
        for item in work:
            item.result(PATIENCE_S)
    for consumer in consumers:
        consumer.close()
    assert set(counts.values()) == {1}
    check_backlog(topic, "s", [])


# ---- acknowledgements ------------------------------------------------------------------------------------------


def test_messages_are_acknowledged_in_any_order_across_ledgers(topic: Topic) -> None:
    """Scenarios 7, 9 and 10: each acknowledgement lowers the backlog by one, and the mark jumps over acknowledged
    messages."""
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        messages = receive(consumer, 20)
        left = set(range(20))
        for at in (6, 3, 19, 0, 7, 5, 1, 2, 4, 4, 12):
            consumer.acknowledge(messages[at])
            consumer.flush(PATIENCE_S)
            left.discard(at)
            check_backlog(topic, "s", left)
        assert topic.subscription("s").cursor.mark.offset == 8
        consumer.acknowledge(messages)
        consumer.flush()
        check_backlog(topic, "s", [])


def test_cumulatively_in_the_middle_of_entries(topic: Topic) -> None:
    """Scenarios 4 to 6, 16 and 17."""
    with topic.subscribe("s", start="earliest") as consumer:
        messages = receive(consumer, 20)
        consumer.acknowledge([9, 10])
        consumer.acknowledge_cumulative(messages[2])
        check_backlog(topic, "s", set(range(3, 20)) - {9, 10})
        consumer.acknowledge_cumulative(8)  # up to the hole
        assert topic.subscription("s").cursor.mark.offset == 11
        for to in (2, 10):
            consumer.acknowledge_cumulative(10) if to == 10 else None
        with pytest.raises(InvalidArgumentError):
            consumer.acknowledge_cumulative(2)
        for beyond in (20, 21, 1000):
            with pytest.raises(OutOfRangeError):
                consumer.acknowledge_cumulative(beyond)
        check_backlog(topic, "s", range(11, 20))
        consumer.acknowledge_cumulative(19)
        check_backlog(topic, "s", [])


def test_flush_stores_acknowledgements_of_undelivered_messages(
    cluster: Cluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are located first, and a clean close waits for that, too."""
    with topic.subscribe("s", start="earliest", type="shared", queue=1) as consumer:
        places = HeldPlaces(monkeypatch)
        consumer.acknowledge([3])  # a message of the first ledger, which was read
        consumer.flush(PATIENCE_S)  # the later flush has no other acknowledgement to wait for
        consumer.acknowledge([11, 12, 13, 18])
        flushed = topic.subscription("s").flush_async()
        with pytest.raises(OutcomeUnknownError):
            flushed.result(0.1)
        places.release(flushed.done)
        flushed.result(PATIENCE_S)
        check_backlog(topic, "s", set(range(20)) - {3, 11, 12, 13, 18})
        consumer.acknowledge([0, 5, 17])
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(topic.close)
        places.release(closing.done)
        closing.result(PATIENCE_S)
    with cluster.topic(topic.name) as again:
        check_backlog(again, "s", set(range(20)) - {0, 3, 5, 11, 12, 13, 17, 18})


def test_ranges_that_other_clusters_acknowledged_leave_the_backlog(topic: Topic) -> None:
    fill(topic, 180, by=20)
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        assert len(receive(consumer, 200)) == 200
        starts, ends = np.array([3, 30, 195], np.int64), np.array([5, 130, 200], np.int64)
        topic.subscription("s").acknowledge_elsewhere(starts, ends).result(PATIENCE_S)
        check_backlog(topic, "s", [*range(3), *range(5, 30), *range(130, 195)])
        consumer.redeliver()
        assert sorted(received(consumer, 93)) == [*range(3), *range(5, 30), *range(130, 195)]


def test_flush_waits_for_what_a_timer_has_taken(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single acknowledgements are gathered for a moment. A flush waits for those that another thread is sending."""
    taken, resume = threading.Event(), threading.Event()
    with topic.subscribe("s", start="earliest", type="shared") as consumer, ThreadPoolExecutor(1) as pool:
        take = consumer._take_last

        def slowly() -> Any:
            noted = take()
            taken.set()
            assert resume.wait(PATIENCE_S)
            return noted

        monkeypatch.setattr(consumer, "_take_last", slowly)
        consumer.acknowledge(receive(consumer, 1)[0])
        assert taken.wait(PATIENCE_S)
        flushing = pool.submit(consumer.flush)
        try:
            with pytest.raises(TimeoutError):
                flushing.result(0.1)
        finally:
            resume.set()
        flushing.result(PATIENCE_S)
        check_backlog(topic, "s", range(1, 20))


def test_acknowledged_before_a_seek_is_not_afterwards(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry is located only after the seek."""
    with topic.subscribe("s", start="earliest", type="shared", queue=1) as consumer:
        places = HeldPlaces(monkeypatch)
        consumer.acknowledge([3, 7, 15, 16])
        until(lambda: places.held)
        sought = topic.subscription("s").seek("earliest")
        places.release(sought.done)
        assert sought.result(PATIENCE_S) == 0
        check_backlog(topic, "s", range(20))


def test_acknowledging_beyond_the_end_is_refused(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        with pytest.raises(OutOfRangeError):
            consumer.acknowledge([3, 20])
        consumer.flush()
        check_backlog(topic, "s", range(20))


# ---- redelivery ------------------------------------------------------------------------------------------------


def test_refused_messages_come_again_and_are_counted(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="shared", **QUICK) as consumer:
        messages = receive(consumer, 20)
        for turn in range(1, 4):
            consumer.nack([messages[at] for at in (4, 7)])
            again = receive(consumer, 2)
            assert [(repeat.offset, repeat.redelivered) for repeat in again] == [(4, turn), (7, turn)]
        consumer.redeliver()
        counts = {message.offset: message.redelivered for message in receive(consumer, 20)}
        assert counts == {at: 4 if at in (4, 7) else 1 for at in range(20)}


def test_unacknowledged_messages_of_a_closed_consumer_go_to_the_others(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="shared") as second:
        messages = received(second, 20)
        with topic.subscribe("s", type="shared") as first:
            fill(topic, 20)
            had = receive(first, 3)
            first.acknowledge(had[0])
        rest = received(second, 39 - len(messages))
        assert sorted(messages + rest) == sorted(set(range(40)) - {had[0].offset})


def test_messages_are_redelivered_after_the_ack_timeout(topic: Topic) -> None:
    """Time-outs run in real time, so that messages may be delivered again before they are acknowledged here; two are
    not acknowledged."""
    with topic.subscribe("s", start=10, type="shared", ack_timeout_ms=20) as consumer:
        again: dict[int, int] = {}
        while not (len(again) == 10 and again[10] and again[11]):
            (message,) = receive(consumer, 1)
            again[message.offset] = message.redelivered
            if message.offset > 11:
                consumer.acknowledge([message])
        consumer.redeliver()
        consumer.flush(PATIENCE_S)  # no earlier message waits in its queue now
        assert set(received(consumer, 6)) == {10, 11}


def test_messages_beyond_max_redeliveries_become_dead_letters(
    cluster: Cluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    name = f"{topic.name}-s-DLQ"
    with cluster.topic(name, **SMALL) as dead, dead.subscribe("d", start="earliest") as dead_letters:
        with topic.subscribe("s", start=18, type="shared", max_redeliveries=2, **QUICK) as consumer:
            subscription = topic.subscription("s")
            done = subscription.acknowledge
            monkeypatch.setattr(
                subscription,
                "acknowledge",
                lambda *args: (counted.append(subscription.counts.dead_lettered), done(*args)),
            )
            for _ in range(3):
                first, second = receive(consumer, 2)
                consumer.nack([first])
                consumer.nack([second])
            letters = receive(dead_letters, 2)
            until(lambda: topic.stats().subscriptions[0].dead_lettered_messages == 2)
            consumer.flush(PATIENCE_S)
            check_backlog(topic, "s", [])
            assert nothing_comes(consumer)
    assert counted[0] == 0, "they are counted when they are acknowledged, too"
    assert sorted(letter.value for letter in letters) == [b"18", b"19"]
    assert {letter.properties["pyreplog.offset"] for letter in letters} == {b"18", b"19"}
    assert {letter.properties["pyreplog.topic"] for letter in letters} == {topic.name.encode()}


def test_delayed_messages_are_delivered_at_their_times(topic: Topic, clock: ManualClock) -> None:
    now = clock.now_us()
    topic.publish_batch([b"soon", b"now", b"later"], deliver_at=[now + 50_000, None, now + 3_600_000_000])
    with topic.subscribe("s", start=20, type="shared") as consumer:
        assert received(consumer, 1) == [21]
        clock.advance(60_000)
        assert received(consumer, 1) == [20]
        assert nothing_comes(consumer)
        check_backlog(topic, "s", [20, 21, 22])
        assert topic.stats().subscriptions[0].delayed == 1
