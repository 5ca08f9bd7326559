"""Clusters that replicate to each other by the policies of `Cluster.geo` alone: no client runs, and failures happen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import pyreplog
from pyreplog import BacklogFullError
from pyreplog.cluster import Cluster
from pyreplog.geo.geo_cursor import GeoCursor
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.geo.places import two_servers
from tests.geo.sites import SYNCED, values
from tests.topic.remoting import Wire
from tests.waiting import until

NOWHERE = "127.0.0.1:1"
SECRET, OTHER = b"0123456789abcdef-b", b"fedcba9876543210-x"


class Pair:
    """Two clusters in this process, each with a server, and a wire in each direction that can be cut."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._stack = ExitStack()
        self.a = self._stack.enter_context(Cluster.embedded(folder / "a", bookies=1))
        self.b = self._stack.enter_context(Cluster.embedded(folder / "b", bookies=1))
        self.a_server = self._stack.enter_context(TopicServer(self.a))
        self.b_server = self._stack.enter_context(TopicServer(self.b, **options))
        self.to_a = self._stack.enter_context(Wire(self.a_server.address))
        self.to_b = self._stack.enter_context(Wire(self.b_server.address))

    def connect(self) -> None:
        """Add each cluster to the other one."""
        self.a.geo.add_cluster("b", f"pyreplog://{self.to_b.address}")
        self.b.geo.add_cluster("a", f"pyreplog://{self.to_a.address}")

    def row(self, topic: str = "orders") -> ReplicatorStatus:
        """Return the status of a topic of a; wait until there is one."""
        return until(lambda: next(iter(self.a.geo.status(topic)), None))

    def is_sent(self, topic: str = "orders", end: int = 0) -> None:
        """Wait until b has all messages of a topic of a."""
        until(lambda: (row := self.row(topic)).end >= end and row.stored == row.end and not row.unsent_messages)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        yield pair
    finally:
        pair.close()


def opened(cluster: Cluster, name: str = "orders") -> Topic:
    topic = cluster.topic(name, **SYNCED)
    assert isinstance(topic, Topic)
    return topic


def test_messages_published_in_one_cluster_are_replicated_to_the_other(pair: Pair) -> None:
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"])
    orders = opened(pair.a)
    orders.publish_batch([b"1", b"2"], keys=[b"x", None])
    orders.publish(b"3", properties={"colour": "red"})
    pair.is_sent(end=3)
    there = pair.b.topic("orders", create=False)
    assert isinstance(there, Topic) and values(there) == [b"1", b"2", b"3"]
    (batch,) = there.read(2)
    assert batch[0].properties == {"colour": b"red"}
    assert there.config == orders.config
    assert [metric.name for metric in pair.a.metrics() if metric.name.startswith("pyreplog_geo_")]


def test_clusters_replicate_to_each_other_without_loops(pair: Pair) -> None:
    pair.connect()
    pair.a.geo.set_policy("", prefix=True, targets=["b"])
    pair.b.geo.set_policy("", prefix=True, targets=["a"])
    here, there = opened(pair.a), opened(pair.b)
    for at in range(20):
        here.publish(b"a%d" % at)
        there.publish(b"b%d" % at)
    until(lambda: here.end == there.end == 40)
    for topic in (here, there):
        for origin in (b"a", b"b"):
            assert [value for value in values(topic) if value[:1] == origin] == [
                b"%b%d" % (origin, at) for at in range(20)
            ]
    pair.is_sent(end=40)
    assert here.end == there.end == 40, "messages went around"


