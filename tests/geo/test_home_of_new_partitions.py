"""A partition that is added later begins with the home of partition 0 of the same subscription."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, load_subscription, subscription_key
from pyreplog.geo.acks.subscription_state import NO_CLUSTER, Home
from pyreplog.geo.replicator_manager import ReplicatorManager
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.topic.owner.topic import Topic
from tests.geo.sites import SYNCED
from tests.geo.test_handover_orders import Place, numbers
from tests.waiting import until

KEYS = [b"%d" % number for number in range(40)]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """Return two clusters with a topic of two partitions and the subscription s, whose home is a."""
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")
        a.know(b)
        b.know(a)
        topic = a.cluster.topic("t", partitions=2, **SYNCED)
        topic.create_subscription("s", start="earliest")
        until(lambda: a.is_ready(2))
        assert {row.phase for row in a.cluster.geo.take_over("t", "s")} == {"done"}
        until(lambda: homes(b) == ["a"] * 2)
        yield a, b


def homes(place: Place) -> list[str | None]:
    """Return the home of each partition, as readiness shows it: "" is the cluster itself, None any cluster."""
    return [row.home for row in place.cluster.geo.readiness("t")]


def stored(place: Place, partition: int) -> str:
    return load_subscription(place.cluster.metadata, f"t-partition-{partition}", "s").home


def home_in(place: Place, number: int = 1) -> str:
    return Home(number, place.cluster.topics.cluster_id).text()


def store(place: Place, partition: int, home: str) -> None:
    """Store another home in the metadata, as a process of another version may."""
    key = subscription_key(f"t-partition-{partition}", "s")
    versioned = place.cluster.metadata.get(key)
    assert versioned is not None
    metadata = replace(SubscriptionMetadata.decode(versioned.value), home=home)
    place.cluster.metadata.put(key, metadata.encode(), versioned.version)


def partition_of(place: Place, partition: int) -> Topic:
    topic = place.cluster.topic(f"t-partition-{partition}", create=False)
    assert isinstance(topic, Topic)
    return topic


@pytest.mark.parametrize("grower", ["a", "b"])
def test_consumers_of_the_home_alone_get_messages_of_new_partitions(places: tuple[Place, Place], grower: str) -> None:
    a, b = places
    until(lambda: stored(b, 0) != "")
    with b.cluster.topic("t", create=False).subscribe("s", start="earliest", type="shared") as other:
        (a if grower == "a" else b).cluster.topic("t", partitions=4)
        topic = a.cluster.topic("t", partitions=4)
        with topic.subscribe("s", start="earliest", type="shared") as consumer:
            topic.publish_batch(KEYS, keys=KEYS)
            assert sorted(numbers(consumer, 40)) == [*range(40)]
            until(lambda: b.cluster.topic("t", create=False).partitions == 4)  # its consumers follow
            until(lambda: sum(len(partition_of(b, at)) for at in range(4)) == 40)
            until(lambda: homes(a) == [""] * 4 and homes(b) == ["a"] * 4)
            until(lambda: all("wait here" in row.alarm for row in b.cluster.geo.status("t")))
            assert other.receive(timeout=0.0) is None
    until(lambda: [stored(place, at) for place in (a, b) for at in (1, 2, 3)] == [""] * 6)
    assert stored(a, 0) == stored(b, 0) == home_in(a)


def test_consumer_that_is_first_waits_until_the_home_is_known(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It subscribes in the other cluster before the replication of the new partition has begun there."""
    a, b = places
    until(lambda: stored(b, 0) != "")
    start = SubscriptionReplication.start

    def not_in_b(self: SubscriptionReplication) -> None:
        if self.topic.origin.cluster != b.cluster.topics.cluster_id or not self.topic.name.endswith("-2"):
            start(self)

    monkeypatch.setattr(SubscriptionReplication, "start", not_in_b)
    topic = a.cluster.topic("t", partitions=3)
    topic.publish_batch(KEYS, keys=KEYS)
    count = len(partition_of(a, 2))
    until(lambda: b.cluster.topic("t", create=False).partitions == 3)
    with partition_of(b, 2).subscribe("s", start="earliest", type="shared") as other:
        until(lambda: len(partition_of(b, 2)) == count)
        assert other.receive(timeout=0.0) is None and stored(b, 2) == home_in(a)
    partition_of(b, 2).close()
    with partition_of(b, 2).subscribe("s", start="earliest", type="shared") as other:  # also after a crash
        assert other.receive(timeout=0.0) is None and stored(b, 2) == home_in(a)
    monkeypatch.undo()
    partition_of(b, 2).close()
    with partition_of(b, 2).subscribe("s", start="earliest", type="shared") as other:
        until(lambda: homes(b) == ["a"] * 3 and stored(b, 2) == "")
        until(lambda: any("wait here" in row.alarm for row in b.cluster.geo.status("t") if row.topic.endswith("-2")))
        assert other.receive(timeout=0.0) is None


