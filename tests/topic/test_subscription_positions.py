"""Subscriptions are moved, created and deleted: the position from which they go on, and the messages that are left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

import pyreplog.topic.client.consumer as consumers
from pyreplog.clock import ManualClock
from pyreplog.cluster import Cluster
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    OutOfRangeError,
    ReplogError,
    SubscriptionBusyError,
    TrimmedError,
    WrongTypeError,
)
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import (
    PATIENCE_S,
    SMALL,
    US,
    check_backlog,
    drain,
    fill,
    nothing_comes,
    open_cluster,
    receive,
    received,
    trim,
    until,
    values,
)


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


def rest(consumer: Consumer, last: int) -> list[int]:
    """Return the offsets of all messages up to the last one."""
    numbers: list[int] = []
    while not numbers or numbers[-1] < last:
        numbers += received(consumer, 1)
    assert nothing_comes(consumer)
    return numbers


# ---- positions -------------------------------------------------------------------------------------------------


def test_a_subscription_goes_on_from_where_it_was_seeked(topic: Topic) -> None:
    """Scenarios 3 and 22."""
    with topic.subscribe("s", start="earliest") as consumer:
        consumer.acknowledge_cumulative(receive(consumer, 12)[-1])
        for start, expected in ((3, 3), ("earliest", 0), (13, 13), (19, 19), ("latest", 20), (20, 20), (6, 6)):
            assert topic.seek("s", start) == expected  # type: ignore[arg-type]
            check_backlog(topic, "s", range(expected, 20))
            assert received(consumer, 20 - expected) == list(range(expected, 20))
        for wrong in (-1, 21):
            with pytest.raises(OutOfRangeError):
                consumer.seek(wrong)
        check_backlog(topic, "s", range(6, 20))


def test_a_subscription_is_seeked_to_a_time(topic: Topic, clock: ManualClock) -> None:
    clock.advance(10_000_000)
    moment = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    fill(topic, 10)
    clock.advance(10_000_000)
    fill(topic, 10)
    with topic.subscribe("s", start=moment) as consumer:
        assert received(consumer, 20) == list(range(20, 40))
        assert consumer.seek(datetime.fromtimestamp(0, UTC)) == 0
        assert consumer.seek(datetime.fromtimestamp(clock.now_us() / 1e6 + 1, UTC)) == 40


def test_seek_with_messages_on_their_way(topic: Topic) -> None:
    """No message that was read for the former position is delivered after the seek."""
    topic.publish_batch(values(500))
    with topic.subscribe("s", start="earliest", type="shared", queue=30) as consumer:
        for target in (400, 3, 77, 460, 41, 0):
            receive(consumer, 7)
            topic.seek("s", target)
            assert received(consumer, min(50, 520 - target)) == list(range(target, min(target + 50, 520)))


def test_gathered_acknowledgements_of_before_a_seek_do_not_count(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their timer fires after the seek, before another thread has told the consumer of it."""
    monkeypatch.setattr(consumers, "ACKS_WAIT_S", 3600.0)
    is_blocked, resume = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        assert resume.wait(PATIENCE_S)

    with topic.subscribe("s", start="earliest", type="shared") as consumer, ThreadPoolExecutor(1) as pool:
        for message in receive(consumer, 5)[:4:2]:
            consumer.acknowledge(message)
        subscription = topic.subscription("s")
        blocking = pool.submit(subscription.events.post, block)
        try:
            assert is_blocked.wait(PATIENCE_S)
            sought = subscription.seek("earliest")
            consumer._acks_due()
        finally:
            resume.set()
        blocking.result(PATIENCE_S)
        assert sought.result(PATIENCE_S) == 0
        check_backlog(topic, "s", range(20))
        assert received(consumer, 20) == list(range(20))


