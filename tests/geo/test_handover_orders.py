"""A handover can be ordered in any process of a cluster, by `Cluster.geo` or a command; the owner of the topic runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyreplog import (
    Cluster,
    ConfigError,
    HandoverError,
    HandoverUnconfirmedError,
    InvalidMessageError,
    NoSuchClusterError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    TopicServer,
)
from pyreplog.cli.app import main
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.geo_replication import decode_handover
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.topic_like import ConsumerLike
from tests.geo.sites import NOWHERE, SYNCED
from tests.topic.remoting import Wire
from tests.waiting import until


class Place:
    """A cluster with a server, and the wire over which the other one reaches it."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.path = path
        self.cluster = stack.enter_context(Cluster.embedded(path, bookies=1))
        self.server = stack.enter_context(TopicServer(self.cluster))
        self.wire = stack.enter_context(Wire(self.server.address))

    def know(self, other: Place) -> None:
        self.cluster.geo.add_cluster(other.path.name, f"pyreplog://{other.wire.address}")
        self.cluster.geo.set_policy("t", targets=[other.path.name], replicated_subscriptions=True)

    def subscribe(self, topic: str = "t") -> Consumer:
        consumer = self.cluster.topic(topic, create=False).subscribe("s", start="earliest", type="shared")
        assert isinstance(consumer, Consumer)
        return consumer

    def is_ready(self, topics: int = 1) -> bool:
        """Return whether a fail-over of each topic or partition would lose and repeat nothing."""
        rows = self.cluster.geo.readiness("t")
        return len(rows) == topics and all(row.is_ready and not row.error for row in rows)

    def elsewhere(self) -> Cluster:
        """Open the same cluster again, as another process does."""
        return Cluster.connect(f"sqlite:{self.path}/metadata.sqlite")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")
        a.know(b)
        b.know(a)
        topic = a.cluster.topic("t", **SYNCED)
        topic.publish_batch([b"%d" % number for number in range(6)])
        topic.create_subscription("s", start="earliest")
        until(a.is_ready)
        yield a, b


def numbers(consumer: ConsumerLike, count: int) -> list[int]:
    return [int(consumer.receive(timeout=20.0).value) for _ in range(count)]


def test_handover_can_be_ordered_in_the_process_of_the_owner(places: tuple[Place, Place]) -> None:
    a, b = places
    with a.subscribe() as consumer:
        for _ in range(6):
            consumer.acknowledge(consumer.receive(timeout=20.0))
        (row,) = a.cluster.geo.handover("t", "s", "b")
        assert (row.topic, row.subscription, row.target, row.phase) == ("t", "s", "b", "done")
        a.cluster.topic("t", create=False).publish(b"6")
        with b.subscribe() as other:
            assert numbers(other, 1) == [6]
        until(lambda: any("wait here" in row.alarm for row in a.cluster.geo.status("t")))
        assert [row.home for row in a.cluster.geo.where("t", "s")] == ["b", "b"]
        assert a.cluster.geo.readiness("t")[0].alarm and a.cluster.geo.readiness("t")[0].home == "b"
        assert [row.phase for row in a.cluster.geo.handover("t", "s", "b")] == ["done"]  # the former answer
        with pytest.raises(HandoverError, match=r"its home is the cluster b: order it there"):
            a.cluster.geo.add_cluster("c", "pyreplog://127.0.0.1:1", uuid="0c" * 16)
            a.cluster.geo.set_policy("t", targets=["b", "c"])
            until(lambda: len(a.cluster.geo.readiness("t")) == 2)
            a.cluster.geo.handover("t", "s", "c", timeout=5.0)


