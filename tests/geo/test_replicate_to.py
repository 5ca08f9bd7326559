"""Messages whose publisher names target clusters reach these clusters, and no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import Cluster
from pyreplog.errors import InvalidArgumentError, UnsupportedRequestError, WrongTypeError
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.origins.replicate_to import decode_names
from pyreplog.topic.model.wire.protocol import ORIGINS, SUBSCRIPTIONS
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server import topic_server
from tests.geo.places import Place, two_servers
from tests.geo.sites import SYNCED, values
from tests.waiting import until

Lists = list[frozenset[str] | None]


class Publishing(Place):
    """A cluster that replicates a topic."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        super().__init__(stack, path)
        self.serve()

    @property
    def address(self) -> str:
        assert self.server is not None
        return self.server.address

    def sends_to(self, *others: Publishing, **settings: Any) -> None:
        for other in others:
            self.cluster.geo.add_cluster(other.name, f"pyreplog://{other.wire.address}")
        self.cluster.geo.set_policy("t", targets=[other.name for other in others], **settings)

    def topic(self) -> Topic:
        topic = self.cluster.topic("t", **SYNCED)
        assert isinstance(topic, Topic)
        return topic

    def status(self, target: str) -> ReplicatorStatus:
        return until(lambda: next((row for row in self.cluster.geo.status("t") if row.target == target), None))

    def has_sent(self, target: str, end: int | None = None) -> None:
        """Wait until a target has all messages of the topic that are meant for it."""
        last = self.topic().end if end is None else end
        until(lambda: (row := self.status(target)).stored == row.end >= last and not row.unsent_messages)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Publishing]]:
    with ExitStack() as stack:
        yield [Publishing(stack, tmp_path / name) for name in ("a", "b", "c")]


def lists(topic: Topic) -> Lists:
    """Return the list of target clusters of each entry of a topic."""
    read: Lists = []
    at = topic.start
    while at < topic.end:
        batch = topic.managed.entries.read(at, bytes_max=1 << 20).result(30.0)
        names = [entry.replicate_to for entry in batch.entries]
        read += [None if value is None else decode_names(value) for value in names]
        at = batch.end
    return read


def skipped(row: ReplicatorStatus) -> int:
    return dict(row.skipped).get("filtered", 0)


def test_every_way_to_publish_names_target_clusters(places: list[Publishing]) -> None:
    a, b, _ = places
    a.sends_to(b)
    with a.topic().producer("p") as producer:
        topic = a.topic()
        topic.publish(b"yes 0")
        topic.publish(b"no 1", replicate_to=())
        topic.publish(b"yes 2", replicate_to=("b", "c"))
        topic.submit(b"no 3", replicate_to=["c"]).result(20.0)
        topic.publish_batch([b"no 4", b"no 5"], replicate_to=("c",))
        topic.submit_batch([b"yes 6", b"yes 7"], replicate_to=("b",)).result(20.0)
        producer.publish(b"no 8", properties={"x": "y"}, replicate_to=())
        producer.submit(b"yes 9", replicate_to=("b",)).result(20.0)
        producer.publish_batch([b"no 10"], replicate_to=())
        producer.submit_batch([b"yes 11"]).result(20.0)
        asyncio.run(topic.publish_async(b"no 12", replicate_to=()))
        asyncio.run(topic.publish_batch_async([b"no 13"], replicate_to=()))
        asyncio.run(producer.publish_async(b"no 14", replicate_to=()))
        asyncio.run(producer.publish_batch_async([b"yes 15"], replicate_to=("b",)))
    a.has_sent("b", 16)
    assert [int(value.split()[1]) for value in values(a.topic())] == [*range(16)]
    assert values(b.topic()) == [value for value in values(a.topic()) if value.startswith(b"yes")]
    until(lambda: skipped(a.status("b")) == 9)
    assert lists(b.topic()) == [None, {"b", "c"}, {"b"}, {"b"}, None, {"b"}]


