"""Backlogs of subscriptions: from the mark on, without what was acknowledged by itself; nobody is fenced for it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

import pyreplog
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription, load_subscription
from pyreplog.errors import InvalidMetadataError
from pyreplog.tables.planning import plan
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.subscription import NOBODY
from tests.spark.clusters import KEPT, embedded
from tests.spark.reading import column, options_of
from tests.topic.owners import until

MESSAGES = 400


def acknowledge(topic: pyreplog.Topic, name: str, rng: random.Random) -> set[int]:
    """A part of the messages, from here and there, so that it is stored; what is left."""
    topic.create_subscription(name, start="earliest")
    subscription = topic.subscription(name)
    upto = rng.randrange(MESSAGES // 2)
    some = rng.sample(range(upto, MESSAGES), rng.randrange(1, MESSAGES // 3))
    subscription.acknowledge_cumulative(NOBODY, upto).result(30)
    subscription.acknowledge(NOBODY, np.array(sorted(some)))
    until(lambda: subscription.inspect(lambda cursor, _: cursor.mask(np.array(some)).all()))
    subscription.flush_async().result(30)
    return set(range(upto, MESSAGES)) - set(some)


def publish(cluster: pyreplog.Cluster, name: str) -> pyreplog.Topic:
    topic = cluster.topic(name, durability="appended", roll_entries=6, **KEPT)
    for first in range(0, MESSAGES, 10):
        topic.publish_batch([b"%d" % n for n in range(first, first + 10)])
    return topic


@pytest.mark.parametrize("seed", range(4))
def test_subscription_option_reads_unacknowledged_messages(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topics = {name: publish(cluster, name) for name in ("a", "b")}
        left = {(name, s): acknowledge(topic, s, rng) for name, topic in topics.items() for s in ("s", "t")}
        for topic in topics.values():
            topic.close()
        for (name, subscription), wanted in left.items():
            offsets = column(path, "offset", topics=name, subscription=subscription, minPartitions=3)
            assert offsets == sorted(wanted)
    for (name, subscription), wanted in left.items():
        assert column(path, "offset", topics=name, subscription=subscription) == sorted(wanted)
        below = column(path, "offset", topics=name, subscription=subscription, endingOffsets=200)
        assert below == sorted(offset for offset in wanted if offset < 200)
    both = column(path, "value", topics="a,b", subscription="s")
    assert both == [b"%d" % n for name in "ab" for n in sorted(left[name, "s"])]


def test_a_backlog_is_read_while_the_owner_has_the_topic(tmp_path: Path) -> None:
    """The cursor ledger is open, and goes on after it was read."""
    path, rng = tmp_path / "data", random.Random(9)
    with embedded(path) as cluster:
        topic = publish(cluster, "a")
        topic.managed.roll().result(30)
        left = acknowledge(topic, "s", rng)
        assert load_subscription(cluster.metadata, "a", "s").cursor_ledger >= 0
        assert column(path, "offset", topics="a", subscription="s") == sorted(left)
        for _ in range(3):
            topic.skip("s", 7)
            left -= set(sorted(left)[:7])
            assert column(path, "offset", topics="a", subscription="s") == sorted(left)
        topic.clear("s")
        assert column(path, "offset", topics="a", subscription="s") == []
        topic.publish(b"more")


def test_new_subscription_reads_from_its_start(tmp_path: Path) -> None:
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
    """The snapshot in the metadata has to do, here that of a new subscription; where there is none, nobody knows."""
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = publish(cluster, "a")
        acknowledge(topic, "s", random.Random(1))
        metadata = load_subscription(cluster.metadata, "a", "s")
        topic.close()
        assert metadata.cursor_ledger >= 0
        cluster.delete_ledger(metadata.cursor_ledger)
        lost = SubscriptionMetadata(token="t", created_us=1, cursor_ledger=metadata.cursor_ledger)
        create_subscription(cluster.metadata, "a", "bad", lost)
        _, snapshot = Cursor("old", TopicPosition(7, 1, 1)).snapshot_record()
        create_subscription(cluster.metadata, "a", "old", dataclasses.replace(lost, snapshot=snapshot))
        assert column(path, "offset", topics="a", subscription="old") == list(range(7, MESSAGES))
        with pytest.raises(
            InvalidMetadataError, match="the stored cursor of subscription bad of topic a cannot be decoded"
        ):
            plan(options_of(path, topics="a", subscription="bad"))
