"""Two clusters that replicate a topic and its subscriptions to each other, over TCP.

Both run in this process, or one runs in a process of its own, which a test kills: `python -m tests.geo.replicated
PATH`. The process prints its address and the id of its cluster, and reads those of the other one and the type of the
subscription. It publishes `MESSAGES` and acknowledges some; it prints these once the other cluster has them. Then it
acknowledges more, and prints each one before it does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.neighbours import Neighbour
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.geo.target_link import TargetLink
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.owner.topic import Topic
from tests.geo.sites import SYNCED, Site
from tests.topic.remoting import Wire
from tests.waiting import until

MESSAGES = 300
CONSUMERS = {"exclusive": 1, "failover": 2, "shared": 2, "key_shared": 2}
"""Consumers of a subscription, by its type."""


class Acknowledgement(NamedTuple):
    """An acknowledgement of a message, with all messages that it adds to the acknowledged ones."""

    number: int
    is_cumulative: bool
    covered: list[int]


class Side:
    """One of the clusters: its site, and the wire over which the other one reaches it."""

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
        """Replicate messages and subscriptions to the other side."""
        self.replicate_to(other)
        self.exchange_with(other, cluster)

    def replicate_to(self, other: Side) -> None:
        self.replicator = self.site.replicate(other.path.name, other.wire.address)

    def follow_at(self, address: str, cluster: bytes) -> None:
        """Replicate messages and subscriptions to another process."""
        self.replicator = self.site.replicate("other", address)
        self._exchange_at(address, "other", cluster)

    def exchange_with(self, other: Side, cluster: bytes | None = None) -> None:
        """Replicate subscriptions. cluster: the id of the other one, needed while that is down."""
        self._exchange_at(other.wire.address, other.path.name, other.cluster if cluster is None else cluster)

    def _exchange_at(self, address: str, name: str, cluster: bytes) -> None:
        link = TargetLink(connect(f"pyreplog://{address}", timeout=5.0))
        self.links.append(link)
        self.subscriptions = SubscriptionReplication(self.topic)
        neighbour = Neighbour(name, cluster, link, self._target_position)
        self.subscriptions.configure({neighbour.name: neighbour})
        self.subscriptions.start()

    def _target_position(self) -> TargetPosition | None:
        return None if self.replicator is None else self.replicator.target_position

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

    def positions(self, name: str = "s") -> list[SubscriptionPosition]:
        """Return the positions of a subscription in both clusters, as this one knows them."""
        assert self.subscriptions is not None
        return self.subscriptions.where(name)

    def is_ready(self, name: str = "s") -> bool:
        """Return whether a fail-over to the other side would lose and repeat nothing."""
        return any(row.subscription == name and row.is_ready and not row.error for row in self.rows())

    def publish(self, start: int, end: int, per_entry: int = 3) -> None:
        for at in range(start, end, per_entry):
            numbers = range(at, min(at + per_entry, end))
            self.topic.publish_batch([b"%d" % number for number in numbers], [key_of(number) for number in numbers])

    def subscribe(self, type: str = "shared", name: str = "s", start: str = "earliest") -> Consumer:
        return self.topic.subscribe(name, start=start, type=type, queue=1000)  # type: ignore[arg-type]

    def acked(self, name: str = "s") -> list[int]:
        """Return the numbers of this topic's messages that are acknowledged in a subscription."""
        if name not in self.topic.subscriptions():
            return []
        ranges = self.topic.subscription(name).acked_ranges().acked
        return self._numbers(ranges)

    def acked_or_expired(self, name: str = "s") -> list[int]:
        ranges = self.topic.subscription(name).acked_ranges()
        ranges.acked.add_ranges(*ranges.expired.intersect())
        return self._numbers(ranges.acked)

    def _numbers(self, ranges: RangeSet) -> list[int]:
        return sorted(
            int(value)
            for batch in self.topic.read()
            for offset, value in zip(batch.offset.tolist(), batch.values(), strict=True)
            if offset in ranges
        )


