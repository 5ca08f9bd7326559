"""Maintenance of topics: quotas, expiry, retention and trimming, through the handles of topics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from pyreplog.clock import ManualClock
from pyreplog.cluster import Cluster
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    MetadataUnavailableError,
    NoSuchSubscriptionError,
    TrimmedError,
)
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import (
    KEPT,
    PATIENCE_S,
    SMALL,
    US,
    check_backlog,
    drain,
    fill,
    open_cluster,
    receive,
    received,
    stored,
    trim,
    until,
)

SECOND = 1_000_000


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(US)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Cluster]:
    """A cluster without periodic maintenance, which could hold a test that still publishes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
        with open_cluster(tmp_path_factory.mktemp("upkeep"), clock=clock) as cluster:
            yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    with cluster.topic(request.node.name[:100], **SMALL) as topic:
        yield topic


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    """A topic of another cluster, whose maintenance checks all the time which topics were used."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.005)
    monkeypatch.setattr(topics_module, "RUNS_PER_TURN", 1 << 30)
    with open_cluster(tmp_path) as cluster, cluster.topic("watched", **SMALL) as topic:
        yield topic


def entry_size(topic: Topic) -> int:
    """Return the size of an entry that `fill` makes while offsets have two digits."""
    fill(topic, 20)
    before = topic.managed.end.size
    fill(topic, 2)
    return topic.managed.end.size - before


# ---- quotas ----------------------------------------------------------------------------------------------------


def test_a_held_publisher_goes_on_when_enough_is_acknowledged(watched: Topic) -> None:
    """Only the maintenance of the process itself checks the topic."""
    size = entry_size(watched)
    consumer = watched.subscribe("s", start="latest")
    fill(watched, 14)
    watched.configure(quota_bytes=5 * size)
    watched.maintain()
    assert watched.stats().publishing == "held"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(watched.publish, b"held")
        try:
            assert not watched.publisher.room().done()
            messages = receive(consumer, 14)
            consumer.acknowledge_cumulative(messages[3])  # not below nine tenths yet
            watched.maintain()
            assert not held.done()
            consumer.acknowledge_cumulative(messages[-1])
            assert held.result(PATIENCE_S) == 36
        finally:
            watched.publisher.lift_quota()
    consumer.close()


def test_acknowledgements_alone_make_a_topic_be_looked_at(watched: Topic) -> None:
    """Messages that no subscription needs are trimmed soon, and not only after the next publish."""
    watched.configure(retention_bytes=0)
    with watched.subscribe("s") as consumer:
        fill(watched, 12)
        watched.managed.roll().result(PATIENCE_S)
        messages = receive(consumer, 12)
        until(lambda: not watched.is_used)
        assert watched.start == 0
        consumer.acknowledge(messages)
        until(lambda: watched.start == 12)


def test_closing_lets_held_publishers_go(cluster: Cluster) -> None:
    topic = cluster.topic("held and closed", **SMALL, quota_bytes=1)
    topic.create_subscription("s")
    fill(topic, 4)
    topic.maintain()
    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(topic.publish, b"x") for _ in range(4)]
        until(lambda: topic.publisher.waiting >= 4)
        topic.close()
        published = 0
        for holder in held:
            error = holder.exception(PATIENCE_S)
            assert error is None or isinstance(error, ClosedError)
            published += error is None
    with cluster.topic("held and closed") as topic:
        assert len(stored(topic)) == 4 + published


def test_holds_that_change_at_the_same_time(topic: Topic) -> None:
    """Two threads change the state of the quota: the publisher ends in the last state, whichever thread is slower."""
    maintenance, states = topic.maintenance, list[str]()

    class Slow:
        """A publisher to which another thread reports the end of the quota before the first report has arrived."""

        def set_quota(self, publishing: str, reason: str) -> None:
            if publishing == "held" and not states:
                states.append("meanwhile")
                maintenance.hold("b", "open", "")
            states.append(publishing)

    maintenance.follow(cast(Publisher, Slow()))
    maintenance.hold("b", "held", "b is slow")
    assert states[-1] == maintenance.decision.publishing == "open"
    maintenance.follow(topic.publisher)


def test_a_topic_above_its_quota_refuses_messages(topic: Topic) -> None:
    topic.configure(quota_bytes=1, quota_policy="error")
    topic.create_subscription("s")
    fill(topic, 2)
    topic.maintain()
    with pytest.raises(BacklogFullError, match="s has"):
        topic.publish(b"x")
    assert topic.end == 2
    topic.clear("s")
    topic.maintain()
    assert topic.publish(b"x") == 2


def test_eviction_moves_slow_cursors_to_nine_tenths_of_the_quota(topic: Topic) -> None:
    """Entries are skipped as a whole, down to nine tenths of the quota, for cursors that exceed it."""
    size = entry_size(topic)
    topic.create_subscription("slow")
    fill(topic, 20)
    topic.create_subscription("fast")
    topic.configure(quota_bytes=8 * size, quota_policy="evict")
    fill(topic, 4)
    topic.maintain()
    left = (8 * size * 9 // 10) // size  # how many whole entries fit
    check_backlog(topic, "slow", range(46 - 2 * left, 46))
    check_backlog(topic, "fast", range(42, 46))
    assert topic.stats().publishing == "open"
    evicted_messages_by_name = {sub.name: sub.evicted_messages for sub in topic.stats().subscriptions}
    assert evicted_messages_by_name == {"slow": 46 - 2 * left - 22, "fast": 0}


def test_a_topic_above_its_quota_of_age_refuses_messages(topic: Topic, clock: ManualClock) -> None:
    topic.configure(quota_ms=10_000, quota_policy="error")
    topic.create_subscription("s")
    fill(topic, 4)
    topic.maintain()
    topic.publish(b"x")
    clock.advance(11 * SECOND)
    topic.maintain()
    with pytest.raises(BacklogFullError, match=r"age|s has"):
        topic.publish(b"y")
    topic.skip("s", 5)
    topic.maintain()
    topic.publish(b"y")


# ---- expiry ----------------------------------------------------------------------------------------------------


def test_messages_expire_after_their_ttl(topic: Topic, clock: ManualClock) -> None:
    """They expire for subscriptions that are not durable, too. Acknowledged messages are not counted twice."""
    topic.configure(ttl_ms=10_000, **KEPT)
    topic.create_subscription("s")
    fill(topic, 6)
    with topic.subscribe("t", start="earliest", durable=False) as consumer:
        consumer.acknowledge([4])
        clock.advance(8 * SECOND)
        fill(topic, 4)
        clock.advance(3 * SECOND)
        topic.maintain()
        check_backlog(topic, "s", range(6, 10))
        check_backlog(topic, "t", range(6, 10))
        assert {sub.name: sub.expired_messages for sub in topic.stats().subscriptions}["s"] == 6
    assert drain(topic, "s", 4) == [6, 7, 8, 9]


def test_unused_subscriptions_are_deleted(topic: Topic, clock: ManualClock) -> None:
    topic.configure(subscription_expiry_ms=10_000)
    topic.create_subscription("idle")
    with topic.subscribe("used"):
        clock.advance(11 * SECOND)
        topic.maintain()
        assert topic.subscriptions() == ["used"]
    clock.advance(9 * SECOND)
    topic.maintain()
    assert topic.subscriptions() == ["used"]
    clock.advance(2 * SECOND)
    topic.maintain()
    assert topic.subscriptions() == []
    with pytest.raises(NoSuchSubscriptionError):
        topic.seek("used", 0)


# ---- retention and trimming ------------------------------------------------------------------------------------


def test_nothing_that_a_subscription_needs_is_trimmed(topic: Topic) -> None:
    """Scenario 32: whole ledgers are trimmed, up to the mark of the slowest durable subscription."""
    topic.configure(**KEPT)
    fill(topic, 60)
    topic.create_subscription("a", start=31)
    topic.create_subscription("b", start=17)
    trim(topic)
    assert topic.start <= 17 and topic.start >= 12
    topic.seek("b", 40)
    trim(topic)
    assert 24 < topic.start <= 31
    assert drain(topic, "a", 29) == list(range(31, 60))
    assert stored(topic) == {at: b"%d" % at for at in range(topic.start, 60)}


def test_trim_keeps_messages_behind_the_stored_mark_of_a_subscription(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that a crash would leave counts, not the one in memory."""
    topic.configure(**KEPT)
    fill(topic, 30)
    topic.create_subscription("s", start=3)
    persister = topic.subscription("s").persister
    assert persister is not None
    monkeypatch.setattr(type(persister), "dirty", lambda persister: None)  # no acknowledgement is stored before a flush
    with topic.subscribe("s") as consumer:
        consumer.acknowledge_cumulative(receive(consumer, 27)[-1])
        check_backlog(topic, "s", [])
        trim(topic)
        assert topic.start <= 3
        monkeypatch.undo()
        persister.dirty()
        consumer.flush(PATIENCE_S)
        topic.trim()
        assert topic.start == 30


