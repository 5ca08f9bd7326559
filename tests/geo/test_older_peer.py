"""The other cluster has an older version: the status says so, nothing is lost, and all goes on after the upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.metadata.layout import cluster_id
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.model.wire.protocol import ORIGINS
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server import topic_server
from tests.geo.places import Place
from tests.geo.sites import SYNCED
from tests.waiting import until


class Replicating(Place):
    """A cluster that replicates a topic and its subscriptions to another one."""

    def know(self, other: Replicating) -> None:
        uuid = cluster_id(other.cluster.metadata).hex()
        self.cluster.geo.add_cluster(other.name, f"pyreplog://{other.wire.address}", uuid=uuid)
        self.cluster.geo.set_policy("t", targets=[other.name], replicated_subscriptions=True)

    @property
    def topic(self) -> Topic:
        topic = self.cluster.topic("t", **SYNCED)
        assert isinstance(topic, Topic)
        return topic

    def publish(self, start: int, end: int) -> None:
        self.topic.publish_batch([b"%d" % number for number in range(start, end)])

    def subscribe(self) -> Consumer:
        return self.topic.subscribe("s", start="earliest", type="shared")

    def row(self) -> ReplicatorStatus:
        return until(lambda: next(iter(self.cluster.geo.status("t")), None))

    def errors(self) -> str:
        """Return why subscriptions are not exchanged."""
        return "; ".join(row.error for row in self.cluster.geo.readiness("t"))

    def is_ready(self) -> bool:
        rows = self.cluster.geo.readiness("t")
        return any(row.subscription == "s" and row.is_ready and not row.error for row in rows)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Replicating, Replicating]]:
    with ExitStack() as stack:
        yield Replicating(stack, tmp_path / "a"), Replicating(stack, tmp_path / "b")


@pytest.mark.parametrize("is_asking", [True, False])
@pytest.mark.parametrize("feature", ["origins", "subscriptions"])
def test_status_reports_an_older_peer_and_replication_resumes_after_its_upgrade(
    places: tuple[Replicating, Replicating], monkeypatch: pytest.MonkeyPatch, feature: str, is_asking: bool
) -> None:
    """The cluster with the lower id opens the exchange of subscriptions; the older version is on either side."""
    new, old = sorted(places, key=lambda place: cluster_id(place.cluster.metadata), reverse=is_asking)
    new.serve()
    with monkeypatch.context() as patch:
        patch.setattr(topic_server, "FEATURES", frozenset() if feature == "origins" else frozenset({ORIGINS}))
        old.serve()
    new.know(old)
    old.know(new)
    new.publish(0, 10)
    with new.subscribe() as consumer:
        acked = [int(message.value) for message in (consumer.receive(timeout=20.0) for _ in range(4))]
        for number in acked:
            consumer.acknowledge(number)
        consumer.flush()
    if feature == "origins":
        until(lambda: "does not know 'origins': upgrade it" in new.row().error)
        assert (new.row().state, new.row().unsent_messages) == ("failed", 10) and new.row().alarm
    else:
        until(lambda: not new.row().unsent_messages and len(old.topic) == 10)
    if not is_asking:
        until(lambda: "upgrade it" in new.errors())
    # otherwise the client of the "older" cluster, which runs new code, might have opened the exchange
    if feature == "origins" or not is_asking:
        assert not new.is_ready()
    old.publish(100, 105)
    until(lambda: len(new.topic) == 15)  # this side has the feature
    assert new.topic.trim() == 0
    old.serve()
    new.cluster.geo.pause("t")  # a refused request is repeated after 30 s, or at once:
    until(lambda: new.row().state == "paused")
    new.cluster.geo.resume("t")
    until(lambda: len(old.topic) == 15)
    until(new.is_ready)
    until(lambda: not new.row().alarm and not new.row().error)
    with old.subscribe() as consumer:
        received = sorted(int(consumer.receive(timeout=20.0).value) for _ in range(11))
    assert received == sorted({*range(10), *range(100, 105)} - {*acked})
