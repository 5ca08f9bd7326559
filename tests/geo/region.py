"""A cluster of a star, a chain or a ring, which replicates the topic t and its subscription s.

It runs in this process, or as a leaf in a process of its own, which a test kills: `python -m tests.geo.region PATH`.
The leaf prints its address and the id of its cluster, and reads those of the centre. It waits for a number of messages,
and acknowledges most of them in an order drawn from a seed. It prints the first ones once the centre has their
acknowledgements, and each of the others before it acknowledges it. If its input has the acknowledgements of the others,
it waits until it has these, and prints what is acknowledged here.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.metadata.layout import cluster_id
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.geo.places import Place
from tests.geo.replicated import say, take
from tests.geo.sites import NOWHERE, SYNCED
from tests.waiting import until

READY = 50
"""How many messages the leaf acknowledges before it reports that it is ready."""


class Region(Place):
    """One of the clusters, with the wire over which others reach it."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        super().__init__(stack, path)
        self.serve()

    @property
    def topic(self) -> Topic:
        topic = self.cluster.topic("t", **SYNCED)
        assert isinstance(topic, Topic)
        return topic

    def replicate(self, *others: Region, **policy: Any) -> None:
        for other in others:
            uuid = cluster_id(other.cluster.metadata).hex()
            if other.name not in self.cluster.geo.clusters():
                self.cluster.geo.add_cluster(other.name, f"pyreplog://{other.wire.address}", uuid=uuid)
        names = [other.name for other in others]
        self.cluster.geo.set_policy("t", targets=names, **policy)

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
        """Refuse new connections to this cluster, and cut those that exist."""
        self.wire.lead_to(NOWHERE)
        self.wire.cut()


def main(path: Path) -> None:
    with ExitStack() as stack:
        leaf = Region(stack, path)
        assert leaf.server is not None
        say(address=leaf.server.address, cluster=cluster_id(leaf.cluster.metadata).hex())
        settings: dict[str, Any] = json.loads(sys.stdin.readline())
        centre = settings["centre"]
        if centre not in leaf.cluster.geo.clusters():
            leaf.cluster.geo.add_cluster(centre, f"pyreplog://{settings['address']}", uuid=settings["cluster"])
            leaf.cluster.geo.set_policy("t", targets=[centre], replicated_subscriptions=True)
        until(lambda: len(leaf.topic) == settings["messages"])
        if "least" in settings:
            until(lambda: leaf.acked() >= {*settings["least"]})
            say(acked=sorted(leaf.acked()))
            sys.stdin.readline()
        else:
            _acknowledge(leaf, settings["messages"], Random(settings["seed"]))


def _acknowledge(leaf: Region, count: int, random: Random) -> None:
    with leaf.subscribe() as consumer:
        messages = take(consumer, count)
        numbers = random.sample(sorted(messages), count - READY)
        for number in numbers[:READY]:
            consumer.acknowledge(messages[number])
        consumer.flush()
        until(lambda: any(row.is_ready and not row.error for row in leaf.cluster.geo.readiness("t")))
        say(acked=numbers[:READY])
        for number in numbers[READY:]:
            say(acks=number)
            consumer.acknowledge(messages[number])
        sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