def test_gathered_acknowledgements_hold_when_another_consumer_takes_over(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ACKS_WAIT_S", 3600.0)
    with topic.subscribe("s", start="earliest", type="failover", priority=1) as first:
        for message in receive(first, 4):
            first.acknowledge(message)
        with topic.subscribe("s", type="failover", priority=0):
            until(lambda: not first.is_active)
            first.flush()
            check_backlog(topic, "s", range(4, 20))


def test_different_subscriptions_seek_at_once(topic: Topic) -> None:
    """Scenario 22: each subscription ends where its seek moved it."""
    names = [f"s{at}" for at in range(5)]
    for name in names:
        topic.create_subscription(name)
    with ThreadPoolExecutor(5) as pool:
        for _ in range(10):
            assert list(pool.map(topic.seek, names, (3, 9, 15, 0, 19))) == [3, 9, 15, 0, 19]
    for name, at in zip(names, (3, 9, 15, 0, 19), strict=True):
        check_backlog(topic, name, range(at, 20))
        assert drain(topic, name, 20 - at) == list(range(at, 20))


def test_skip_and_clear_count_unacknowledged_messages(topic: Topic) -> None:
    """Scenario 21: messages that are acknowledged already are not counted."""
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        receive(consumer, 20)
        consumer.acknowledge([1, 2, 5])
        consumer.flush()
        topic.skip("s", 0)
        topic.skip("s", 3)  # messages 0, 3 and 4
        check_backlog(topic, "s", range(6, 20))
        topic.skip("s", 1000)
        check_backlog(topic, "s", [])
        topic.publish(b"x")
        topic.clear("s")
        check_backlog(topic, "s", [])
        with pytest.raises(InvalidArgumentError):
            topic.skip("s", -1)
        for wrong in (1.5, True):
            with pytest.raises(WrongTypeError):
                topic.skip("s", wrong)  # type: ignore[arg-type]
    with pytest.raises(NoSuchSubscriptionError):
        topic.clear("t")


def test_skip_seek_and_clear_need_no_consumer(topic: Topic) -> None:
    topic.create_subscription("s", start=5)
    topic.skip("s", 4)
    check_backlog(topic, "s", range(9, 20))
    fill(topic, 10)
    topic.skip("s", 15)
    check_backlog(topic, "s", range(24, 30))
    topic.seek("s", 2)
    check_backlog(topic, "s", range(2, 30))
    assert drain(topic, "s", 28) == list(range(2, 30))
    topic.clear("s")
    check_backlog(topic, "s", [])


# ---- beginnings and ends ---------------------------------------------------------------------------------------


def test_non_durable_subscription_ends_with_its_last_consumer(topic: Topic) -> None:
    """Scenario 38: the subscription ends with its last consumer, and keeps no messages."""
    with topic.subscribe("s", start=4, durable=False, type="shared") as consumer:
        # a second consumer of the exclusive subscription is refused
        with topic.subscribe("s", durable=False, type="shared", priority=1):
            pass
        assert topic.subscriptions() == ["s"]
        assert received(consumer, 4) == [4, 5, 6, 7]
        trim(topic)
        assert topic.start == 20
        check_backlog(topic, "s", [])
        fill(topic, 2)
        assert rest(consumer, 21)[-2:] == [20, 21]
    assert topic.subscriptions() == []
    with topic.subscribe("s", start="latest", durable=False) as consumer:
        assert nothing_comes(consumer)


def test_non_durable_subscription_ends_while_another_consumer_attaches(topic: Topic) -> None:
    def come_and_go() -> None:
        for _ in range(50):
            with topic.subscribe("s", start=18, durable=False, type="shared") as consumer:
                message = consumer.receive(timeout=0.001)
                if message is not None:
                    consumer.nack(message)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(come_and_go) for _ in range(4)]:
            future.result(PATIENCE_S)
    assert topic.subscriptions() == []
    with topic.subscribe("s", start=18, durable=False) as consumer:
        assert received(consumer, 2) == [18, 19]


def test_a_deleted_subscription_ends_its_consumers(cluster: Cluster, topic: Topic) -> None:
    consumer = topic.subscribe("s", start="earliest")
    with pytest.raises(SubscriptionBusyError):
        topic.delete_subscription("s")
    receive(consumer, 20)
    topic.delete_subscription("s", force=True)
    with pytest.raises(NoSuchSubscriptionError):
        consumer.receive(timeout=PATIENCE_S)
    for call in (lambda: consumer.flush(), lambda: consumer.acknowledge(3), lambda: topic.delete_subscription("s")):
        with pytest.raises(ReplogError):
            call()
    consumer.close()
    topic.create_subscription("s", start=8)
    check_backlog(topic, "s", range(8, 20))
    topic.delete_subscription("s")
    topic.close()
    with cluster.topic(topic.name) as again:
        assert again.subscriptions() == []


def test_malformed_names_and_starts_of_subscriptions_are_refused(topic: Topic) -> None:
    for name in ("pyreplog.x", "", "a\nb"):
        with pytest.raises(InvalidArgumentError):
            topic.subscribe(name)
    for start, error in ((21, OutOfRangeError), ("middle", InvalidArgumentError)):
        with pytest.raises(error):
            topic.subscribe("s", start=start)  # type: ignore[arg-type]
    assert topic.subscriptions() == []
    topic.create_subscription("s", start=3)
    topic.create_subscription("s", start=9)
    check_backlog(topic, "s", range(3, 20))


def test_closing_a_consumer_twice_and_using_it_afterwards(topic: Topic) -> None:
    consumer = topic.subscribe("s", start="earliest")
    message = receive(consumer, 1)[0]
    consumer.close()
    consumer.close()
    calls: list[Any] = [
        consumer.receive, consumer.flush, lambda: consumer.nack(message), lambda: consumer.seek(0),
        lambda: consumer.acknowledge([message]), lambda: consumer.acknowledge_cumulative(message), consumer.redeliver,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_trimming_under_a_reader_moves_it(topic: Topic) -> None:
    """Scenarios 34, 35 and 38: a position that was trimmed becomes the first message that is left."""
    with topic.subscribe("s", start="earliest", durable=False, queue=1) as consumer:
        assert received(consumer, 1) == [0]
        trim(topic)
        fill(topic, 4)
        assert topic.start == 20
        messages = rest(consumer, 23)
        assert messages[-4:] == [20, 21, 22, 23] and messages == sorted(messages)
        with pytest.raises(TrimmedError):
            consumer.seek(7)
