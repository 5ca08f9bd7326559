"""Clusters in a star: a message of any cluster that is acknowledged at one leaf is not delivered at another one.

Leaves send their own messages to the centre, which sends all messages to all leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.errors import NoSuchClusterError, ReplogError
from pyreplog.geo import origin_entries, subscription_replication
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.metadata.layout import cluster_id
from pyreplog.origins.origin import LastEntry, Origin, OriginState
from pyreplog.topic.owner.origins import Origins
from pyreplog.topic.owner.topic import Topic
from tests.geo.region import Region
from tests.geo.replicated import take
from tests.waiting import until

Regions = tuple[Region, Region, Region]


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Regions]:
    """The centre m and the leaves b and c."""
    with ExitStack() as stack:
        m, b, c = (Region(stack, tmp_path / name) for name in "mbc")
        yield m, b, c


def replicate(m: Region, *leaves: Region, subscriptions: bool = True) -> None:
    for leaf in leaves:
        leaf.replicate(m, replicated_subscriptions=subscriptions)
    m.replicate(*leaves, forward="all", replicated_subscriptions=subscriptions)


def publish(m: Region, b: Region, c: Region) -> None:
    """Publish 0 to 9 at the centre, 100 to 119 at c and 200 to 204 at b; wait until each cluster has all messages."""
    m.publish(*range(10))
    c.publish(*range(100, 120))
    b.publish(*range(200, 205))
    until(lambda: all(len(region.topic) == 35 for region in (m, b, c)))


ALL = {*range(10), *range(100, 120), *range(200, 205)}
ACKED = {1, 3, 4, 9, 100, 105, 106, 118, 201, 203}


def acknowledge(region: Region, numbers: set[int], count: int = 35) -> None:
    """Receive all messages, and acknowledge some of them, the last one first."""
    with region.subscribe() as consumer:
        messages = take(consumer, count)
        for number in sorted(numbers, reverse=True):
            consumer.acknowledge(messages[number])
        consumer.flush()


def test_acknowledgements_of_a_leaf_reach_all_clusters(star: Regions) -> None:
    """When the leaf is lost, consumers elsewhere get exactly the messages that were not acknowledged."""
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


def test_a_leaf_that_was_away_gets_what_the_others_acknowledged(star: Regions) -> None:
    """This holds for messages published meanwhile, too: acknowledgements are applied before these messages are
    delivered."""
    m, b, c = star
    replicate(m, b, c)
    publish(m, b, c)
    c.topic.create_subscription("s", start="earliest")
    until(lambda: all("s" in region.topic.subscriptions() for region in star))
    c.part()
    m.wire.cut()
    m.publish(10, 11, 12)
    b.publish(205, 206)
    until(lambda: len(b.topic) == 40)
    more = ACKED | {10, 12, 206}
    acknowledge(b, more, count=40)
    until(lambda: m.acked() == more)
    assert c.server is not None
    c.wire.lead_to(c.server.address)
    until(lambda: c.acked() == more)
    with c.subscribe() as consumer:
        assert {*take(consumer, 40 - len(more))} == (ALL | {10, 11, 12, 205, 206}) - more


def test_a_seek_and_a_deletion_reach_the_other_leaf(star: Regions) -> None:
    m, b, c = star
    replicate(m, b, c)
    publish(m, b, c)
    acknowledge(b, ACKED)
    until(lambda: c.acked() == ACKED)
    c.topic.seek("s", "latest")
    until(lambda: m.acked() == b.acked() == ALL)
    b.topic.delete_subscription("s")
    until(lambda: not any("s" in region.topic.subscriptions() for region in star))
    c.topic.create_subscription("s", start="latest")
    until(lambda: m.acked() == b.acked() == ALL)


def test_a_handover_between_leaves_takes_two_steps(star: Regions) -> None:
    """Leaves do not know each other: a leaf hands over to the centre, and the centre to the other leaf."""
    m, b, c = star
    replicate(m, b, c)
    publish(m, b, c)
    with b.subscribe() as consumer:
        messages = take(consumer, 35)
        for number in ACKED:
            consumer.acknowledge(messages[number])
        consumer.flush()
        with pytest.raises(NoSuchClusterError, match="the policy of topic t does not name it"):
            b.cluster.geo.handover("t", "s", "c", timeout=20.0)
        b.cluster.geo.handover("t", "s", "m", timeout=60.0, grace=0.1)
    m.cluster.geo.handover("t", "s", "c", timeout=60.0, grace=0.1)
    with c.subscribe() as consumer:
        assert {*take(consumer, 35 - len(ACKED))} == ALL - ACKED
    until(lambda: (row := b.row(m)) is not None and row.home == cluster_id(c.cluster.metadata).hex())


def test_other_messages_of_a_third_cluster_raise_an_alarm(star: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The centre and b have different messages of c. Acknowledgements of messages of all other clusters are exchanged."""
    m, b, c = star
    origin, vector, restored = c.topic.origin, Origins.all, b.topic.origin

    def other(entry: LastEntry) -> LastEntry:
        return entry._replace(value_crc=entry.value_crc ^ 1)

    def all_of(self: Origins) -> dict[Origin, OriginState]:
        states = vector(self)
        state = states.get(origin)
        if self.own == restored and state is not None and state.last is not None:
            states[origin] = state._replace(last=other(state.last))
        return states

    def read(topic: Topic, positions: TopicPositions, of: Origin, first: int, then: origin_entries.Then) -> None:
        def entry_read(entry: LastEntry | None, error: ReplogError | None) -> None:
            is_other = topic.origin == restored and of == origin and entry is not None
            then(other(entry) if is_other and entry is not None else entry, error)

        read_entry(topic, positions, of, first, entry_read)

    read_entry = origin_entries.read_entry
    replicate(m, b, c, subscriptions=False)
    publish(m, b, c)
    monkeypatch.setattr(Origins, "all", all_of)
    monkeypatch.setattr(subscription_replication, "read_entry", read)
    acknowledge(b, ACKED)
    replicate(m, b, c)
    until(lambda: m.acked() == {number for number in ACKED if not 100 <= number < 120})
    for region, target in ((m, b), (b, m)):
        row = until(lambda region=region, target=target: (row := region.row(target)) and row.alarm and row)  # type: ignore[misc]
        assert isinstance(row, SubscriptionReadiness)
        assert f"({origin.token})" in row.alarm
    assert not b.is_ready(m)
    until(lambda: c.acked() == m.acked())
    acknowledge(m, {7}, count=35 - len(m.acked()))
    until(lambda: c.acked() == m.acked() and 7 in b.acked())


def test_a_ring_of_four_clusters_that_name_each_other(tmp_path: Path) -> None:
    """Each cluster sends its messages to both neighbours, and forwards those of one neighbour to the other."""
    with ExitStack() as stack:
        ring = [Region(stack, tmp_path / name) for name in "abcd"]
        for at, region in enumerate(ring):
            before, behind = ring[at - 1], ring[(at + 1) % 4]
            names = [before.name]
            region.replicate(before, behind, forward="all", replicated_from=names, replicated_subscriptions=True)
        for at, region in enumerate(ring):
            region.publish(*range(10 * at, 10 * at + 10))
        until(lambda: all(len(region.topic) == 40 for region in ring))
        acked = {1, 12, 13, 25, 28, 30}
        acknowledge(ring[0], acked, count=40)
        until(lambda: all(region.acked() == acked for region in ring))
        for at, region in enumerate(ring):
            for target in (ring[at - 1], ring[(at + 1) % 4]):
                until(lambda region=region, target=target: region.is_ready(target))  # type: ignore[misc]
        with ring[2].subscribe() as consumer:
            assert {*take(consumer, 34)} == {*range(40)} - acked
        assert not any(row.alarm for region in ring for row in region.cluster.geo.status("t"))
