"""Another cluster lacks messages of a third cluster: a fail-over to it would lose them, and readiness says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.geo.acks.exchange import REPORT_FLUSHES
from pyreplog.geo.acks.messages import History
from pyreplog.origins.origin import OriginState
from tests.geo.exchanging import cluster_id, origin
from tests.geo.region import Region
from tests.geo.replicated import take
from tests.geo.test_histories import chain, entry, sent
from tests.waiting import until

A = origin("a")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[tuple[Region, Region, Region]]:
    """Clusters a, b and c. Each sends its own messages to both others."""
    with ExitStack() as stack:
        regions = a, b, c = [Region(stack, tmp_path / name) for name in "abc"]
        for region in regions:
            region.replicate(*(other for other in regions if other is not region), replicated_subscriptions=True)
        yield a, b, c


def test_readiness_counts_what_another_cluster_has_not_sent_there(mesh: tuple[Region, Region, Region]) -> None:
    """Once these have been sent or acknowledged, readiness reports no loss."""
    a, b, c = mesh
    c.publish(*range(10))
    b.publish(*range(10, 15))
    until(lambda: all(len(region.topic) == 15 for region in mesh))
    with b.subscribe() as consumer:
        messages = take(consumer, 15)
        for number in (3, 9, 12):
            consumer.acknowledge(messages[number])
        consumer.flush()
        until(lambda: b.is_ready(a) and b.is_ready(c))
        c.cluster.geo.pause("t", "a")
        until(lambda: c.cluster.geo.status("t")[0].state == "paused")
        c.publish(*range(20, 26))
        b.publish(15)
        until(lambda: len(b.topic) == 22 and len(a.topic) == 16)
        row = until(lambda: (row := b.row(a)) and row.lost == 6 and row)
        assert row and not row.is_ready and row.is_known and row.unreachable == 6 and not row.error
        messages |= take(consumer, 7)
        consumer.acknowledge(messages[21])
        consumer.flush()
        row = until(lambda: (row := b.row(a)) and row.lost == 5 and row)
        assert row and row.unreachable == 5 and row.repeated <= 1
    with a.subscribe() as consumer:
        assert {*take(consumer, 13)} == {*range(16)} - {3, 9, 12}, "what a fail-over gets: 20 and 22 to 25 are lost"
    until(lambda: b.is_ready(c), patience_s=60.0)
    c.cluster.geo.resume("t", "a")
    until(lambda: len(a.topic) == 22 and b.is_ready(a))
    assert b.row(a) is not None and a.acked() == {3, 9, 12, 21}


def test_a_position_is_reported_again_while_messages_arrive() -> None:
    """It is reported once, five flushes after the last report, and not while no message arrives."""
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)))
    b, c = clusters["b"], clusters["c"]
    assert c.exchange.peer(cluster_id("b")).positions == {A: 1000}
    assert b.exchange.is_idle
    for end in (1100, 1200):
        b.positions[A] = OriginState(end, entry(end - 10))
        b.do(b.exchange.arrive(A, end))
    assert not sent(clusters, History) and not b.exchange.is_idle
    for _ in range(REPORT_FLUSHES):
        b.do(b.exchange.flush())
    assert sent(clusters, History) == ["b"]
    clusters.settle()
    assert c.exchange.peer(cluster_id("b")).positions == {A: 1200} and b.exchange.is_idle
    assert b.exchange.peer(cluster_id("c")).positions == {A: 1000}, "c has got no more"


def test_a_position_that_is_not_known_yet_is_reported_later() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)))
    b, c = clusters["b"], clusters["c"]
    b.do(b.exchange.arrive(A, 1100))  # the exchange learns of the entry before the gate of regions has counted it
    for _ in range(REPORT_FLUSHES):
        b.do(b.exchange.flush())
    assert not sent(clusters, History) and not b.exchange.is_idle
    b.positions[A] = OriginState(1100, entry(1090))
    for _ in range(REPORT_FLUSHES):
        b.do(b.exchange.flush())
    clusters.settle()
    assert c.exchange.peer(cluster_id("b")).positions == {A: 1100} and b.exchange.is_idle


def test_positions_of_a_neighbour_outlive_its_connection() -> None:
    clusters = chain(OriginState(1000, entry(990)), OriginState(1000, entry(990)))
    c = clusters["c"]
    c.do(c.exchange.disconnect(cluster_id("b")))
    assert c.exchange.peer(cluster_id("b")).positions == {A: 1000}
