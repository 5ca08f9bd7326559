"""Streams of topics: ledgers that roll, owners that change, partitions and topics that come, trimming; subscriptions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import (
    CheckpointError,
    ConfigError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    OutOfRangeError,
    TrimmedError,
    UnreadableError,
)
from pyreplog.spark import acknowledge
from tests.spark.clusters import SEGMENT, Nodes, corrupt, embedded
from tests.spark.reading import column, read_table
from tests.spark.streams import Query, decoded, offsets, position


def make(cluster: pyreplog.Cluster, name: str = "orders", **settings: object) -> pyreplog.Topic:
    """A topic whose messages are kept."""
    topic = cluster.topic(name, durability="appended", roll_entries=4, **settings)
    topic.create_subscription("keeps", start="earliest")
    return topic


def publish(topic: pyreplog.Topic, batches: int) -> None:
    for _ in range(batches):
        topic.publish_batch([b"%d" % n for n in range(topic.end, topic.end + 10)])


def test_a_stream_follows_ledgers_and_owners(tmp_path: Path) -> None:
    """Every closing settles where the topic ends; each time another owner goes on in another ledger."""
    path, seen = tmp_path / "data", list[int]()
    with embedded(path) as cluster:
        make(cluster).close()
    query = Query(path, topics="orders")
    for batches in (3, 1, 17, 0, 6):
        with embedded(path) as cluster:
            topic = cluster.topic("orders")
            publish(topic, batches)
            topic.close()
        rows = query.read()
        assert all(row["value"] == b"%d" % row["offset"] for row in rows)
        seen += offsets(rows)
    query.planner.close()
    assert seen == list(range(270))
    assert len(set(column(path, "ledgerId", topics="orders"))) > 5


def test_a_stream_reads_a_topic_that_its_owner_has_open(tmp_path: Path) -> None:
    """What is read while the topic is open is a prefix; it is all there when it is closed."""
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic, seen = make(cluster), list[int]()
        with Query(path, topics="orders") as query:
            for _ in range(8):
                publish(topic, 3)
                seen += offsets(query.read())
                assert seen == list(range(len(seen)))
            topic.close()
            seen += offsets(query.read())
        assert seen == list(range(240))


@pytest.mark.parametrize(("name", "limit"), [("maxOffsetsPerTrigger", 37), ("maxBytesPerTrigger", 100)])
def test_limits_bound_the_batches_of_a_stream(tmp_path: Path, name: str, limit: int) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        publish(topic, 20)
        size = topic.internal_stats().size
        topic.close()
    with Query(path, topics="orders", **{name: limit}) as query:
        batches = [offsets(rows) for rows in query.batches()]
    assert [n for rows in batches for n in rows] == list(range(200))
    if name == "maxOffsetsPerTrigger":
        assert [len(rows) for rows in batches] == [37] * 5 + [15]
    else:
        assert all(len(rows) * size / 200 <= limit * 1.2 for rows in batches)
        assert len(batches) <= size / limit * 1.2 + 1


def test_empty_messages_have_no_bytes(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as cluster:
        topic = make(cluster)
        for _ in range(6):
            topic.publish_batch([b""] * 10)
        topic.close()
    with Query(tmp_path / "data", topics="orders", maxBytesPerTrigger=5) as query:
        assert offsets(query.read()) == list(range(60))


def test_a_batch_replayed_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        publish(topic, 7)
        topic.close()
    with Query(path, topics="orders", maxOffsetsPerTrigger=23, minPartitions=4) as query:
        end = query.next()
        tasks = query.tasks(query.offset, end)
    with embedded(path) as cluster:
        topic = cluster.topic("orders")
        publish(topic, 9)
        topic.close()
    with Query(path, offset=query.offset, topics="orders") as again:
        assert again.tasks(query.offset, end) == tasks
    assert len(tasks) == 4
    assert [n for task in tasks for n in task] == list(range(23))


def test_partitions_and_topics_that_come(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        for name in ("orders-partition-0", "orders-partition-1"):
            topic = make(cluster, name)
            publish(topic, 1)
            topic.close()
        with Query(path, topicsPattern="o.*|p.*") as pattern, Query(path, topics="orders", startingOffsets=-1) as named:
            assert len(pattern.read()) == 20
            assert named.read() == []
            for name in ("orders-partition-2", "purchases", "others"):
                topic = make(cluster, name)
                publish(topic, 2)
                topic.close()
            rows = [(row["topic"], row["partition"], row["offset"]) for row in pattern.read()]
            new = [("orders", 2, n) for n in range(20)]
            assert sorted(rows) == [*new, *[(name, -1, n) for name in ("others", "purchases") for n in range(20)]]
            assert [(row["topic"], row["partition"], row["offset"]) for row in named.read()] == new


def test_a_stream_of_a_topic_begins_where_options_say(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        publish(topic, 10)
        topic.create_subscription("late", start=33)
        topic.close()

    def first(**options: object) -> int:
        with Query(path, topics="orders", **options) as query:
            return position(query)

    assert (first(), first(startingOffsets="latest"), first(startingOffsets=7)) == (0, 100, 7)
    assert first(startingOffsets='{"orders": {"-1": 99}}') == 99
    assert first(subscription="late") == 33
    stamps = column(path, "timestamp", topics="orders")
    for at in (0, 35, 99):
        wanted = next(n for n, stamp in enumerate(stamps) if stamp >= stamps[at])
        assert first(startingTimestamp=stamps[at].isoformat()) == wanted
    assert first(startingTimestamp="2999-01-01") == 100
    assert first(startingTimestamp=0) == 0
    for options, error in (
        ({"startingOffsets": 101}, OutOfRangeError),
        ({"startingOffsets": '{"x": {"0": 1}}'}, ConfigError),
        ({"subscription": "nobody"}, NoSuchSubscriptionError),
    ):
        with pytest.raises(error):
            first(**options)


def test_stream_from_the_time_of_an_unreadable_entry_follows_the_mode(tmp_path: Path) -> None:
    """As the mode says; nothing older comes, and nothing that can be read is left out."""
    path, clock = tmp_path / "data", ManualClock(1_700_000_000_000_000)
    settings = {"bookies": 3, "durability": "appended", "segment_bytes": SEGMENT}
    with pyreplog.Cluster.embedded(path, clock=clock, **settings) as cluster:
        topic = cluster.topic("orders", durability="appended")
        topic.create_subscription("keeps", start="earliest")
        for _ in range(20):
            publish(topic, 1)
            clock.advance(1_000_000)
        topic.close()
    rows = read_table(path, topics="orders", columns="offset,timestamp,ledgerId").to_pylist()
    wanted = rows[100]["timestamp"].isoformat()
    lost = {row["offset"] for row in rows if row["timestamp"] == rows[100]["timestamp"]}
    corrupt(path, (rows[100]["ledgerId"], 10))
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        with Query(path, topics="orders", mode=mode, startingTimestamp=wanted, columns="offset,value") as query:
            batches = query.read()
        assert [n for n in offsets(batches) if n is not None] == [n for n in range(100, 200) if n not in lost]
        assert (len(batches) > 100 - len(lost)) == (mode == "PERMISSIVE"), "it is told of"
    with pytest.raises(UnreadableError):
        Query(path, topics="orders", startingTimestamp=wanted)


def test_a_stream_over_tcp_survives_an_ensemble_change(tmp_path: Path) -> None:
    """An ensemble change meanwhile: a bookie goes, another takes its place."""
    with Nodes(tmp_path, ("b0", "b1", "b2", "b3"), secret=b"swordfish-and-more") as nodes:
        with pyreplog.Cluster.connect(nodes.url, secret=b"swordfish-and-more") as cluster:
            topic = make(cluster, ensemble=3, write_quorum=2, ack_quorum=2)
            publish(topic, 2)
            with Query(None, cluster=nodes.url, secret="swordfish-and-more", topics="orders") as query:
                seen = offsets(query.read())
                nodes.stop("b1")
                publish(topic, 10)
                topic.close()
                seen += offsets(query.read())
        assert seen == list(range(120))


# ---- what is removed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lenient", [False, True])
def test_a_stream_of_a_trimmed_topic_fails_or_goes_on(tmp_path: Path, lenient: bool) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        with Query(path, topics="orders", failOnDataLoss=not lenient) as query:
            publish(topic, 10)
            topic.skip_to("keeps", 85)
            topic.trim()
            first = topic.start
            topic.close()
            assert 0 < first <= 85
            if lenient:
                assert offsets(query.read()) == list(range(first, 100))
            else:
                with pytest.raises(
                    TrimmedError, match=f"topic orders: offset 0 was removed, the first one is {first}; set"
                ):
                    query.next()


@pytest.mark.parametrize("lenient", [False, True])
def test_recreated_topic_of_a_stream_follows_fail_on_data_loss(tmp_path: Path, lenient: bool) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        publish(topic, 10)
        with Query(path, topics="orders", failOnDataLoss=not lenient) as query:
            query.read()
            topic.delete()
            with pytest.raises(NoSuchTopicError):
                query.next()
            topic = make(cluster)
            publish(topic, 3)
            topic.close()
            if lenient:
                assert offsets(query.read()) == list(range(30))
            else:
                with pytest.raises(
                    CheckpointError, match=r"topic orders was deleted and created again; begin with a new"
                ):
                    query.next()


def test_the_checkpoint_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with embedded(tmp_path / name) as cluster:
            make(cluster, name).close()
    with Query(tmp_path / "a", topics="a") as query, Query(tmp_path / "b", query.offset, topics="b") as other:
        with pytest.raises(CheckpointError, match=r"to other topics \(a\) than the query reads \(topic b\)"):
            other.next()


def test_planned_batch_fails_while_bookies_do_not_know_its_end(tmp_path: Path) -> None:
    """A batch was planned, and now none of those that answer knows how far the ledger went."""
    path = tmp_path / "data"
    with embedded(path) as cluster:
        topic = make(cluster)
        publish(topic, 3)
        with Query(path, topics="orders") as query:
            token = next(iter(decoded(query.offset).positions.values())).token
            end = json.dumps(
                {"source": "pyreplog", "tasks": 1, "topics": {"orders": {"-1": {"offset": 30, "token": token}}}, "v": 1}
            )
            shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("bookie-*"))
        topic.close()
    with Query(tmp_path / "copy", query.offset, topics="orders", failOnDataLoss=False) as later:
        with pytest.raises(pyreplog.ReplogError):
            later.rows(query.offset, end)


# ---- subscriptions ---------------------------------------------------------------------------------------------


def progress_of(end: str) -> dict[str, object]:
    """As Spark tells it, of a query that reads another source besides."""
    other = json.dumps({"t": {"0": 5}})
    return {"batchId": 3, "sources": [{"endOffset": other}, {"endOffset": None}, {"endOffset": end}]}


@pytest.mark.parametrize("form", [lambda end: end, progress_of, lambda end: json.dumps(progress_of(end))])
def test_a_stream_acknowledges_its_subscription(tmp_path: Path, form: Callable[[str], str]) -> None:
    path = tmp_path / "data"
    with embedded(path) as cluster:
        for name in ("orders-partition-0", "orders-partition-1", "single"):
            topic = make(cluster, name)
            publish(topic, 3)
            topic.close()
        with Query(path, topics="orders,single", maxOffsetsPerTrigger=45) as query:
            end = query.next()
        moved = acknowledge(cluster, form(end), "keeps")
        assert moved == {"orders-partition-0": 15, "orders-partition-1": 15, "single": 15}
        topic = cluster.topic("single")
        topic.skip_to("keeps", 25)
        acknowledge(cluster, form(end), "keeps")  # never back
        assert topic.stats().subscriptions[0].backlog_messages == 5
        with pytest.raises(NoSuchSubscriptionError):
            acknowledge(cluster, form(end), "nobody")
    assert len(column(path, "offset", topics="orders,single", subscription="keeps")) == 35


def test_a_stream_acknowledges_at_a_server(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as cluster, pyreplog.TopicServer(cluster) as server:
        topic = make(cluster)
        publish(topic, 3)
        with Query(tmp_path / "data", topics="orders", startingOffsets=0) as query:
            (position,) = decoded(query.offset).positions.values()
        offset = {
            "source": "pyreplog",
            "tasks": 1,
            "topics": {"orders": {"-1": {"offset": 21, "token": position.token}}},
            "v": 1,
        }
        with pyreplog.connect(f"pyreplog://{server.address}") as client:
            assert acknowledge(client, offset, "keeps") == {"orders": 21}
            assert topic.stats().subscriptions[0].backlog_messages == 9
            offset["topics"]["orders"]["-1"]["offset"] = 99  # type: ignore[index]
            with pytest.raises(OutOfRangeError, match="expected an offset up to its end, 30, found 99"):
                acknowledge(client, offset, "keeps")
            offset["topics"]["orders"]["-1"]["token"] = "another"  # type: ignore[index]
            with pytest.raises(NoSuchTopicError, match="it was deleted, and created again"):
                acknowledge(client, offset, "keeps")


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        ("", "expected JSON"),
        ("[1]", "expected the JSON of a progress"),
        ('{"a": 1}', "to another source"),
        ({"sources": []}, "no offset of a pyreplog source"),
        ({"logs": {}, "source": "pyreplog", "tasks": 1, "v": 1}, "logs, which have none"),
    ],
)
def test_progress_that_makes_no_sense(tmp_path: Path, progress: str, says: str) -> None:
    with embedded(tmp_path / "data") as cluster, pytest.raises(CheckpointError, match=says):
        acknowledge(cluster, progress, "keeps")
