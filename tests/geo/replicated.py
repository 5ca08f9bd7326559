"""Two clusters in this process whose topic and subscriptions are replicated both ways, over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyreplog.geo.replicator import Replicator
from pyreplog.geo.subscription_replication import Neighbour, SubscriptionReadiness, SubscriptionReplication
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.topic import Topic
from tests.geo.sites import SYNCED, Site
from tests.topic.remoting import Wire


class Side:
    """One of the clusters: its site, and the wire by which the other one reaches it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.site = Site(path)
        self.wire = Wire(self.site.server.address)
        self.replicator: Replicator | None = None
        self.subscriptions: SubscriptionReplication | None = None
        self.links: list[TargetLink] = []

    @property
    def topic(self) -> Topic:
        return self.site.topic()

    @property
    def cluster(self) -> bytes:
        return self.topic.origin.cluster

    def follow(self, other: Side, cluster: bytes | None = None) -> None:
        """Begin to replicate to the other side, messages and subscriptions."""
        link = TargetLink(connect(f"pyreplog://{other.wire.address}", timeout=5.0))
        self.links.append(link)
        self.replicator = replicator = self.site.replicate(other.path.name, other.wire.address)
        self.subscriptions = SubscriptionReplication(self.topic)
        known = other.cluster if cluster is None else cluster
        neighbour = Neighbour(other.path.name, known, link, lambda: replicator.note)
        self.subscriptions.configure({neighbour.name: neighbour})
        self.subscriptions.start()

    def end(self) -> None:
        if self.subscriptions is not None:
            self.subscriptions.close()
        for link in self.links:
            link.close()
        self.links.clear()
        self.site.end()

    def begin_again(self) -> None:
        self.site.begin()
        self.wire.lead_to(self.site.server.address)

    def rows(self) -> list[SubscriptionReadiness]:
        assert self.subscriptions is not None
        return self.subscriptions.readiness()

    def is_ready(self, name: str = "s") -> bool:
        """Whether a fail-over to the other side would lose and repeat nothing."""
        return any(row.subscription == name and row.is_ready and not row.error for row in self.rows())

    def publish(self, start: int, end: int, per_entry: int = 3) -> None:
        for at in range(start, end, per_entry):
            self.topic.publish_batch([b"%d" % number for number in range(at, min(at + per_entry, end))])

    def subscribe(self, type: str = "shared", name: str = "s", start: str = "earliest") -> Consumer:
        return self.topic.subscribe(name, start=start, type=type, queue=1000)  # type: ignore[arg-type]

    def acked(self, name: str = "s") -> list[int]:
        """The numbers of the topic's messages that are acknowledged in a subscription here."""
        if name not in self.topic.subscriptions():
            return []
        ranges = self.topic.subscription(name).acked_ranges().acked
        values = [(offset, int(value)) for batch in self.topic.read()
                  for offset, value in zip(batch.offset.tolist(), batch.values(), strict=True)]  # fmt: skip
        return sorted(number for offset, number in values if offset in ranges)


def take(consumer: Consumer, count: int) -> dict[int, object]:
    """So many messages, by the number in each."""
    messages = [consumer.receive(timeout=20.0) for _ in range(count)]
    return {int(message.value): message for message in messages}


def rest(consumer: Consumer, last: int) -> list[int]:
    """The numbers of messages up to one that nobody acknowledged, which comes last."""
    numbers: list[int] = []
    while not numbers or numbers[-1] != last:
        numbers.append(int(consumer.receive(timeout=20.0).value))
    return numbers


@contextmanager
def two(path: Path) -> Iterator[tuple[Side, Side]]:
    a, b = Side(path / "a"), Side(path / "b")
    try:
        for side in (a, b):
            side.site.topic(**SYNCED)
        a.follow(b)
        b.follow(a)
        yield a, b
    finally:
        for side in (a, b):
            side.end()
            side.wire.__exit__()
