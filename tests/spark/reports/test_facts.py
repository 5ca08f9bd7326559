"""Snapshot: of topics, subscriptions and ledgers, of a cluster in a directory or over TCP."""

from __future__ import annotations

import dataclasses
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyreplog
from pyreplog import reports
from pyreplog.bookie.identity import IDENTITY
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import InvalidMetadataError, NoSuchTopicError
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot, SubscriptionSnapshot
from pyreplog.topic.model.positions import TopicPosition
from tests import samples
from tests.spark.clusters import KEPT, Nodes, embedded, fill
from tests.spark.reading import options_of
from tests.spark.reports.subscribed import SECOND, world
from tests.topic.owners import until


def made_of(mark: int, end: int, acked: set[int]) -> SubscriptionSnapshot:
    edges = np.flatnonzero(np.diff([0, *(offset in acked for offset in range(end)), 0]))
    ranges = edges.reshape(-1, 2).astype(np.int64)
    return SubscriptionSnapshot(
        on="t", topic="t", partition=-1, name="s", mark=TopicPosition(mark, 0, 0), end=end, acked=ranges, backlog_messages=0,
        backlog_bytes=0, moved_us=None,
    )  # fmt: skip


@given(st.integers(0, 12), st.integers(0, 12), st.sets(st.integers(0, 24)))
def test_a_snapshot_has_the_oldest_and_newest_unacknowledged_offsets(mark: int, more: int, some: set[int]) -> None:
    end = mark + more
    acked = {offset for offset in some if mark < offset < end}
    fact = made_of(mark, end, acked)
    left = [offset for offset in range(mark, end) if offset not in acked]
    assert (fact.oldest, fact.newest) == ((left[0], left[-1]) if left else (None, None))