def test_messages_that_are_collected_keep_their_lists_apart(places: list[Publishing]) -> None:
    """Single messages that are collected become one entry only if they have the same list."""
    a, b, _ = places
    a.sends_to(b)
    topic = a.topic()
    named: list[Sequence[str] | None] = [None, ("b",), (), ("c",), ("c", "b"), ("b", "c")]
    futures = [topic.submit(b"%d" % at, replicate_to=named[at // 3 % 6]) for at in range(600)]
    assert [future.result(20.0) for future in futures] == [*range(600)]
    a.has_sent("b", 600)
    arrived = [at for at in range(600) if at // 3 % 6 not in (2, 3)]
    assert values(b.topic()) == [b"%d" % at for at in arrived]


def test_over_tcp_with_numbers_that_come_twice(places: list[Publishing]) -> None:
    """Entries that the owner shortens, because it has some of their messages already, keep their lists."""
    a, b, _ = places
    a.sends_to(b)
    a.cluster.topic("t", deduplicate=True, **SYNCED)
    with pyreplog.connect(f"pyreplog://{a.address}") as client:
        topic = client.topic("t")
        with topic.producer("p") as producer:
            producer.publish_batch([b"no 0", b"no 1"], sequences=[0, 1], replicate_to=())
            producer.publish_batch([b"no 0", b"no 1", b"no 2"], sequences=[0, 1, 2], replicate_to=("c",))
            producer.publish_batch([b"no 2", b"yes 3"], sequences=[2, 3], replicate_to=("b",))
            producer.publish_batch([b"yes 3", b"yes 4"], sequences=[3, 4])
            producer.publish(b"no 5", replicate_to=())
        futures = [topic.submit(b"yes" if at % 3 else b"no", replicate_to=None if at % 3 else ()) for at in range(99)]
        assert [future.result(20.0) for future in futures] == [*range(6, 105)]
    a.has_sent("b", 105)
    assert values(b.topic()) == [b"yes 3", b"yes 4", *[b"yes"] * 66]
    assert lists(a.topic())[:5] == [set(), {"c"}, {"b"}, None, set()]


def test_messages_of_partitions_reach_only_the_named_clusters(places: list[Publishing]) -> None:
    a, b, _ = places
    a.sends_to(b)
    topic = a.cluster.topic("t", partitions=2, **SYNCED)
    keys = [b"%d" % at for at in range(20)]
    topic.publish_batch([b"no"] * 20, keys, replicate_to=())
    topic.publish_batch([b"yes"] * 20, keys, replicate_to=("b",))
    with topic.producer("p") as producer:
        producer.publish(b"no", b"0", replicate_to=("c",))
        producer.publish_batch([b"no"] * 20, keys, replicate_to=("c",))
        producer.publish(b"yes", b"0")
    until(lambda: len(a.cluster.geo.status("t")) == 2)
    until(lambda: all(row.stored == row.end and not row.unsent_messages for row in a.cluster.geo.status("t")))
    there = b.cluster.topic("t", create=False)
    assert isinstance(there, PartitionedTopic)
    until(lambda: sum(len(there.partition(at)) for at in range(2)) == 21)
    assert {value for at in range(2) for value in values(there.partition(at))} == {b"yes"}


def test_three_clusters_of_a_mesh_have_what_is_for_them(places: list[Publishing]) -> None:
    a, b, c = places
    for place in places:
        place.sends_to(*[other for other in places if other is not place])
    named: dict[bytes, Sequence[str] | None] = {
        b"all": None,
        b"b": ("b",),
        b"c": ("c",),
        b"none": (),
        b"both": ("c", "b"),
    }
    for _ in range(10):
        for value, names in named.items():
            a.topic().publish(value, replicate_to=names)
    b.topic().publish(b"from b", replicate_to=("c",))
    for target in ("b", "c"):
        a.has_sent(target, 50)
    until(lambda: len(c.topic()) == 31)
    assert values(b.topic()).count(b"from b") == 1 and b"from b" not in values(a.topic())
    assert [value for value in values(b.topic()) if value != b"from b"] == [b"all", b"b", b"both"] * 10
    assert [value for value in values(c.topic()) if value != b"from b"] == [b"all", b"c", b"both"] * 10


def test_a_forwarded_message_keeps_its_list(places: list[Publishing]) -> None:
    """In a chain, a message that does not name the cluster in the middle does not get past it."""
    a, b, c = places
    b.sends_to(c, forward="all")
    a.sends_to(b)
    for value, names in ((b"b", ["b"]), (b"both", ["b", "c"]), (b"c", ["c"]), (b"none", []), (b"all", None)):
        a.topic().publish(value, replicate_to=names)
    a.has_sent("b", 5)
    until(lambda: len(c.topic()) == 2)
    b.has_sent("c", 3)
    assert values(b.topic()) == [b"b", b"both", b"all"] and lists(b.topic()) == [{"b"}, {"b", "c"}, None]
    assert values(c.topic()) == [b"both", b"all"] and lists(c.topic()) == [{"b", "c"}, None]


def test_a_consumer_of_both_clusters_is_ready_though_messages_are_withheld(places: list[Publishing]) -> None:
    """A message that is withheld from the other cluster counts neither as lost in a fail-over nor as lag."""
    a, b, _ = places
    a.sends_to(b, replicated_subscriptions=True)
    b.sends_to(a, replicated_subscriptions=True)
    topic = a.topic()
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        for at in range(10):
            topic.publish(b"%d" % at, replicate_to=() if at % 2 else None)
        for _ in range(6):
            consumer.acknowledge(consumer.receive(timeout=20.0))
        consumer.flush()
        until(lambda: any(row.is_ready and not row.error for row in a.cluster.geo.readiness("t")))
        until(lambda: "s" in b.topic().subscriptions())
        (row,) = a.cluster.geo.status("t")
        assert row.unsent_messages == 0 and row.oldest_unsent_us is None and not row.alarm
        until(lambda: skipped(a.status("b")) == 5)
    until(lambda: b.topic().subscription("s").acked_ranges().acked.covers(0, 3))
    with b.topic().subscribe("s", type="shared") as consumer:
        assert sorted(int(consumer.receive(timeout=20.0).value) for _ in range(2)) == [6, 8]
    until(lambda: positions(a) == {("", 6), ("b", 6)})


def positions(place: Publishing) -> set[tuple[str, int | None]]:
    """Return the position of the subscription in each cluster, in offsets of messages that were published here."""
    return {(row.at, row.below) for row in place.cluster.geo.where("t", "s") if not row.origin}


def test_older_target_is_reported_and_sent_no_messages_with_target_lists(
    places: list[Publishing], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = places
    with monkeypatch.context() as patch:
        patch.setattr(topic_server, "FEATURES", frozenset({ORIGINS, SUBSCRIPTIONS}))
        b.serve()
    a.topic().publish_batch([b"0", b"1"])
    a.sends_to(b)
    a.topic().publish(b"2", replicate_to=())  # a message without a list does not need the feature
    a.topic().publish(b"3")
    a.has_sent("b", 4)
    a.topic().publish(b"4", replicate_to=("b",))
    a.topic().publish(b"5")
    until(lambda: "does not know 'replicate-to': upgrade it" in a.status("b").error)
    row = a.status("b")
    assert (row.state, row.unsent_messages) == ("failed", 2) and "upgrade it" in row.alarm
    assert values(b.topic()) == [b"0", b"1", b"3"]
    b.serve()
    a.cluster.geo.pause("t")  # a refused request is repeated after 30 s, or at once:
    until(lambda: a.status("b").state == "paused")
    a.cluster.geo.resume("t")
    until(lambda: len(b.topic()) == 5)
    until(lambda: not a.status("b").alarm)
    assert values(b.topic()) == [b"0", b"1", b"3", b"4", b"5"] and lists(b.topic())[-2:] == [{"b"}, None]


@pytest.mark.parametrize("producer", [None, "p"])
def test_an_older_owner_gets_no_message_with_a_list(
    places: list[Publishing], monkeypatch: pytest.MonkeyPatch, producer: str | None
) -> None:
    a = places[0]
    a.cluster.topic("t", deduplicate=True, **SYNCED)
    with monkeypatch.context() as patch:
        patch.setattr(topic_server, "FEATURES", frozenset({ORIGINS, SUBSCRIPTIONS}))
        a.serve()
    with pyreplog.connect(f"pyreplog://{a.address}", timeout=20.0) as client:
        topic = client.topic("t")
        topic.publish(b"0", producer=producer)
        with pytest.raises(UnsupportedRequestError, match="does not know 'replicate-to': upgrade it"):
            topic.publish(b"1", replicate_to=("b",), producer=producer)
        with pytest.raises(UnsupportedRequestError):
            topic.publish_batch([b"1"], replicate_to=(), producer=producer)
        topic.publish(b"2", producer=producer)
        assert values(a.topic()) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("names", "error"),
    [("b", WrongTypeError), ([b"b"], WrongTypeError), ([""], InvalidArgumentError), (["b"] * 17, InvalidArgumentError)],
)
def test_a_malformed_list_is_refused(places: list[Publishing], names: Any, error: type[Exception]) -> None:
    topic = places[0].topic()
    for publish in (topic.publish, topic.submit):
        with pytest.raises(error, match=r"replicate_to|a name has"):
            publish(b"1", replicate_to=names)
    for publish_batch in (topic.publish_batch, topic.submit_batch):
        with pytest.raises(error, match=r"replicate_to|a name has"):
            publish_batch([b"1"], replicate_to=names)
    assert topic.end == 0


def test_the_next_owner_sends_messages_meant_for_the_target_only(tmp_path: Path) -> None:
    """The next owner sends the messages that are meant for the target, and no others."""
    with two_servers(tmp_path, "t") as both:
        with pyreplog.connect(both.address) as client:
            topic = client.topic("t", **SYNCED)
            topic.publish_batch([b"yes 0", b"yes 1"], replicate_to=("b",))
            topic.publish_batch([b"no 2", b"no 3"], replicate_to=())
            until(lambda: "t" in both.b.topics.names() and opened(both.b).end == 2)
            both.part()
            for at in range(4, 40):
                is_for_b = at % 3 == 0
                topic.publish(
                    b"%b %d" % (b"yes" if is_for_b else b"no", at), replicate_to=("b",) if is_for_b else ("c",)
                )
        both.kill_owner()
        until(lambda: opened(both.b).end == 14)
        until(lambda: all(row.stored == row.end == 40 for row in both.a.geo.status(everywhere=True)))
        rows = both.a.geo.status(everywhere=True)
        assert [(row.topic, row.target, row.unsent_messages) for row in rows] == [("t", "b", 0)]
        assert values(opened(both.b)) == [b"yes %d" % at for at in (0, 1, *range(6, 40, 3))]


def opened(cluster: Cluster) -> Topic:
    topic = cluster.topic("t", **SYNCED)
    assert isinstance(topic, Topic)
    return topic
