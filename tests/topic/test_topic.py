"""The handle of a topic: publishing, reading, reopening, settings, and all its ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cluster import Cluster
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    ForkedError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    OutOfRangeError,
    ReplogError,
    TrimmedError,
    WrongTypeError,
)
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import (
    PATIENCE_S,
    PLAIN,
    SMALL,
    check_backlog,
    fill,
    open_cluster,
    receive,
    received,
    stored,
    trim,
    until,
    values,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("topic"), bookies=2) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    with cluster.topic(request.node.name[:100], **SMALL) as topic:
        yield topic


# ---- publishing and reading ------------------------------------------------------------------------------------


def test_published_messages_are_read_across_ledgers(topic: Topic) -> None:
    assert topic.publish(b"0", b"k", properties={"a": "b"}, event_time=7) == 0
    for at in range(1, 41, 10):
        assert topic.publish_batch(values(10, at)) == range(at, at + 10)
    assert [topic.submit(value).result(PATIENCE_S) for value in values(3, 41)] == [41, 42, 43]
    assert (topic.start, topic.end, len(topic)) == (0, 44, 44)
    assert stored(topic) == dict(enumerate(values(44)))
    assert len(topic.internal_stats().ledgers) > 4
    (first, *_) = next(topic.read())
    assert (first.key, first.properties, first.event_time) == (b"k", {"a": b"b"}, 7)


def test_the_entry_that_was_confirmed_last(topic: Topic) -> None:
    """The entry number is that of the ledger, as `pyreplog ledger read` expects it."""
    assert topic.internal_stats().last_entry is None
    topic.publish(b"0")
    (ledger,) = topic.internal_stats().ledgers
    assert topic.internal_stats().last_entry == (ledger.ledger, 0)


def test_an_offset_that_was_given_lies_before_the_end(topic: Topic) -> None:
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        for at in range(60):
            assert topic.publish(b"x") == at
            assert topic.end == at + 1
            consumer.acknowledge(at)
        consumer.flush(PATIENCE_S)
        check_backlog(topic, "s", [])


def test_reading_from_a_place_up_to_another(topic: Topic) -> None:
    topic.publish_batch(values(30))
    assert [offset for batch in topic.read(5, 11) for offset in batch.offset.tolist()] == list(range(5, 11))
    assert list(topic.read("latest")) == list(topic.read(30)) == list(topic.read(9, 9)) == []
    before = datetime.fromtimestamp(0, UTC)
    assert next(topic.read(before)).first == 0
    wrong = {31: OutOfRangeError, -1: OutOfRangeError, "first": InvalidArgumentError, 1.5: WrongTypeError}
    for start, error in wrong.items():
        with pytest.raises(error):
            topic.read(start)  # type: ignore[arg-type]


def test_an_empty_topic_is_read_and_consumed(topic: Topic) -> None:
    assert topic and len(topic) == 0 and list(topic.read()) == [] and topic.trim() == 0
    with topic.subscribe("s") as consumer:
        assert consumer.receive(timeout=0) is None
        for to in (0, 1, 5):
            with pytest.raises(OutOfRangeError):
                consumer.acknowledge_cumulative(to)
        assert consumer.seek("earliest") == consumer.seek(0) == consumer.seek("latest") == 0
        topic.skip("s", 3)
        topic.clear("s")
    assert topic.stats().subscriptions[0].backlog_messages == 0


def test_a_waiting_read_wakes_when_something_is_published(topic: Topic) -> None:
    """Scenario 20: consumers that wait at the end get each new message."""
    consumers = [topic.subscribe(f"s{at}") for at in range(10)]
    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(received, consumer, 100) for consumer in consumers]
        for value in values(100):
            topic.submit(value)
        assert all(future.result(PATIENCE_S) == list(range(100)) for future in waiting)
    for consumer in consumers:
        consumer.close()


def test_a_topic_publishes_and_consumes_in_an_event_loop(topic: Topic) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            async with await topic.subscribe_async("s") as consumer:
                waiting = asyncio.create_task(consumer.receive_async())
                assert await topic.submit(b"a") == 0
                assert (await waiting).value == b"a"
                for _ in range(20):  # a read that is cancelled loses no message
                    given_up = asyncio.create_task(consumer.receive_async())
                    await asyncio.sleep(0)
                    future = topic.submit(b"b")
                    await asyncio.sleep(0)
                    given_up.cancel()
                    await asyncio.gather(given_up, return_exceptions=True)
                    offset = await future
                    if given_up.cancelled():
                        assert (await consumer.receive_async()).offset == offset
                    else:
                        assert given_up.result().offset == offset

    asyncio.run(main())


# ---- opening it again ------------------------------------------------------------------------------------------


def test_acknowledgements_survive_a_clean_close(cluster: Cluster) -> None:
    """Scenarios 11 and 15: several subscriptions with holes share a cursor ledger, which is closed with the topic."""
    with cluster.topic("again", **SMALL) as topic:
        fill(topic, 20)
        topic.create_subscription("b", start=2, properties={"for": "b"})
        topic.create_subscription("c", start=7)
        with topic.subscribe("a", start="earliest", type="shared") as consumer:
            messages = receive(consumer, 20)
            consumer.acknowledge([messages[at] for at in (0, 1, 5, 11, 12)])
        topic.seek("c", 13)
    with cluster.topic("again") as again:
        assert again is not topic and again.subscriptions() == ["a", "b", "c"]
        check_backlog(again, "a", set(range(20)) - {0, 1, 5, 11, 12})
        check_backlog(again, "b", range(2, 20))
        check_backlog(again, "c", range(13, 20))
        assert again.subscription("b").properties == {"for": "b"}
        assert again.subscription("a").settings.type == "shared"
        with again.subscribe("a", type="shared") as consumer:
            assert received(consumer, 15) == sorted(set(range(20)) - {0, 1, 5, 11, 12})


def test_a_clean_close_stores_unflushed_acknowledgements(tmp_path: Path) -> None:
    with open_cluster(tmp_path, flush_ms=3_600_000) as cluster:
        with cluster.topic("t", **SMALL) as topic, topic.subscribe("s", start="earliest") as consumer:
            fill(topic, 6)
            consumer.acknowledge(receive(consumer, 4))
        with cluster.topic("t") as topic:
            check_backlog(topic, "s", [4, 5])


def test_a_subscription_of_an_empty_topic_begins_where_it_did(cluster: Cluster) -> None:
    with cluster.topic("early", **SMALL) as topic:
        topic.create_subscription("s")
    with cluster.topic("early") as topic:
        topic.publish_batch(values(5))
        assert topic.start == 0 and topic.trim() == 0
        check_backlog(topic, "s", range(5))


def test_topic_returns_the_same_handle_until_it_is_closed(cluster: Cluster) -> None:
    with cluster.topic("same", **PLAIN) as topic:
        assert cluster.topic("same") is topic
        topic.publish(b"x")
    with pytest.raises(ClosedError):
        topic.publish(b"y")
    with pytest.raises(ClosedError):
        topic.subscribe("s")
    assert cluster.topic("same").end == 1
    cluster.topic("same").close()


def test_opening_a_topic_that_is_being_closed_waits(cluster: Cluster) -> None:
    closing = 0
    with ThreadPoolExecutor(2) as pool:
        for at in range(20):
            topic = cluster.topic("door", **PLAIN)
            assert topic.publish(b"x") == at
            closed = pool.submit(topic.close)
            again = pool.submit(cluster.topic, "door").result(PATIENCE_S)
            closed.result(PATIENCE_S)
            closing += again is not topic
            again.close()
    assert closing


def test_no_topic_of_that_name(cluster: Cluster) -> None:
    with pytest.raises(NoSuchTopicError):
        cluster.topic("nowhere", create=False)
    assert "nowhere" not in cluster.topics.names()
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(InvalidArgumentError):
            cluster.topic(name)


def test_settings_are_kept_and_changed(cluster: Cluster) -> None:
    with cluster.topic("set", **PLAIN, retention_ms=5) as topic:
        topic.configure(ttl_ms=1000, retention_ms=None)
    with cluster.topic("set", ttl_ms=2000) as topic:
        assert (topic.config.ttl_ms, topic.config.retention_ms, topic.config.ensemble) == (2000, None, 1)
        with pytest.raises(ConfigError):
            topic.configure(roll_entries=0)
        with pytest.raises(ConfigError):
            topic.configure(nonsense=1)


# ---- ends ------------------------------------------------------------------------------------------------------


def test_closing_in_the_middle_of_receiving(cluster: Cluster) -> None:
    topic = cluster.topic("ends", **PLAIN)
    consumers = [topic.subscribe("s", type="shared") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(consumer.receive) for consumer in consumers]
        until(lambda: all(consumer._waiting for consumer in consumers))
        topic.close()
        assert all(isinstance(future.exception(PATIENCE_S), ClosedError) for future in waiting)
    topic.close()


def test_closing_publishes_what_was_submitted(cluster: Cluster) -> None:
    topic = cluster.topic("last", **PLAIN, linger_ms=60_000)
    futures = [topic.submit(value) for value in values(10)]
    topic.close()
    assert [future.result(0) for future in futures] == list(range(10))
    with cluster.topic("last") as topic:
        assert stored(topic) == dict(enumerate(values(10)))


def test_closing_in_a_callback_is_refused(cluster: Cluster) -> None:
    with cluster.topic("callback", **PLAIN) as topic:
        came: list[BaseException] = []

        def close(_: object) -> None:
            try:
                topic.close()
            except InvalidArgumentError as error:
                came.append(error)

        future = topic.submit(b"x")
        future.add_done_callback(close)
        future.result(PATIENCE_S)
        until(lambda: came or topic._error)
        if came:
            topic.publish(b"y")  # the topic stays open


@pytest.mark.parametrize("deduplicate", [False, True])
def test_a_deleted_topic_is_created_anew(cluster: Cluster, deduplicate: bool) -> None:
    name = f"deleted {deduplicate}"
    topic = cluster.topic(name, **SMALL, deduplicate=deduplicate)
    topic.publish_batch(values(30), producer="p")
    consumer = topic.subscribe("s", start="earliest")
    waiting = topic.subscribe("t", start="latest")
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(waiting.receive)
        until(lambda: waiting._waiting)
        topic.delete()
        assert isinstance(receiving.exception(PATIENCE_S), NoSuchTopicError | ClosedError)
    consumer.close()
    waiting.close()
    for call in (lambda: topic.publish(b"x"), lambda: topic.subscribe("u"), lambda: topic.stats()):
        with pytest.raises(ReplogError):
            call()
    assert name not in cluster.topics.names()
    assert cluster.topics.owner(name) is None
    with cluster.topic(name, **SMALL, deduplicate=deduplicate) as anew:
        assert anew.subscriptions() == [] and anew.end == 0
        assert anew.publish(b"x", producer="p", sequence=0) == 0
        anew.delete()


def test_a_topic_is_deleted_by_name_once(cluster: Cluster) -> None:
    cluster.topic("by name", **PLAIN).close()
    cluster.topics.delete("by name")
    with pytest.raises(NoSuchTopicError):
        cluster.topics.delete("by name")


def test_a_forked_child_may_not(cluster: Cluster) -> None:
    with cluster.topic("forked", **PLAIN) as topic, topic.subscribe("s") as consumer:
        topic.publish(b"x")
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: topic.subscribe("t"), consumer.receive, lambda: topic.stats(), lambda: topic.read()):
                try:
                    call()
                except ForkedError:
                    refused += 1
            topic.close()
            consumer.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert received(consumer, 1) == [0]


@pytest.mark.usefixtures("uncollected")
def test_ctrl_c_while_receiving_loses_nothing(topic: Topic) -> None:
    caught = threading.Event()

    def handle(*_: object) -> None:
        if not caught.is_set():
            caught.set()
            raise KeyboardInterrupt

    def interrupt(consumer: Consumer) -> None:
        """Send signals until one arrives in time: Python misses a signal just before it waits for a lock."""
        until(lambda: consumer._waiting)
        while not caught.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            caught.wait(0.1)

    signal.signal(signal.SIGINT, handle)
    with topic.subscribe("s") as consumer, ThreadPoolExecutor(1) as pool:
        for at in range(5):
            caught.clear()
            with pytest.raises(KeyboardInterrupt):
                interrupting = pool.submit(interrupt, consumer)
                consumer.receive()
            interrupting.result(PATIENCE_S)
            topic.publish(b"x")
            assert received(consumer, 1) == [at]


def test_ctrl_c_just_before_a_consumer_waits_loses_nothing(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with topic.subscribe("s") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_send_acks", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive()
        topic.publish(b"x")
        assert received(consumer, 1) == [0]


def test_read_of_trimmed_messages_raises_trimmed_error(topic: Topic) -> None:
    fill(topic, 40)
    assert trim(topic) == 40
    assert (topic.start, topic.end) == (40, 40)
    with pytest.raises(TrimmedError):
        topic.read(3)
    with pytest.raises(TrimmedError):
        topic.create_subscription("s", start=3)
    with pytest.raises(NoSuchSubscriptionError):
        topic.subscription("s")
    assert isinstance(TrimmedError("x"), pyreplog.ReplogError)
