"""A slow link between two clusters is cut during traffic: consumers go on in the other cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event

from benchmarks.delayed_link import delayed
from tests.geo.region import Region
from tests.geo.sites import values
from tests.waiting import until

DELAY_S = 0.02
"""Delay of each message of the link, one way."""
LAST = 2_000_000
"""The last message that is published before the link is restored."""


def numbers(region: Region) -> set[int]:
    return {int(value) for value in values(region.topic)}


class Traffic:
    """Publishers in both clusters, and a consumer in one of them, until `stop`.

    Attributes:
        begun: numbers of the messages for which an acknowledgement began, in order.
        done: numbers of those whose acknowledgement returned.
    """

    def __init__(self, consuming: Region, other: Region, random: Random) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self._consumed, self._published, self._random = Event(), Event(), random
        self._pool = ThreadPoolExecutor(3)
        self._publishers = [
            self._pool.submit(self._publish, consuming, 0),
            self._pool.submit(self._publish, other, 1_000_000),
        ]
        self._consumer = self._pool.submit(self._consume, consuming)

    def _publish(self, region: Region, number: int) -> None:
        while not self._published.is_set():
            region.publish(number)
            number += 1

    def _consume(self, region: Region) -> None:
        """Acknowledge most messages, out of order."""
        held = []
        with region.subscribe() as consumer:
            while not self._consumed.is_set():
                held.append(consumer.receive(timeout=20.0))
                if len(held) == 8:
                    self._random.shuffle(held)
                    for message in held[:6]:
                        self.begun.append(int(message.value))
                        consumer.acknowledge(message)
                        self.done.append(int(message.value))
                    held.clear()

    def stop(self) -> None:
        """Stop the consumer, then the publishers: the consumer may wait for a message."""
        self._consumed.set()
        try:
            self._consumer.result()
        finally:
            self._published.set()
            self._pool.shutdown()
        for publisher in self._publishers:
            publisher.result()


def test_a_cluster_is_cut_off_amid_traffic(tmp_path: Path, seed: int) -> None:
    """No message is lost. Those acknowledged after the last delta that arrived are repeated, and no more than readiness
    had reported in the cluster that is cut off."""
    random = Random(seed)
    with ExitStack() as stack:
        a, b = (Region(stack, tmp_path / name) for name in "ab")
        late: dict[Region, str] = {}
        for region in (a, b):
            assert region.server is not None
            late[region] = stack.enter_context(delayed(region.server.address, DELAY_S))
            region.wire.lead_to(late[region])
        a.replicate(b, replicated_subscriptions=True)
        b.replicate(a, replicated_subscriptions=True)
        a.topic.create_subscription("s", start="earliest")
        until(lambda: "s" in b.topic.subscriptions())
        traffic = Traffic(a, b, random)
        try:
            until(lambda: len(b.acked()) >= 50)
            asked = len(traffic.done) + random.randrange(100)
            until(lambda: len(traffic.done) >= asked)
            known = b.acked()
            for region in (a, b):
                region.part()
            acked = len(traffic.done)
            row = a.row(b)
            until(lambda: len(traffic.done) >= acked + 20)  # the cluster goes on while it is cut off
        finally:
            traffic.stop()
        assert row is not None and row.is_known and row.is_current
        until(lambda: (lost := b.row(a)) is not None and lost.error)  # after this, no delta is in flight any more
        there, confirmed = numbers(b), b.acked()
        b.publish(LAST)
        received: list[int] = []
        with b.subscribe() as consumer:
            while LAST not in received:
                received.append(int(consumer.receive(timeout=20.0).value))
            repeated = [number for number in traffic.begun if number in {*received} & there]
            assert known <= confirmed and not {*repeated} & confirmed
            assert sum(number in {*traffic.done[:acked]} for number in repeated) <= row.repeated
            assert {*received} | {*traffic.begun} >= there
            if repeated:  # the repeated messages are all those acknowledged after the last delta
                first = traffic.begun.index(repeated[0])
                assert repeated == [number for number in traffic.begun[first:] if number in there]
            for region in (a, b):
                region.wire.lead_to(late[region])
            until(lambda: numbers(a) == numbers(b))
            while {*received} | {*traffic.begun} < numbers(a):
                received.append(int(consumer.receive(timeout=20.0).value))
            assert len(received) == len({*received})
            assert len(a.topic) == len(b.topic) == len(numbers(a))
        until(lambda: a.acked() == b.acked() == {*traffic.done})