def test_trimming_while_messages_are_acknowledged(topic: Topic) -> None:
    """Scenario 35: no message is skipped, and the counts stay right."""
    topic.configure(**KEPT)
    fill(topic, 300, by=3)
    topic.configure(retention_bytes=0)
    stop = threading.Event()

    def keep_trimming() -> None:
        while not stop.is_set():
            topic.trim()

    with topic.subscribe("s", start="earliest", type="shared") as consumer, ThreadPoolExecutor(1) as pool:
        trimming = pool.submit(keep_trimming)
        try:
            for at in range(0, 300, 10):
                messages = receive(consumer, 10)
                assert [message.offset for message in messages] == list(range(at, at + 10))
                consumer.acknowledge(messages)
        finally:
            stop.set()
        trimming.result(PATIENCE_S)
        consumer.flush()
        check_backlog(topic, "s", [])
    topic.trim()
    assert topic.start >= 290


def test_seeking_back_while_it_is_trimmed(topic: Topic) -> None:
    """Either the messages are delivered, or the seek raises an error."""
    for turn in range(15):
        topic.configure(**KEPT)
        first = topic.end
        fill(topic, 12)
        topic.create_subscription("s", start="latest")
        topic.managed.roll().result(PATIENCE_S)
        topic.configure(retention_bytes=0)
        with ThreadPoolExecutor(1) as pool:
            trimming = pool.submit(topic.trim)
            with suppress(TrimmedError):
                assert topic.seek("s", first) == first
            trimming.result(PATIENCE_S)
            mark = topic.subscription("s").cursor.mark.offset
            assert mark >= topic.start, turn
            check_backlog(topic, "s", range(mark, topic.end))
            topic.delete_subscription("s")


