"""Clusters in a star: what is acknowledged at one leaf, of the messages of any cluster, is not delivered in another one.

Leaves send their own messages to the centre, which sends all messages to all leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.metadata.layout import cluster_id
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.geo.places import Place
from tests.geo.replicated import take
from tests.geo.sites import NOWHERE, SYNCED
from tests.waiting import until


class Region(Place):
    """One of the clusters, which replicates the topic t and its subscriptions."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        super().__init__(stack, path)
        self.serve()

    @property
    def topic(self) -> Topic:
        topic = self.cluster.topic("t", **SYNCED)
        assert isinstance(topic, Topic)
        return topic

    def replicate(self, *others: Region, forward: str = "own") -> None:
        for other in others:
            uuid = cluster_id(other.cluster.metadata).hex()
            self.cluster.geo.add_cluster(other.name, f"pyreplog://{other.wire.address}", uuid=uuid)
        names = [other.name for other in others]
        self.cluster.geo.set_policy("t", targets=names, forward=forward, replicated_subscriptions=True)

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.topic.publish(b"%d" % number)

    def subscribe(self) -> Consumer:
        return self.topic.subscribe("s", start="earliest", type="shared", queue=1000)

    def acked(self) -> set[int]:
        if "s" not in self.topic.subscriptions():
            return set()
        ranges = self.topic.subscription("s").acked_ranges().acked
        return {
            int(value)
            for batch in self.topic.read()
            for offset, value in zip(batch.offset.tolist(), batch.values(), strict=True)
            if offset in ranges
        }

    def row(self, target: Region) -> SubscriptionReadiness | None:
        rows = self.cluster.geo.readiness("t")
        return next((row for row in rows if (row.subscription, row.target) == ("s", target.name)), None)

    def is_ready(self, target: Region) -> bool:
        row = self.row(target)
        return row is not None and row.is_ready and not row.error and not row.alarm

    def part(self) -> None:
        """Let nobody connect to this cluster, and end all connections to it."""
        self.wire.lead_to(NOWHERE)
        self.wire.cut()


Regions = tuple[Region, Region, Region]


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Regions]:
    """The centre m, and the leaves b and c."""
    with ExitStack() as stack:
        m, b, c = (Region(stack, tmp_path / name) for name in "mbc")
        yield m, b, c


def replicate(m: Region, *leaves: Region) -> None:
    for leaf in leaves:
        leaf.replicate(m)
    m.replicate(*leaves, forward="all")


def publish(m: Region, b: Region, c: Region) -> None:
    """Publish 0 to 9 at the centre, 100 to 119 at c, and 200 to 204 at b; wait until all clusters have all."""
    m.publish(*range(10))
    c.publish(*range(100, 120))
    b.publish(*range(200, 205))
    until(lambda: all(len(region.topic) == 35 for region in (m, b, c)))


ALL = {*range(10), *range(100, 120), *range(200, 205)}
ACKED = {1, 3, 4, 9, 100, 105, 106, 118, 201, 203}


def acknowledge(region: Region, numbers: set[int], count: int = 35) -> None:
    """Take all messages, and acknowledge some of them, the last one first."""
    with region.subscribe() as consumer:
        messages = take(consumer, count)
        for number in sorted(numbers, reverse=True):
            consumer.acknowledge(messages[number])
        consumer.flush()


def test_acknowledgements_of_a_leaf_reach_all_clusters(star: Regions) -> None:
    """The leaf is lost then: consumers elsewhere get the messages that were not acknowledged, and no others."""
    m, b, c = star
    replicate(m, b, c)
    publish(m, b, c)
    acknowledge(b, ACKED)
    until(lambda: m.acked() == c.acked() == ACKED)
    until(lambda: b.is_ready(m) and m.is_ready(c) and m.is_ready(b) and c.is_ready(m))
    b.part()
    b.end()
    last = 119
    for region in (c, m):
        with region.subscribe() as consumer:
            assert {*take(consumer, 35 - len(ACKED))} == ALL - ACKED
    acknowledge(c, {last, 2, 200}, count=35 - len(ACKED))
    until(lambda: m.acked() == ACKED | {last, 2, 200})