def test_home_that_changes_while_partitions_are_added_is_taken(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = places
    copy, orders = Topic.copy_subscription, list[Any]()

    def change_home(self: Topic, subscription: str, metadata: SubscriptionMetadata) -> None:
        copy(self, subscription, metadata)
        if not orders:
            orders.append(self.name)
            orders.append(a.cluster.geo.take_over("t", "s", any_cluster=True))

    monkeypatch.setattr(Topic, "copy_subscription", change_home)
    a.cluster.topic("t", partitions=3)
    assert orders[0] == "t-partition-2" and len(orders[1]) == 2
    until(lambda: homes(a) == homes(b) == [None] * 3)
    until(lambda: stored(a, 2) == "")
    assert stored(a, 0) == Home(2, NO_CLUSTER).text()


def test_order_includes_partitions_that_are_added_meanwhile(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = places
    until(lambda: stored(b, 0) != "")
    take_over, orders = ReplicatorManager.take_over, list[str]()

    def grow(self: ReplicatorManager, topic: str, subscription: str, **options: Any) -> dict[str, Any] | None:
        orders.append(topic)
        if len(orders) == 1:
            b.cluster.topic("t", partitions=3)
        return take_over(self, topic, subscription, **options)

    monkeypatch.setattr(ReplicatorManager, "take_over", grow)
    rows = b.cluster.geo.take_over("t", "s")
    assert [(row.topic, row.phase) for row in rows] == [(f"t-partition-{at}", "done") for at in range(3)]
    until(lambda: homes(a) == ["b"] * 3 and homes(b) == [""] * 3)


def test_new_partitions_have_the_home_of_a_removed_cluster_until_it_is_taken_over(places: tuple[Place, Place]) -> None:
    a, b = places
    assert {row.phase for row in a.cluster.geo.handover("t", "s", "b")} == {"done"}
    a.cluster.geo.add_cluster("c", "pyreplog://127.0.0.1:1", uuid="0c" * 16)
    a.cluster.geo.set_policy("t", targets=["c"])
    until(lambda: {row.target for row in a.cluster.geo.status("t")} == {"c"})
    a.cluster.geo.remove_cluster("b")
    topic = a.cluster.topic("t", partitions=3)
    gone = b.cluster.topics.cluster_id.hex()
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        until(lambda: homes(a) == [gone] * 3)
        until(lambda: all(f"its home is the cluster {gone}" in row.alarm for row in a.cluster.geo.status("t")))
        assert [row.phase for row in a.cluster.geo.take_over("t", "s")] == ["done"] * 3
        topic.publish_batch(KEYS, keys=KEYS)
        assert sorted(numbers(consumer, 40)) == [*range(40)]


def test_malformed_home_counts_as_none_with_an_alarm(places: tuple[Place, Place]) -> None:
    a, _ = places
    store(a, 0, "nonsense")
    topic = a.cluster.topic("t", partitions=3)
    until(lambda: homes(a) == ["", "", None])
    until(lambda: [bool(row.alarm) for row in a.cluster.geo.status("t")] == [False, False, True])
    alarm = a.cluster.geo.status("t")[2].alarm
    assert "began without a home" in alarm and "expected a number" in alarm and "found 'nonsense'" in alarm
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        topic.publish_batch(KEYS, keys=KEYS)
        assert sorted(numbers(consumer, 40)) == [*range(40)]
    a.cluster.geo.take_over("t", "s")
    assert homes(a) == [""] * 3 and not any(row.alarm for row in a.cluster.geo.status("t"))
    until(lambda: stored(a, 2) == "")


def test_next_owner_brings_the_stored_homes_in_step_with_its_journal(places: tuple[Place, Place]) -> None:
    """The former one was killed between the record of the journal and the change of the metadata."""
    a, b = places
    for partition in (0, 1):
        partition_of(a, partition).close()
    store(a, 0, "")
    store(a, 1, Home(5, b.cluster.topics.cluster_id).text())
    for partition in (0, 1):
        partition_of(a, partition)
    until(lambda: (stored(a, 0), stored(a, 1)) == (home_in(a), ""))
    until(lambda: homes(a) == ["", "b"])


def test_homes_are_forgotten_when_subscriptions_are_no_longer_replicated(places: tuple[Place, Place]) -> None:
    a, b = places
    assert stored(a, 0) == home_in(a)
    a.cluster.geo.set_policy("t", replicated_subscriptions=False)
    until(lambda: stored(a, 0) == "")
    home = Home(1, b.cluster.topics.cluster_id).text()
    partition_of(a, 1).close()
    store(a, 1, home)
    topic = partition_of(a, 1)  # it waits until the manager knows that it is not replicated
    topic.publish(b"1")
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        assert numbers(consumer, 1) == [1]
    assert stored(a, 1) == ""
