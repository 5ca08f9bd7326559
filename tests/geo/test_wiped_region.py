"""A region that lost its disk is created again as a new cluster, which a peer fills with all messages that the peer
has.

The steps are those of docs/geo.md, "A region that lost its disk".
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import ClusterExistsError
from tests.geo import region as regions
from tests.geo.region import Region
from tests.geo.replicated import take
from tests.geo.sites import values
from tests.waiting import until

OF_A, OF_B = {*range(20)}, {*range(100, 120)}
ACKED_IN_A = {0, 3, 4, 11, 19, 100, 107, 118}
"""Acknowledged before the disk was lost: out of order, and of messages of both clusters."""
ACKED_IN_B = {1, 12, 105, 121}
"""Acknowledged afterwards, also of messages that region a never had."""
REPLICATED: dict[str, Any] = {"replicated_subscriptions": True}


def numbers(region: Region) -> set[int]:
    return {int(value) for value in values(region.topic)}


def acknowledge(region: Region, count: int, acked: set[int]) -> None:
    with region.subscribe() as consumer:
        messages = take(consumer, count)
        for number in sorted(acked, reverse=True):
            consumer.acknowledge(messages[number])
        consumer.flush()


def lose(path: Path, *others: Region) -> None:
    """Replicate a region with others, consume in it, and lose it."""
    with ExitStack() as stack:
        a = Region(stack, path / "a")
        a.replicate(*others, **REPLICATED)
        for other in others:
            other.replicate(a, *(third for third in others if third is not other), **REPLICATED)
        a.publish(*sorted(OF_A))
        others[0].publish(*sorted(OF_B))
        regions = (a, *others)
        until(lambda: all(numbers(region) == OF_A | OF_B for region in regions))
        acknowledge(a, 40, ACKED_IN_A)
        a.topic.create_subscription("gone")
        until(lambda: all(other.acked() == ACKED_IN_A for other in others))
        until(lambda: all("gone" in other.topic.subscriptions() for other in others))
        a.cluster.geo.take_over("t", "s")
        until(lambda: all((row := other.row(a)) is not None and row.home == "a" for other in others))
        for other in others:
            until(lambda other=other: other.is_ready(a))  # type: ignore[misc]


def go_on(b: Region) -> None:
    """Publish and consume in the remaining region, and delete a subscription there."""
    b.cluster.geo.take_over("t", "s")
    b.publish(120, 121, 122)
    acknowledge(b, 43 - len(ACKED_IN_A), ACKED_IN_B)
    b.topic.delete_subscription("gone")


ALL = OF_A | OF_B | {120, 121, 122}
ACKED = ACKED_IN_A | ACKED_IN_B


def check_seeded(a: Region, b: Region) -> None:
    """Check that a has all messages of b, and that consumers go on in a without loss or repetition."""
    until(lambda: numbers(a) == ALL and len(a.topic) == len(ALL))
    until(lambda: b.is_ready(a))
    assert not any(row.alarm for region in (a, b) for row in region.cluster.geo.status("t"))
    until(lambda: a.acked() == ACKED and a.topic.subscriptions() == ["s"])
    b.cluster.geo.handover("t", "s", "a", timeout=60.0, grace=0.1)
    with a.subscribe() as consumer:
        received = take(consumer, len(ALL - ACKED))
        assert {*received} == ALL - ACKED
        a.publish(20)
        b.publish(123)
        assert {*take(consumer, 2)} == {20, 123}
        consumer.acknowledge(received[2])
        consumer.flush()
    until(lambda: b.acked() == ACKED | {2} and numbers(b) == ALL | {20, 123})
    assert len(a.topic) == len(b.topic) == len(ALL) + 2, "a message came twice"


@pytest.mark.parametrize("is_open", [True, False])
def test_recreated_cluster_gets_its_own_former_messages_from_a_peer(tmp_path: Path, is_open: bool) -> None:
    """The peer has the topic open, or not. In both cases it does not take the new cluster for the old one of the same
    name."""
    with ExitStack() as stack, ExitStack() as first:
        b = Region(first, tmp_path / "b")
        lose(tmp_path / "lost", b)
        go_on(b)
        if not is_open:
            first.close()
            b = Region(stack, tmp_path / "b")
        a = Region(stack, tmp_path / "new" / "a")
        with pytest.raises(ClusterExistsError, match="geo cluster remove --force"):
            b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        b.cluster.geo.set_policy("t", forward="all")
        b.cluster.geo.remove_cluster("a", force=True)
        b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        until(lambda: numbers(a) == ALL)
        a.replicate(b, **REPLICATED)
        check_seeded(a, b)
        b.cluster.geo.set_policy("t", forward="own")
        b.publish(124)
        a.publish(21)
        until(lambda: numbers(a) == numbers(b) == ALL | {20, 21, 123, 124})


def test_a_topic_that_no_process_has_open_is_opened_for_the_wiped_region(tmp_path: Path) -> None:
    """The lost cluster had all messages of the topic, and the new cluster has none."""
    with ExitStack() as first:
        b, a = Region(first, tmp_path / "b"), Region(first, tmp_path / "lost" / "a")
        b.replicate(a)
        b.publish(*sorted(OF_B))
        until(lambda: [row.unsent_messages for row in b.cluster.geo.status("t") if row.stored] == [0])
    with ExitStack() as stack:
        b, a = Region(stack, tmp_path / "b"), Region(stack, tmp_path / "new" / "a")
        manager = b.cluster.geo.replicator_manager
        assert manager is not None
        # if the cursor's position was not stored before the end, the manager opens the topic at once
        until(lambda: "t" in manager.complete or b.cluster.topics.opened())
        b.cluster.geo.remove_cluster("a", force=True)
        b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        until(lambda: "t" in a.cluster.topics.names() and numbers(a) == OF_B)


def test_the_orders_came_in_the_wrong_order(tmp_path: Path) -> None:
    """The messages of the lost cluster were skipped, as forwarding was set too late: the cluster is removed and added
    again."""
    with ExitStack() as stack:
        b = Region(stack, tmp_path / "b")
        lose(tmp_path / "lost", b)
        go_on(b)
        a = Region(stack, tmp_path / "new" / "a")
        b.cluster.geo.remove_cluster("a", force=True)
        b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        a.replicate(b, **REPLICATED)
        until(lambda: numbers(a) == ALL - OF_A)
        b.cluster.geo.set_policy("t", forward="all")
        b.cluster.geo.remove_cluster("a", force=True)
        until(lambda: any("no cluster of this name" in row.alarm for row in b.cluster.geo.status("t")))
        b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        check_seeded(a, b)


def test_a_peer_that_trimmed_all_messages_of_the_lost_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their acknowledgements cannot be compared, so that readiness stays unknown until the new cluster takes over."""
    monkeypatch.setattr(regions, "SYNCED", {"ensemble": 1, "roll_entries": 2, "retention_ms": 1, "retention_bytes": 1})
    with ExitStack() as stack:
        b = Region(stack, tmp_path / "b")
        with ExitStack() as first:
            a = Region(first, tmp_path / "lost" / "a")
            a.replicate(b, **REPLICATED)
            b.replicate(a, **REPLICATED)
            a.publish(*sorted(OF_A))
            acknowledge(a, len(OF_A), OF_A)
            until(lambda: a.is_ready(b) and b.is_ready(a))
        b.publish(*sorted(OF_B))
        acknowledge(b, len(OF_B), ACKED & OF_B)
        b.cluster.geo.set_policy("t", forward="all")
        b.cluster.geo.remove_cluster("a", force=True)
        until(lambda: b.topic.trim() >= 0 and numbers(b) <= OF_B)
        left = numbers(b)
        a = Region(stack, tmp_path / "new" / "a")
        b.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        a.replicate(b, **REPLICATED)
        until(lambda: numbers(a) == left and a.acked() == ACKED & left)
        until(lambda: (row := b.row(a)) is not None and row.is_current and not (row.error or row.lost or row.repeated))
        row = b.row(a)
        assert row is not None and not row.is_known
        a.cluster.geo.take_over("t", "s")
        with a.subscribe() as consumer:
            assert {*take(consumer, len(left - ACKED))} == left - ACKED
        until(lambda: (row := b.row(a)) is not None and row.home == "a")


