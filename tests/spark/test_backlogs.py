"""Backlogs of subscriptions: from the mark on, without what was acknowledged by itself; nobody is fenced for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import InvalidMetadataError
from pyreplog.spark.planning import plan
from pyreplog.topic.subscriptionmetadata import SubscriptionMetadata, create_subscription, load_subscription
from tests.spark.clusters import embedded
from tests.spark.reading import column, options_of

MESSAGES = 400


def acknowledge(topic: pyreplog.Topic, name: str, rng: random.Random) -> set[int]:
    """A part of the messages, from here and there; what is left."""
    left = set(range(MESSAGES))
    with topic.subscribe(name, start="earliest") as consumer:
        messages = consumer.receive(MESSAGES, timeout=30)
        while len(messages) < MESSAGES:
            messages += consumer.receive(MESSAGES - len(messages), timeout=30)
        upto = rng.randrange(MESSAGES // 2)
        consumer.acknowledge_cumulative(upto)
        left -= set(range(upto))
        some = rng.sample(range(upto, MESSAGES), rng.randrange(MESSAGES // 3))
        consumer.acknowledge(sorted(some))
        left -= set(some)
        consumer.flush()
    return left


def publish(cluster: pyreplog.Cluster, name: str) -> pyreplog.Topic:
    topic = cluster.topic(name, durability="appended", roll_entries=6)
    for first in range(0, MESSAGES, 10):
        topic.publish_batch([b"%d" % n for n in range(first, first + 10)])
    return topic


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topics = {name: publish(cluster, name) for name in ("a", "b")}
        left = {(name, s): acknowledge(topic, s, rng) for name, topic in topics.items() for s in ("s", "t")}
        for topic in topics.values():
            topic.close()
        for (name, subscription), wanted in left.items():
            found = column(path, "offset", topics=name, subscription=subscription, minPartitions=3)
            assert found == sorted(wanted)
    for (name, subscription), wanted in left.items():
        assert column(path, "offset", topics=name, subscription=subscription) == sorted(wanted)
        below = column(path, "offset", topics=name, subscription=subscription, endingOffsets=200)
        assert below == sorted(offset for offset in wanted if offset < 200)
    both = column(path, "value", topics="a,b", subscription="s")
    assert both == [b"%d" % n for name in "ab" for n in sorted(left[name, "s"])]


def test_beside_its_owner(tmp_path: Path) -> None:
    """The cursor ledger is open, and goes on after it was read."""
    path, rng = tmp_path / "data", random.Random(9)
    with embedded(path) as cluster:
        topic = publish(cluster, "a")
        topic.managed.roll().result(30)
        left = acknowledge(topic, "s", rng)
        assert column(path, "offset", topics="a", subscription="s") == sorted(left)
        topic.clear("s")
        with topic.subscribe("s") as consumer:
            consumer.flush()
        assert column(path, "offset", topics="a", subscription="s") == []
        topic.publish(b"more")


def test_nothing_was_acknowledged_yet(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = publish(cluster, "a")
        topic.create_subscription("begin", start="earliest")
        topic.create_subscription("middle", start=123)
        topic.create_subscription("end", start="latest")
        topic.close()
        assert column(path, "offset", topics="a", subscription="begin") == list(range(MESSAGES))
        assert column(path, "offset", topics="a", subscription="middle") == list(range(123, MESSAGES))
        assert column(path, "offset", topics="a", subscription="end") == []


def test_a_cursor_ledger_that_is_gone(tmp_path: Path) -> None:
    """The snapshot in the metadata has to do; and where there is none, nobody knows."""
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = publish(cluster, "a")
        topic.create_subscription("s", start=100)
        acknowledge(topic, "s", random.Random(1))
        topic.close()
        metadata = load_subscription(cluster.metadata, "a", "s")
        assert metadata.cursor_ledger >= 0
        create_subscription(
            cluster.metadata, "a", "bad", SubscriptionMetadata(token="t", created_us=1, cursor_ledger=12345)
        )
        cluster.delete_ledger(metadata.cursor_ledger)
        if metadata.snapshot:
            assert column(path, "offset", topics="a", subscription="s")[0] >= 100
        with pytest.raises(InvalidMetadataError, match="where subscription bad of topic a stands cannot be told"):
            plan(options_of(path, topics="a", subscription="bad"))