def test_a_ledger_that_is_too_old_ends(topic: Topic, clock: ManualClock) -> None:
    """Scenario 31."""
    topic.configure(roll_ms=5_000, roll_entries=1000)
    topic.managed.roll().result(PATIENCE_S)
    with topic.subscribe("s", start="latest") as consumer:
        topic.publish(b"x")
        ledgers = len(topic.internal_stats().ledgers)
        clock.advance(6 * SECOND)
        topic.maintain()
        until(lambda: topic.internal_stats().ledgers[-1].closed_us is not None)
        topic.publish(b"y")
        assert len(topic.internal_stats().ledgers) == ledgers + 1
        assert received(consumer, 2) == [0, 1]


def test_consumers_go_on_while_ledgers_are_rolled(topic: Topic) -> None:
    """Consumers are not affected by the ends of ledgers."""
    with topic.subscribe("s", start="latest") as consumer, ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(received, consumer, 120)
        for at in range(120):
            topic.submit(b"x")
            if at % 10 == 5:
                topic.managed.roll()
        assert receiving.result(PATIENCE_S) == list(range(120))


def test_internal_statistics_count_the_open_ledger_too(topic: Topic) -> None:
    fill(topic, 16)
    ledgers = topic.internal_stats().ledgers
    assert sum(ledger.messages for ledger in ledgers) == 16 and sum(ledger.entries for ledger in ledgers) == 8
    assert sum(ledger.size for ledger in ledgers) == topic.managed.end.size


def test_time_alone_makes_a_topic_be_looked_at(watched: Topic) -> None:
    """Old messages are trimmed although the topic is not used any more."""
    watched.configure(ttl_ms=300)
    watched.create_subscription("s")
    fill(watched, 20)
    until(lambda: watched.stats().subscriptions[0].expired_messages == 20)
    watched.configure(ttl_ms=None, quota_ms=300, quota_policy="error")
    fill(watched, 2)
    until(lambda: watched.stats().publishing == "refused")
    watched.clear("s")
    watched.configure(quota_ms=None, subscription_expiry_ms=300)
    until(lambda: not watched.subscriptions())


def test_a_look_that_fails_is_not_the_last(watched: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error may be of any class."""
    looked = threading.Event()
    failures: list[Exception] = [ValueError("a bug"), MetadataUnavailableError("away")]

    def look() -> None:
        if failures:
            raise failures.pop()
        looked.set()

    monkeypatch.setattr(watched, "maintain", look)
    watched.touch()
    assert looked.wait(PATIENCE_S)


def test_a_topic_that_is_closed_before_it_is_looked_at_is_no_trouble(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner closed it, and no warning is logged."""
    topic = cluster.topic("closed-meanwhile", **SMALL)
    topic.create_subscription("one")
    topic.publish(b"value")
    topic.close()
    topic.touch()
    monkeypatch.setattr(cluster.topics, "opened", lambda: [topic])
    cluster.topics._maintain()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


def test_each_unused_topic_is_maintained_once_per_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.005)
    monkeypatch.setattr(topics_module, "RUNS_PER_TURN", 5)
    with open_cluster(tmp_path) as cluster:
        opened = [cluster.topic(f"idle-{number}", **SMALL) for number in range(12)]
        until(lambda: not any(topic.is_used for topic in opened))
        maintained: list[str] = []
        maintain = Topic.maintain

        def note(topic: Topic) -> None:
            maintained.append(topic.name)
            maintain(topic)

        monkeypatch.setattr(Topic, "maintain", note)
        until(lambda: len(maintained) >= 4 * len(opened))
        turn, second, third = (maintained[start : start + len(opened)] for start in (0, len(opened), 2 * len(opened)))
        assert {*turn} == {topic.name for topic in opened} and turn == second == third
