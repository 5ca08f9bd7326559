"""Policies switch the replication of subscriptions on and off. Servers and commands report readiness for a fail-over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.cli.app import main
from pyreplog.cluster import Cluster
from pyreplog.errors import ConfigError, NoSuchSubscriptionError
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.topic.owner.subscriptions import JOURNAL
from pyreplog.topic.server.topic_server import TopicServer
from tests.geo.sites import SYNCED
from tests.waiting import until


class Place:
    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.path = path
        self.cluster = stack.enter_context(Cluster.embedded(path, bookies=1))
        self.server = stack.enter_context(TopicServer(self.cluster))

    @property
    def cursors(self) -> list[str]:
        return [cursor.name for cursor in self.cluster.topic("t", create=False).internal_stats().cursors]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    with ExitStack() as stack:
        yield Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")


def test_policies_switch_replicated_subscriptions_on_and_off(
    places: tuple[Place, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = places
    for place, other in ((a, b), (b, a)):
        place.cluster.geo.add_cluster(other.path.name, f"pyreplog://{other.server.address}")
        place.cluster.geo.set_policy("t", targets=[other.path.name], replicated_subscriptions=True)
    topic = a.cluster.topic("t", **SYNCED)
    topic.publish_batch([b"%d" % number for number in range(10)])
    until(lambda: "t" in b.cluster.topics.names())
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        messages = [consumer.receive(timeout=20.0) for _ in range(10)]
        for number in (1, 4, 5):
            consumer.acknowledge(messages[number])
        consumer.flush()
    until(lambda: any(row.is_ready for row in a.cluster.geo.readiness("t")))
    assert JOURNAL in a.cursors and JOURNAL in b.cursors
    there = b.cluster.topic("t", create=False)
    with there.subscribe("s", type="shared") as consumer:
        assert [consumer.receive(timeout=20.0).value for _ in range(7)] == [b"%d" % n for n in (0, 2, 3, 6, 7, 8, 9)]
    assert main(["geo", "readiness", f"pyreplog://{a.server.address}", "t"]) == 0
    words = capsys.readouterr().out.split()
    assert {"s", "b", "ready"} <= {*words}
    assert main(["geo", "readiness", str(a.path), "other"]) == 2
    for target in (f"pyreplog://{a.server.address}", str(a.path)):
        assert main(["geo", "where", target, "t", "s", "--json"]) == 0
        here, there_too = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (here["at"], here["origin"], here["below"], here["beyond"]) == ("", "", 0, 3)
        assert (there_too["at"], there_too["below"], there_too["beyond"]) == ("b", 0, 3)
        assert main(["geo", "where", target, "t", "s"]) == 0
        assert "acknowledged below" in capsys.readouterr().out
        assert main(["geo", "where", target, "t", "no"]) == 2
        assert "replicates a subscription no" in capsys.readouterr().err
    with pytest.raises(NoSuchSubscriptionError):
        b.cluster.geo.where("u", "s")
    a.cluster.geo.set_policy("t", replicated_subscriptions=False)
    until(lambda: JOURNAL not in a.cursors)
    assert a.cluster.geo.readiness() == []
    topic.publish(b"10")
    with topic.subscribe("s", type="shared") as consumer:
        assert [consumer.receive(timeout=20.0).value for _ in range(8)][-1] == b"10"


def test_a_topic_that_is_opened_without_the_policy_delivers(tmp_path: Path) -> None:
    """Its journal remains from an earlier policy. Consumers wait until the manager knows that no policy names the
    topic."""
    with ExitStack() as stack:
        a, b = Place(stack, tmp_path / "a"), Place(stack, tmp_path / "b")
        a.cluster.geo.add_cluster("b", f"pyreplog://{b.server.address}")
        a.cluster.geo.set_policy("t", targets=["b"], replicated_subscriptions=True)
        topic = a.cluster.topic("t", **SYNCED)
        topic.publish(b"0")
        topic.create_subscription("s", start="earliest")
        until(lambda: any(row.subscription == "s" for row in a.cluster.geo.readiness("t")))
        topic.close()
        a.cluster.geo.set_policy("t", replicated_subscriptions=False)
        with a.cluster.topic("t", create=False).subscribe("s") as consumer:
            assert consumer.receive(timeout=20.0).value == b"0"
        until(lambda: JOURNAL not in a.cursors)


def test_a_malformed_replicated_subscriptions_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicated_subscriptions: expected True or False, found 1"):
        ReplicationPolicy.of({"replicated_subscriptions": 1})