def test_a_snapshot_knows_where_a_mark_was(tmp_path: Path) -> None:
    """As far as the window reaches; and no further back than the cursor ledger that has its state."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t")
        environment.publish(known, [1] * 50)
        environment.subscribe(known, "s")
        for upto in range(1, 12):
            environment.clock.advance(10 * SECOND)
            environment.upto(known, "s", upto)
            environment.acknowledge(known, "s", [upto + 20])  # beyond the mark, which stays
        marks, began = known.subs["s"].marks[1:], known.subs["s"].marks[1][0]
        (fact,) = environment.snapshot(1000).subscriptions
        for time_us in range(began, environment.clock.now_us() + SECOND, SECOND):
            assert fact.mark_at(time_us) == [mark for since_us, mark in marks if since_us <= time_us][-1]
        assert fact.mark_at(began - 1) is None
        (fact,) = environment.snapshot(35).subscriptions
        assert fact.marks.tolist() == [list(mark) for mark in marks[-5:]]
        assert fact.moved_us == marks[-1][0]


def test_a_snapshot_over_tcp_has_subscriptions_and_ledgers(tmp_path: Path) -> None:
    """What is acknowledged, and when; every ledger; the same for all who are told."""
    with Nodes(tmp_path, ("b0", "b1", "b2")) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            places = fill(cluster, [20, 0])
            topic = cluster.topic("orders", roll_entries=3, durability="appended", **KEPT)
            for n in range(10):
                topic.publish_batch([b"%d.%d" % (n, k) for k in range(4)])
            topic.create_subscription("s", start=0)
            before_us = time.time_ns() // 1000
            topic.skip("s", 5)
            topic.close()
        snapshot = gather(options_of(None, cluster=nodes.url), time.time_ns() // 1000)
        (fact,) = snapshot.subscriptions
        assert (fact.mark.offset, fact.backlog_messages, fact.oldest, fact.newest) == (5, 35, 5, 39)
        assert fact.moved_us is not None
        assert before_us <= fact.moved_us <= snapshot.as_of_us
        assert fact.oldest_us is not None
        entries = {ledger.metadata.ledger: ledger.entries for ledger in snapshot.ledgers}
        assert (entries[places[0][0]], entries[places[0][0] + 1]) == (20, 0)
        assert [len(ledger.metadata.fragments[0].ensemble) for ledger in snapshot.ledgers[:2]] == [3, 3]
        assert {int(segment.name) for segment in snapshot.topics[0].segments} <= entries.keys()
        again = pickle.loads(pickle.dumps(snapshot))
        assert again == snapshot
        assert again.subscriptions[0].marks.tolist() == fact.marks.tolist()
        for name in ("backlog_by_subscription", "backlog_age_histogram", "drain_estimate"):
            assert reports.run(name, {"cluster": nodes.url})["subscription"].to_pylist()[0] == "s"


def test_a_snapshot_has_the_topics_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        others = {ledger for ledger, _ in fill(cluster, [3, 4])}
        for name in ("a", "b"):
            topic = cluster.topic(name, durability="appended")
            topic.publish(b"x")
            topic.create_subscription("s", start="earliest")
            topic.close()
    snapshot = gather(options_of(path), 0)
    assert [each_topic.name for each_topic in snapshot.topics] == ["a", "b"]
    assert {ledger.metadata.ledger for ledger in snapshot.ledgers} > others
    snapshot = gather(options_of(path, topics="b"), 0)
    assert [(subscription.on, subscription.name) for subscription in snapshot.subscriptions] == [("b", "s")]
    assert [str(ledger.metadata.ledger) for ledger in snapshot.ledgers] == [
        segment.name for segment in snapshot.topics[0].segments
    ]
    snapshot = gather(options_of(path, ledgers=f"{min(others)}-{max(others)}"), 0)
    assert (snapshot.topics, snapshot.subscriptions) == ((), ())
    assert {ledger.metadata.ledger: ledger.entries for ledger in snapshot.ledgers} == dict(
        zip(sorted(others), (3, 4), strict=True)
    )
    with pytest.raises(NoSuchTopicError, match="c"):
        gather(options_of(path, topics="c"), 0)


def test_a_snapshot_counts_confirmed_entries_of_open_ledgers(tmp_path: Path) -> None:
    """Of one that is written, what is confirmed; of one that nobody can be asked about, that it is not known."""
    path = tmp_path / "data"
    with embedded(path) as cluster, cluster.create_ledger(1, 1, 1, password=b"p") as ledger:
        ledger.append_batch([b"x"] * 5)

        def entries(**options: object) -> list[int | None]:
            return [each_ledger.entries for each_ledger in gather(options_of(path, **options), 0).ledgers]

        until(lambda: entries(password="p") == [5])
        (bookie,) = cluster.ledger_metadata(ledger.id).bookies()
        (path / bookie.partition("@")[0] / IDENTITY).rename(tmp_path / "elsewhere")
        assert entries(password="p") == [None]
        with cluster.create_ledger(1, 1, 1) as other:
            other.append(b"x")
        assert entries() == [None, 1]


def test_a_segment_that_is_none(tmp_path: Path) -> None:
    samples.make_log(tmp_path / "log")
    (before,) = gather(options_of(tmp_path / "log"), 0).logs
    first, other, *_ = before.segments
    samples.flip(tmp_path / "log" / other.name, 9)
    (after,) = gather(options_of(tmp_path / "log"), 0).logs
    assert (after.start, after.end, len(after.segments)) == (before.start, before.end, len(before.segments))
    assert after.segments[0] == first._replace(end=other.end)
    assert (after.segments[1].start, after.segments[1].end, after.segments[1].closed_us) == (other.end, other.end, None)
    assert after.segments[2:] == before.segments[2:]


def test_undecodable_cursor_raises_invalid_metadata_error(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        cluster.topic("t", durability="appended").close()
        lost = SubscriptionMetadata(token="t", created_us=1)
        create_subscription(cluster.metadata, "t", "bad", lost)
        with pytest.raises(
            InvalidMetadataError, match="the stored cursor of subscription bad of topic t cannot be decoded"
        ):
            gather(options_of(path), 0)


def test_times_of_moves_in_metadata() -> None:
    """Those of former versions do not have them."""
    subscription_metadata = SubscriptionMetadata(token="t", created_us=1, moved_us=7)
    assert SubscriptionMetadata.decode(subscription_metadata.encode()) == subscription_metadata
    former = subscription_metadata.encode().replace(b',"moved_us":7', b"")
    assert SubscriptionMetadata.decode(former) == dataclasses.replace(subscription_metadata, moved_us=0)
    with pytest.raises(InvalidMetadataError, match="time of a move"):
        SubscriptionMetadata.decode(subscription_metadata.encode().replace(b'"moved_us":7', b'"moved_us":-7'))


def test_an_empty_snapshot_has_the_start_of_its_window() -> None:
    assert Snapshot(as_of_us=5 * SECOND, window_ms=2500).since_us == 2_500_000