def test_handover_can_be_ordered_from_another_process(
    places: tuple[Place, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = places
    with a.elsewhere() as cluster:
        rows = cluster.geo.handover("t", "s", "b", grace=0.0)
        assert [row.phase for row in rows] == ["done"]
    with b.elsewhere() as cluster:
        rows = asyncio.run(cluster.geo.handover_async("t", "s", "a", grace=0.0))
        assert [row.phase for row in rows] == ["done"]
        with pytest.raises(NoSuchSubscriptionError, match="no replicated subscription other"):
            cluster.geo.handover("t", "other", "a")
    assert main(["geo", "handover", str(a.path), "t", "s", "b", "--grace-s", "0"]) == 0
    assert "its home is b" in capsys.readouterr().out
    assert main(["geo", "where", str(a.path), "t", "s"]) == 0
    assert "consumers of b alone get messages" in capsys.readouterr().out
    assert main(["geo", "take-over", str(a.path), "t", "s"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["geo", "take-over", str(a.path), "t", "s", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["phase"] == "done"
    with a.subscribe() as consumer:
        assert sorted(numbers(consumer, 6)) == [0, 1, 2, 3, 4, 5]
    assert main(["geo", "take-over", str(a.path), "t", "s", "--yes", "--any-cluster"]) == 0
    assert "all clusters deliver it" in capsys.readouterr().out
    with b.subscribe() as consumer:
        assert sorted(numbers(consumer, 6)) == [0, 1, 2, 3, 4, 5]


def test_all_partitions_are_handed_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")
        a.know(b)
        b.know(a)
        topic = a.cluster.topic("t", partitions=3, **SYNCED)
        keys = [b"%d" % number for number in range(30)]
        topic.publish_batch(keys, keys=keys)
        received = list[int]()
        with topic.subscribe("s", start="earliest", type="shared") as consumer:
            for _ in range(12):
                message = consumer.receive(timeout=20.0)
                received.append(int(message.value))
                consumer.acknowledge(message)
            until(lambda: len(a.cluster.geo.readiness("t")) == 3)
            rows = a.cluster.geo.handover("t", "s", "b", grace=0.2)
            assert [row.phase for row in rows] == ["done"] * 3 and len({row.topic for row in rows}) == 3
            with b.cluster.topic("t", create=False).subscribe("s", type="shared") as other:
                received += [int(other.receive(timeout=20.0).value) for _ in range(18)]
        assert sorted(received) == [*range(30)]


def test_a_topic_without_an_owner(places: tuple[Place, Place]) -> None:
    """A server opens the topic and runs the handover."""
    a, _ = places
    a.cluster.topic("t", create=False).close()
    with a.elsewhere() as cluster:
        assert [row.phase for row in cluster.geo.handover("t", "s", "b", grace=0.0)] == ["done"]


def test_handover_errors_name_the_obstacle(places: tuple[Place, Place], capsys: pytest.CaptureFixture[str]) -> None:
    a, _ = places
    geo = a.cluster.geo
    with pytest.raises(NoSuchClusterError, match="does not name it"):
        geo.handover("t", "s", "c")
    with pytest.raises(NoSuchTopicError):
        geo.handover("other", "s", "b")
    geo.set_policy("plain", targets=["b"])
    with pytest.raises(ConfigError, match="replicated_subscriptions: expected true"):
        geo.handover("plain", "s", "b")
    geo.set_policy("absent", targets=["b"], replicated_subscriptions=True)
    with pytest.raises(NoSuchTopicError):
        geo.handover("absent", "s", "b", timeout=1.0)
    with a.subscribe() as consumer:
        numbers(consumer, 6)
        with pytest.raises(HandoverError, match="consumers hold 6 messages") as caught:
            geo.handover("t", "s", "b", timeout=0.3)
        assert caught.value.retriable and caught.value.cluster == "b"
        assert main(["geo", "handover", str(a.path), "t", "s", "b", "--timeout-s", "0.3"]) == 3
        assert "consumers hold 6 messages" in capsys.readouterr().err


def test_the_policy_changes_under_way(places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription belongs to this cluster alone from then on, and its consumers go on."""
    a, _ = places
    hand_over, phases = SubscriptionReplication.hand_over, list[str]()

    def note(self: SubscriptionReplication, *arguments: str, **times: Any) -> dict[str, Any]:
        row = hand_over(self, *arguments, **times)
        phases.append(row["phase"])
        return row

    monkeypatch.setattr(SubscriptionReplication, "hand_over", note)
    with a.subscribe() as consumer, ThreadPoolExecutor(1) as pool:
        numbers(consumer, 6)
        order = pool.submit(a.cluster.geo.handover, "t", "s", "b", timeout=60.0, grace=60.0)
        until(lambda: "stopping" in phases)
        a.cluster.geo.set_policy("t", replicated_subscriptions=False)
        with pytest.raises(ConfigError, match="replicated_subscriptions: expected true"):
            order.result(20.0)
        a.cluster.topic("t", create=False).publish(b"6")
        assert numbers(consumer, 1) == [6]


def test_the_error_of_an_unconfirmed_one(places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = places
    move = SubscriptionExchange.move

    def cut(self: SubscriptionExchange, name: str, home: bytes) -> Any:
        for place in places:
            place.wire.lead_to(NOWHERE)
            place.wire.cut()
        return move(self, name, home)

    monkeypatch.setattr(SubscriptionExchange, "move", cut)
    with pytest.raises(HandoverUnconfirmedError, match=r"Order it again to wait for that"):
        a.cluster.geo.handover("t", "s", "b", timeout=5.0, grace=0.0)
    monkeypatch.undo()
    for place in places:
        place.wire.lead_to(place.server.address)
    assert a.cluster.geo.handover("t", "s", "b")[0].phase == "done"
    with b.subscribe() as consumer:
        assert sorted(numbers(consumer, 6)) == [0, 1, 2, 3, 4, 5]


def test_a_malformed_state_of_a_server() -> None:
    row = {"topic": "t", "subscription": "s", "target": "b", "phase": "moving"}
    assert decode_handover({**row, "newer": 1}).phase == "moving"
    with pytest.raises(InvalidMessageError, match="state of a handover"):
        decode_handover({"topic": "t"})
