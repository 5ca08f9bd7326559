"""Subscriptions at the end of a topic get confirmed messages from the memory of the owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog._native.topic.messages import Message
from pyreplog.bookie.protocol import RequestKind
from pyreplog.cluster import Cluster
from pyreplog.errors import TopicFencedError
from pyreplog.ledger.cluster import LedgerCluster as Ledgers
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from pyreplog.topic.owner.topic import Topic
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.counting import Faults
from tests.topic.handling import PATIENCE_S, open_cluster, until
from tests.topic.owners import config, process, publish, read_all, result


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with open_cluster(tmp_path, bookies=3) as cluster:
        yield cluster


def open_topic(cluster: Cluster) -> Topic:
    return cluster.topic("t", ensemble=3, write_quorum=3, ack_quorum=2, durability="appended", retention_bytes=None)


def is_nothing_kept(topic: Topic) -> bool:
    ledger = topic.managed._writer.ledger
    return ledger is None or ledger._tail_cache.read(ledger.last_add_pushed, ledger.last_add_pushed + 1, 1) is None


def test_subscriptions_at_the_tail_ask_no_bookie(cluster: Cluster) -> None:
    """Only a thread that was delivering at that moment, and came late, may read from bookies."""
    topic, delivered = open_topic(cluster), list[tuple[object, ...]]()
    with (
        topic.subscribe("one") as new_consumer,
        topic.subscribe("two") as two,
        RequestInterceptor(cluster) as interceptor,
    ):

        def came_without() -> bool:
            before, number = interceptor.count(RequestKind.READ), topic.end
            topic.publish(b"%d" % number, b"key", properties={"a": "b"}, event_time=number)
            for consumer in (new_consumer, two):
                message = consumer.receive(timeout=PATIENCE_S)
                assert message is not None and message.offset == number
                delivered.append(fields_of(message))
            return interceptor.count(RequestKind.READ) == before

        until(came_without)
        until(lambda: is_nothing_kept(topic))
    texts = [fields_of(message) for batch in topic.read(0) for message in batch]
    assert delivered == [item for item in texts for _ in ("one", "two")]


def fields_of(message: Message) -> tuple[object, ...]:
    return (
        message.offset, message.value, message.key, message.properties, message.publish_time, message.event_time,
        message.deliver_at, message.sequence, message.producer,
    )  # fmt: skip


def test_tail_cache_is_empty_once_messages_were_delivered(cluster: Cluster) -> None:
    """This holds with and without readers."""
    topic = open_topic(cluster)
    topic.publish(b"nobody")
    until(lambda: is_nothing_kept(topic))
    with topic.subscribe("one", start="earliest", queue=1) as consumer:
        for _ in range(5):
            topic.publish(b"nobody has room for all")
            until(lambda: is_nothing_kept(topic))
        assert [consumer.receive(timeout=PATIENCE_S) is not None for _ in range(6)] == [True] * 6


def test_nothing_comes_before_it_is_confirmed(cluster: Cluster) -> None:
    topic = open_topic(cluster)
    topic.publish(b"0")
    with topic.subscribe("one", start="earliest") as consumer, RequestInterceptor(cluster) as interceptor:
        assert consumer.receive(timeout=PATIENCE_S) is not None
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        coming = topic.submit(b"1")
        interceptor.wait_for(RequestKind.ADD, 3)
        assert len(result(topic.managed.read(1))) == 0 and topic.end == 1
        assert consumer.receive(timeout=0) is None
        interceptor.clear()
        interceptor.release()
        assert coming.result(PATIENCE_S) == 1
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None and message.value == b"1"


def test_the_owner_before_gives_out_nothing_that_was_not_confirmed(cluster: Cluster) -> None:
    """No bookie has the message, so that the next owner stores another one at its offset; the acks arrive too late."""
    ledgers: Ledgers = cluster
    with process(ledgers, Faults()) as new_process:
        before = ManagedLedger.open(new_process, "taken", config=config(ensemble=3, ack_quorum=2, roll_entries=9))
        result(publish(before, [b"confirmed"]))
        interceptor = RequestInterceptor(new_process)
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        lost = publish(before, [b"lost"])
        interceptor.wait_for(RequestKind.ADD, 3)
        with ManagedLedger.open(ledgers, "taken") as after:
            assert result(publish(after, [b"another"])) == range(1, 2)
            assert read_all(before) == {0: b"confirmed"}
            interceptor.clear()
            interceptor.release()
            with pytest.raises(TopicFencedError):
                result(lost)
            assert before.end.offset == 1
            assert read_all(after) == {0: b"confirmed", 1: b"another"}
        before.close()