def test_backlogs_that_are_released_at_once_begin_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replication reads its stored position in a thread of its own: a barrier holds each until all are there."""
    names, together, recover = [f"t{number}" for number in range(4)], Barrier(4), GeoCursor.recover

    def recover_together(cursor: GeoCursor) -> None:
        together.wait(20.0)
        recover(cursor)

    monkeypatch.setattr(GeoCursor, "recover", recover_together)
    pair.connect()
    for name in names:
        opened(pair.a, name).publish_batch([b"1", b"2"])
    pair.a.geo.set_policy("t", prefix=True, targets=["b"])
    for name in names:
        pair.is_sent(name, 2)


def test_subscriptions_follow_a_topic_that_has_another_identity(pair: Pair) -> None:
    """New messages have the same acknowledgements in both clusters. What is acknowledged while the topic gets its new
    identity comes again. Acknowledgements of messages under the former identity are not exchanged: readiness stays
    unknown until a seek."""
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"], replicated_subscriptions=True)
    pair.b.geo.set_policy("orders", targets=["a"], replicated_subscriptions=True)
    orders, there = opened(pair.a), opened(pair.b)
    with orders.subscribe("s", start="earliest") as consumer:
        # before acknowledging: otherwise b starts with these acknowledgements as its base
        until(lambda: "s" in there.subscriptions())
        for round in range(2):
            for at in range(3):
                orders.publish(b"%d" % (3 * round + at))
                consumer.acknowledge(consumer.receive(timeout=20.0))
            consumer.flush()
            until(lambda: len(there) == orders.end)
            while not there.subscription("s").acked_ranges().acked.covers(0, there.end):
                message = consumer.receive(timeout=0.1)
                if message is not None:  # it comes again: it was delivered before the cursor had the new identity
                    consumer.acknowledge(message)
            if not round:
                orders.renew_origin(orders.end)
        (row,) = pair.a.geo.readiness("orders")
        assert not row.is_ready and not row.is_known
        consumer.seek(orders.end)
        until(lambda: any(row.is_ready and not row.error for row in pair.a.geo.readiness("orders")))
    assert [origin.token for origin in there.origins.all()] == [orders.origins.former[0][0].token, orders.origin.token]


def test_the_state_while_the_target_is_away(pair: Pair) -> None:
    """While the target cannot be reached, the status never claims that all messages were sent."""
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"])
    orders = opened(pair.a)
    orders.publish_batch([b"1", b"2"])
    pair.is_sent(end=2)
    pair.to_b.lead_to(NOWHERE)
    pair.to_b.cut()
    orders.publish_batch([b"3", b"4", b"5"])
    until(lambda: pair.row().state == "connecting" and pair.row().error)
    row = pair.row()
    assert (row.stored, row.end, row.unsent_messages) == (2, 5, 3) and row.unsent_bytes > 0
    assert row.oldest_unsent_us is not None and "no server at pyreplog://" in row.error
    pair.to_b.lead_to(pair.b_server.address)
    pair.is_sent(end=5)


def test_partitions_reach_the_target_with_their_number(pair: Pair) -> None:
    pair.connect()
    pair.a.geo.set_policy("clicks", targets=["b"])
    clicks = pair.a.topic("clicks", partitions=2, **SYNCED)
    clicks.publish_batch([b"%d" % at for at in range(20)], keys=[b"%d" % at for at in range(20)])
    until(lambda: len(pair.a.geo.status("clicks")) == 2 and not any(row.unsent_messages for row in pair.a.geo.status()))
    there = pair.b.topic("clicks", create=False)
    assert isinstance(there, PartitionedTopic) and there.partitions == 2
    for at in range(2):
        assert values(there.partition(at)) == values(clicks.partition(at))
    clicks = pair.a.topic("clicks", partitions=3)
    until(lambda: len(pair.a.geo.status("clicks")) == 3)
    until(lambda: pair.b.topics.partitioned.find("clicks") == 3)


@pytest.mark.parametrize("is_away", [False, True])
def test_messages_and_acknowledgements_of_a_new_partition_arrive(pair: Pair, is_away: bool) -> None:
    """A new partition is created at the target as well, and its messages and acknowledgements arrive. is_away: the
    target cannot be reached while the partition is added and used."""
    pair.connect()
    pair.a.geo.set_policy("clicks", targets=["b"], replicated_subscriptions=True)
    pair.b.geo.set_policy("clicks", targets=["a"], replicated_subscriptions=True)
    clicks = pair.a.topic("clicks", partitions=2, **SYNCED)
    assert isinstance(clicks, PartitionedTopic)
    old = {b"old %d" % at for at in range(20)}
    clicks.publish_batch(sorted(old), keys=sorted(old))
    clicks.create_subscription("s", start="earliest")
    until(lambda: pair.b.topics.partitioned.find("clicks") == 2)
    there = pair.b.topic("clicks", create=False)
    assert isinstance(there, PartitionedTopic)
    until(lambda: sum(len(there.partition(at)) for at in range(2)) == 20)
    until(lambda: all("s" in there.partition(at).subscriptions() for at in range(2)))
    if is_away:
        for wire in (pair.to_a, pair.to_b):
            wire.lead_to(NOWHERE)
            wire.cut()
    clicks = pair.a.topic("clicks", partitions=3)
    assert isinstance(clicks, PartitionedTopic)
    new = [b"new %d" % at for at in range(10)]
    clicks.partition(2).publish_batch(new)
    acked = {b"new 1", b"new 4", b"new 9", b"old 3"}
    with clicks.subscribe("s", type="shared") as consumer:
        for _ in range(30):
            message = consumer.receive(timeout=20.0)
            assert message is not None
            if message.value in acked:
                consumer.acknowledge(message)
        consumer.flush()
    if is_away:
        until(lambda: len(pair.a.geo.status("clicks")) == 3)
        assert pair.b.topics.partitioned.find("clicks") == 2
        pair.to_a.lead_to(pair.a_server.address)
        pair.to_b.lead_to(pair.b_server.address)
    until(lambda: pair.b.topics.partitioned.find("clicks") == 3)
    there = pair.b.topic("clicks", partitions=3)
    assert isinstance(there, PartitionedTopic)
    until(lambda: values(there.partition(2)) == new)

    def is_ready() -> bool:
        rows = pair.a.geo.readiness("clicks")
        return len(rows) == 3 and all(row.is_ready and not row.error and not row.alarm for row in rows)

    until(is_ready)
    with there.subscribe("s", type="shared") as consumer:
        messages = [consumer.receive(timeout=20.0) for _ in range(30 - len(acked))]
        assert {message.value for message in messages if message is not None} == {*old, *new} - acked
    there.partition(2).publish(b"back")
    until(lambda: values(clicks.partition(2)) == [*new, b"back"])


def test_a_target_may_have_more_partitions(pair: Pair) -> None:
    pair.connect()
    pair.b.topics.partitioned.stored("clicks", 4, create=True, wait=0.0, settings=SYNCED)
    pair.a.geo.set_policy("clicks", targets=["b"])
    clicks = pair.a.topic("clicks", partitions=2, **SYNCED)
    clicks.publish_batch([b"%d" % at for at in range(20)], keys=[b"%d" % at for at in range(20)])
    until(lambda: len(pair.a.geo.status("clicks")) == 2 and not any(row.unsent_messages for row in pair.a.geo.status()))
    there = pair.b.topic("clicks", create=False)
    assert isinstance(there, PartitionedTopic) and there.partitions == 4
    assert [values(there.partition(at)) for at in range(2)] == [values(clicks.partition(at)) for at in range(2)]


def test_a_topic_that_is_created_again_is_another_origin(pair: Pair) -> None:
    """The new topic has offsets of the former one. The target keeps the former messages, and stores the new ones as
    those of another origin."""
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"])
    opened(pair.a).publish_batch([b"1", b"2", b"3"])
    pair.is_sent(end=3)
    pair.a.topic("orders").delete()
    opened(pair.a).publish_batch([b"4", b"5"])
    there = opened(pair.b)
    until(lambda: there.end == 5)
    pair.is_sent(end=2)
    assert values(there) == [b"1", b"2", b"3", b"4", b"5"] and not pair.row().alarm


def test_orders_hold_at_once_and_over_a_restart(tmp_path: Path) -> None:
    with Cluster.embedded(tmp_path / "b", bookies=1) as b, TopicServer(b) as server:
        with Cluster.embedded(tmp_path / "a", bookies=1) as a:
            a.geo.add_cluster("b", f"pyreplog://{server.address}")
            a.geo.set_policy("orders", targets=["b"])
            a.geo.pause("orders")
            opened(a).publish_batch([b"1", b"2"])
            until(lambda: [row.state for row in a.geo.status()] == ["paused"])
        with Cluster.embedded(tmp_path / "a", bookies=1) as a:
            assert a.topics.opened() == []
            # the manager opened the topic, because it has unsent messages
            until(lambda: [row.state for row in a.geo.status()] == ["paused"])
            assert a.geo.status()[0].unsent_messages == 2 and b.topics.names() == []
            a.geo.resume("orders")
            until(lambda: [row.unsent_messages for row in a.geo.status()] == [0])
            assert values(opened(b)) == [b"1", b"2"]
            cursor = a.metadata.get("/topics/orders/subscriptions/pyreplog.geo.b")
        with Cluster.embedded(tmp_path / "a", bookies=1) as a, TopicServer(a):
            # the test waits for this topic's replication: by then the manager had time to open "orders"
            opened(a, "other")
            a.geo.set_policy("other", targets=["b"])
            manager = a.geo.replicator_manager
            assert manager is not None
            until(lambda: a.geo.status("other") and "orders" in manager.complete)
            assert [topic.name for topic in a.topics.opened()] == ["other"], "a topic that is complete was opened"
            assert a.metadata.get("/topics/orders/subscriptions/pyreplog.geo.b") != cursor, (
                "the mark was stored at the end"
            )


def test_a_cluster_that_is_removed_keeps_no_messages(pair: Pair) -> None:
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"])
    orders = pair.a.topic("orders", ensemble=1, roll_entries=2)
    assert isinstance(orders, Topic)
    pair.to_b.lead_to(NOWHERE)
    pair.to_b.cut()
    for at in range(10):
        orders.publish(b"%d" % at)
    until(lambda: [cursor.name for cursor in orders.internal_stats().cursors] == ["pyreplog.geo.b"])
    assert orders.trim() == 0
    pair.a.geo.remove_cluster("b", force=True)
    until(lambda: orders.internal_stats().cursors == ())
    until(lambda: orders.trim() >= 8)
    assert "no cluster of this name" in pair.row().alarm


def test_status_reports_a_wrong_secret_until_the_file_is_corrected(tmp_path: Path) -> None:
    pair = Pair(tmp_path, secret=SECRET)
    try:
        file = tmp_path / "b.secret"
        file.write_bytes(SECRET)
        pair.a.geo.add_cluster("b", f"pyreplog://{pair.b_server.address}", secret_file=file)
        file.write_bytes(OTHER)
        pair.a.geo.set_policy("orders", targets=["b"])
        opened(pair.a).publish(b"1")
        until(lambda: str(file) in pair.row().error)
        assert "its servers refuse the secret in" in pair.row().error and pair.row().unsent_messages == 1
        assert not any(key.decode() in str(pair.row()) for key in (SECRET, OTHER))
        file.write_bytes(SECRET)
        pair.a.geo.set_policy("orders", rate_bytes=1 << 30)  # a round reads the file again
        pair.is_sent(end=1)
    finally:
        pair.close()


def test_another_cluster_behind_the_url(pair: Pair, tmp_path: Path) -> None:
    """A cluster with another id at the known address gets no topic."""
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"])
    with Cluster.embedded(tmp_path / "c", bookies=1) as c, TopicServer(c) as server:
        pair.to_b.lead_to(server.address)
        opened(pair.a).publish(b"1")
        until(lambda: "the server is of" in pair.row().error)
        assert "made anew, remove it (`geo cluster remove --force`)" in pair.row().error
        assert c.topics.names() == [] and pair.row().unsent_messages == 1
        pair.to_b.lead_to(pair.b_server.address)
        pair.is_sent(end=1)


def test_the_owner_is_killed_and_no_client_is_left(tmp_path: Path) -> None:
    """Another server takes the topic over, and sends what the target lacks."""
    with two_servers(tmp_path, "orders") as both:
        with pyreplog.connect(both.address) as client:
            orders = client.topic("orders", **SYNCED)
            orders.publish_batch([b"1", b"2"])
            until(lambda: "orders" in both.b.topics.names() and opened(both.b).end == 2)
            both.part()
            orders.publish_batch([b"3", b"4"])
        both.kill_owner()
        until(lambda: opened(both.b).end == 4)
        assert values(opened(both.b)) == [b"1", b"2", b"3", b"4"]
        rows = both.a.geo.status(everywhere=True)
        assert [(row.topic, row.target, row.unsent_messages) for row in rows] == [("orders", "b", 0)]
        assert both.processes.url.startswith("sqlite:") and both.a.topics.owner("orders") is not None


@pytest.mark.parametrize("policy", ["hold", "error", "detach"])
def test_a_backlog_beyond_its_bound(pair: Pair, policy: Any) -> None:
    pair.connect()
    pair.a.geo.set_policy("orders", targets=["b"], backlog_bytes=10_000, backlog_policy=policy)
    orders = pair.a.topic("orders", ensemble=1, retention_bytes=None)
    assert isinstance(orders, Topic)
    orders.publish(b"0")
    pair.is_sent(end=1)
    pair.to_b.lead_to(NOWHERE)
    pair.to_b.cut()
    published = orders.publish_batch([b"x" * 1000] * 12).stop
    if policy == "detach":
        until(lambda: pair.row().state == "detached")
        assert "resync" in pair.row().alarm and orders.publish(b"1") == published
        pair.to_b.lead_to(pair.b_server.address)
        pair.a.geo.resync("orders", "b")
        pair.is_sent(end=published + 1)
        assert pair.row().alarm == ""
        return
    until(lambda: orders.stats().publishing == {"hold": "held", "error": "refused"}[policy])
    if policy == "error":
        with pytest.raises(BacklogFullError, match="more than backlog_bytes=10000 wait for the cluster b"):
            orders.publish(b"1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(orders.publish, b"1") if policy == "hold" else None
        pair.to_b.lead_to(pair.b_server.address)  # only this resync lets publishers go on
        until(lambda: orders.stats().publishing == "open")
        assert waiting is None or waiting.result(60.0) == published
    pair.is_sent(end=published + (waiting is not None))