def test_recreated_cluster_in_a_mesh_is_seeded_by_one_peer(tmp_path: Path) -> None:
    """In a mesh, only one peer forwards the messages of the lost cluster; the other peers send their own ones."""
    with ExitStack() as stack:
        b, c = Region(stack, tmp_path / "b"), Region(stack, tmp_path / "c")
        lose(tmp_path / "lost", b, c)
        go_on(b)
        a = Region(stack, tmp_path / "new" / "a")
        lost = b.cluster.geo.clusters()["a"]
        for region in (b, c):
            region.cluster.geo.remove_cluster("a", force=True)
        b.cluster.geo.add_cluster("a-lost", lost.url, uuid=lost.uuid)
        b.cluster.geo.set_policy("t", targets=["c"], forward="all", replicated_from=["a-lost"])
        for region in (b, c):
            region.cluster.geo.add_cluster("a", f"pyreplog://{a.wire.address}")
        b.cluster.geo.set_policy("t", targets=["a", "c"])
        a.replicate(b, c, **REPLICATED)
        c.publish(200)
        until(lambda: all(200 in numbers(region) for region in (a, b)))
        until(lambda: numbers(a) == ALL | {200} and len(a.topic) == len(ALL) + 1)
        until(lambda: b.is_ready(a) and c.is_ready(a) and b.is_ready(c))
        assert a.acked() == ACKED
        assert not any(row.alarm for region in (a, b, c) for row in region.cluster.geo.status("t"))
        b.cluster.geo.set_policy("t", forward="own", replicated_from=None)
        b.cluster.geo.remove_cluster("a-lost")
        b.cluster.geo.handover("t", "s", "a", timeout=60.0, grace=0.1)
        with a.subscribe() as consumer:
            assert {*take(consumer, len(ALL - ACKED) + 1)} == (ALL | {200}) - ACKED