def take(consumer: Consumer, count: int) -> dict[int, Any]:
    """Receive so many messages; return them by the number in each."""
    messages = [consumer.receive(timeout=20.0) for _ in range(count)]
    return {int(message.value): message for message in messages}


def rest(consumer: Consumer, last: int) -> list[int]:
    """Return the numbers of the messages that are delivered up to the number `last`, which nobody acknowledged."""
    numbers: list[int] = []
    while not numbers or numbers[-1] != last:
        numbers.append(int(consumer.receive(timeout=20.0).value))
    return numbers


def key_of(number: int) -> bytes:
    """Return the key of a message."""
    return b"k%d" % (number % 7)


def receive(consumers: Sequence[Consumer], is_enough: Callable[[Collection[int]], bool]) -> dict[int, Any]:
    """Receive messages, none twice, until the numbers are enough; return consumer and message by number, in order."""
    received: dict[int, tuple[Consumer, Any]] = {}

    def receives() -> bool:
        for consumer in consumers:
            while (message := consumer.receive(timeout=0.0)) is not None:
                number = int(message.value)
                assert number not in received
                received[number] = consumer, message
        return is_enough(received.keys())

    until(receives)
    return received


def plan(type: str, random: Random) -> list[Acknowledgement]:
    """Return acknowledgements that the type allows, of most messages but the last one: out of order, and cumulative ones
    if there is one active consumer.
    """
    left = {*range(MESSAGES - 1)}
    planned: list[Acknowledgement] = []
    below = 0
    while len(left) > 50:
        if CONSUMERS[type] == 1 or type == "failover":
            if is_cumulative := random.random() < 0.2:
                below = min(below + random.randrange(1, 8), MESSAGES - 1)
                number, covered = below - 1, sorted(number for number in left if number < below)
            else:
                number = random.choice(sorted(left)[:40])
                covered = [number]
        else:
            is_cumulative, number = False, random.choice(sorted(left))
            covered = [number]
        if covered:
            planned.append(Acknowledgement(number, is_cumulative, covered))
            left -= {*covered}
    return planned


@contextmanager
def two(path: Path, *, begins: bool = True) -> Iterator[tuple[Side, Side]]:
    a, b = Side(path / "a"), Side(path / "b")
    try:
        for side in (a, b):
            side.site.topic(**SYNCED)
        if begins:
            a.follow(b)
            b.follow(a)
        yield a, b
    finally:
        for side in (a, b):
            side.end()
            side.wire.__exit__()


def begin_to_acknowledge(side: Side, consumer: Consumer, random: Random) -> tuple[dict[int, Any], list[int]]:
    """Receive all messages, and acknowledge the first 100; return the messages, and their numbers in that order."""
    messages = take(consumer, MESSAGES)
    numbers = random.sample(sorted(messages.keys() - {MESSAGES - 1}), MESSAGES - 50)
    for number in numbers[:100]:
        consumer.acknowledge(messages[number])
    consumer.flush()
    until(side.is_ready)
    return messages, numbers


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main(path: Path) -> None:
    side = Side(path)
    side.site.topic(**SYNCED)
    say(address=side.site.server.address, cluster=side.cluster.hex())
    other: dict[str, Any] = json.loads(sys.stdin.readline())
    side.follow_at(other["address"], bytes.fromhex(other["cluster"]))
    type, planned = str(other["type"]), plan(other["type"], Random(int(other["seed"])))
    with ExitStack() as stack:
        consumers = [stack.enter_context(side.subscribe(type)) for _ in range(CONSUMERS[type])]
        side.publish(0, MESSAGES)
        received = receive(consumers, lambda numbers: len(numbers) == MESSAGES)

        def acknowledge(one: Acknowledgement) -> None:
            consumer, message = received[one.number]
            if one.is_cumulative:
                consumer.acknowledge_cumulative(message)
            else:
                consumer.acknowledge(message)

        for one in planned[:100]:
            acknowledge(one)
        for consumer in consumers:
            consumer.flush()
        until(side.is_ready)
        say(acked=[number for one in planned[:100] for number in one.covered])
        for one in planned[100:]:
            say(acks=one.covered)
            acknowledge(one)
        sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
