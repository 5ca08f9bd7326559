"""The manager starts and ends replicators as policies say. It keeps them while a policy cannot be read, and deletes no
topic."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from pyreplog import MetadataUnavailableError, PeerError
from pyreplog.clock import SystemClock
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.geo import replicator_manager
from pyreplog.geo.clusters import add_cluster
from pyreplog.geo.geo_cursor import GeoCursor
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.geo.policies import policy_key
from pyreplog.geo.policy import TARGETS_MAX
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.store import MetadataStore
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.topics import Topics
from tests.geo.fakes import Factory, Replicated, UnansweringLink, raw, remote, replicated
from tests.switching import race
from tests.waiting import until


def cursors(topic: object) -> list[str]:
    """Return the cursors of targets that keep messages of a topic."""
    stats = topic.internal_stats()  # type: ignore[attr-defined]
    return [cursor.name for cursor in stats.cursors if cursor.name.startswith("pyreplog.geo.")]


def store_cursor(store: MetadataStore, topic: str, target: str, mark: TopicPosition) -> None:
    """Store a cursor as the replicator of an earlier owner did."""
    snapshot = SystemCursorRecord(1, mark, b"").to_bytes()
    metadata = SubscriptionMetadata(token="t", created_us=1, snapshot=snapshot)
    create_subscription(store, topic, f"pyreplog.geo.{target}", metadata)


# ---- policies --------------------------------------------------------------------------------------------------


def test_replicators_follow_the_policies(place: Replicated) -> None:
    place.add("b", "c")
    topic, other = place.open("orders"), place.open("clicks")
    place.geo.set_policy("orders", targets=["b", "c"])
    place.round()
    assert place.made.pairs() == [("orders", "b"), ("orders", "c")]
    b, c = place.made.made
    assert b.calls == c.calls == ["start"] and b.topic is topic

    place.geo.set_policy("orders", rate_bytes=1000)
    place.round()
    assert b.calls == ["start", "configure"] and b.policy.rate_bytes == 1000

    place.geo.set_policy("orders", targets=["c"])
    place.round()
    assert b.calls[-1] == "remove" and "remove" not in c.calls

    place.geo.set_policy("orders", direction="receive")
    place.round()
    assert c.calls[-1] == "remove"
    place.geo.set_policy("orders", direction="send")
    place.round()
    assert place.made.pairs()[2:] == [("orders", "c")]

    place.geo.set_policy("", prefix=True, targets=["b"])
    place.geo.remove_policy("orders")
    place.round()
    assert place.made.of("orders", "c").calls[-1] == "remove"
    assert {("orders", "b"), ("clicks", "b")} <= {*place.made.pairs()}
    assert topic.publish(b"1") == 0 and other.publish(b"1") == 0
    assert place.topics.names() == ["clicks", "orders"]


def test_no_change_of_a_policy_deletes_a_topic(place: Replicated) -> None:
    """In Pulsar, removing the local cluster from the list deletes the topic with its messages."""
    place.add("b")
    topic = place.open("orders")
    topic.publish(b"kept")
    for settings in ({"targets": ["b"]}, {"direction": "receive"}, {"targets": []}, {"targets": ["b"]}):
        place.geo.set_policy("orders", **settings)  # type: ignore[arg-type]
        place.round()
    place.geo.remove_policy("orders")
    place.round()
    place.geo.set_policy("ord", prefix=True, targets=["b"])
    place.round()
    place.geo.remove_cluster("b", force=True)
    place.round()
    assert [value for batch in topic.read() for value in batch.values()] == [b"kept"]
    assert place.topics.names() == ["orders"] and place.topics.get("orders") is topic


def test_a_change_is_noticed_without_being_asked(place: Replicated) -> None:
    place.add("b")
    place.open("orders")
    place.geo.set_policy("orders", targets=["b"])
    until(lambda: place.made.pairs() == [("orders", "b")])
    place.open("orders2")
    place.geo.set_policy("orders2", targets=["b"])
    until(lambda: place.made.pairs() == [("orders", "b"), ("orders2", "b")])


def test_a_topic_that_is_opened_later(place: Replicated) -> None:
    place.add("b")
    place.geo.set_policy("orders", targets=["b"])
    place.round()
    topic = place.open("orders")
    until(lambda: place.made.pairs() == [("orders", "b")])
    topic.close()
    until(lambda: place.made.of("orders").calls[-1] == "close")
    assert "remove" not in place.made.of("orders").calls
    again = place.open("orders")
    until(lambda: len(place.made.made) == 2)
    assert place.made.of("orders").topic is again


def test_other_servers_of_a_target(place: Replicated) -> None:
    place.add("b")
    place.open("orders")
    place.geo.set_policy("orders", targets=["b"])
    place.round()
    add_cluster(place.store, "b", replace(remote("b"), url="pyreplog://moved:1"))
    place.round()
    first, second = place.made.made
    assert first.calls == ["start", "close"] and second.calls == ["start"]


def test_each_partition_has_a_replicator_of_its_own(place: Replicated) -> None:
    place.add("b")
    place.topics.partitioned.open("clicks", 3, create=True, wait=0.0, settings={"ensemble": 1})
    place.geo.set_policy("clicks", targets=["b"])
    place.round()
    assert place.made.pairs() == [(partition_name("clicks", at), "b") for at in range(3)]
    assert [fake.partitions for fake in place.made.made] == [3, 3, 3]
    place.geo.pause("clicks")
    place.geo.resync("clicks", "b")
    place.round()
    assert all(fake.calls == ["start", "pause", "resync"] for fake in place.made.made)


# ---- orders ----------------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_counted_yet(place: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that gets a new partition opens it before the number of partitions is stored."""
    place.add("b")
    place.topics.partitioned.open("clicks", 3, create=True, wait=0.0, settings={"ensemble": 1})
    monkeypatch.setattr(place.topics, "partitions_of", {"clicks": 2}.get)
    place.geo.set_policy("clicks", targets=["b"])
    place.round()
    assert [fake.partitions for fake in place.made.made] == [2, 2, 3]


def test_orders_reach_each_replicator_once(place: Replicated) -> None:
    place.add("b", "c")
    place.geo.set_policy("orders", targets=["b", "c"])
    place.geo.pause("orders", "b")
    place.open("orders")
    place.round()
    b, c = place.made.made
    assert b.calls == ["pause", "start"], "it would send before it is paused"
    assert c.calls == ["start"]
    place.geo.resync("orders", "c")
    place.round()
    place.round()
    assert c.calls == ["start", "resync"]
    place.geo.resume("orders")
    place.round()
    assert b.calls == ["pause", "start", "resume"]
    assert place.store.list("/geo/controls") == []


# ---- what keeps messages ---------------------------------------------------------------------------------------


def test_cursors_of_a_removed_cluster_are_deleted(place: Replicated) -> None:
    """This holds as well if the topic had no owner when the cluster was removed."""
    place.open("orders").close()
    store_cursor(place.store, "orders", "b", TopicPosition(0, 0, 0))
    store_cursor(place.store, "orders", "c", TopicPosition(0, 0, 0))
    place.add("b", "c")
    place.geo.set_policy("orders", targets=["b"])
    topic = place.open("orders")
    until(lambda: cursors(topic) == ["pyreplog.geo.b"])
    assert place.made.pairs() == [("orders", "b")]
    topic.close()
    place.geo.remove_cluster("b", force=True)
    topic = place.open("orders")
    place.round()
    assert cursors(topic) == []
    assert place.geo.status()[0].alarm.startswith("no cluster of this name was added")


def test_messages_are_kept_until_a_target_has_a_cursor(place: Replicated) -> None:
    """This holds as well if the replication begins long after the topic was opened."""
    place.add("b")
    place.geo.set_policy("orders", targets=["b"])
    settings = {"ensemble": 1, "roll_entries": 2}
    orders = place.topics.open("orders", settings=settings)
    clicks = place.topics.open("clicks", settings=settings)
    for topic in (orders, clicks):
        for _ in range(10):
            topic.publish(b"1")
        until(lambda topic=topic: topic.managed.trim_end(10, SystemClock().now_us()) is not None)  # type: ignore[misc]
    assert orders.trim() == 0
    until(lambda: clicks.trim() > 0)  # the cursor goes once the manager knows that no policy names the target
    orders.system_cursors.adopt(GeoCursor(orders.context, "b", is_latest=True))
    assert orders.trim() > 0


def test_a_topic_that_no_policy_names_keeps_nothing(place: Replicated) -> None:
    place.open("orders").close()
    store_cursor(place.store, "orders", "b", TopicPosition(0, 0, 0))
    place.add("b")
    topic = place.open("orders")
    place.round()
    assert cursors(topic) == [] and place.made.made == []


def test_policies_that_cannot_be_read_take_nothing_away(place: Replicated) -> None:
    place.open("orders").close()
    store_cursor(place.store, "orders", "b", TopicPosition(0, 0, 0))
    place.add("b", "c")
    place.geo.set_policy("orders", targets=["b", "c"])
    topic = place.open("orders")
    place.round()
    for key in (policy_key("orders", prefix=False), "/geo/controls/orders", "/geo/clusters/b"):
        stored = place.store.get(key)
        value = {} if stored is None else json.loads(stored.value)
        newer = json.dumps({**value, "version": 9, "min_reader": 9}).encode()
        version = place.store.create(key, newer) if stored is None else place.store.put(key, newer, stored.version)
        place.geo.set_policy("other", rate_bytes=version + 1)  # a round reads the keys again
        place.round()
        assert all(fake.calls == ["start"] for fake in place.made.made) and len(place.made.made) == 2
        assert cursors(topic) == ["pyreplog.geo.b"]
        if stored is None:
            place.store.delete(key, version)
        else:
            place.store.put(key, stored.value, version)
    topic.close()
    until(lambda: place.made.of("orders").calls == ["start", "close"])


def test_a_policy_of_tomorrow_keeps_what_an_earlier_owner_kept(place: Replicated) -> None:
    """In Pulsar #22890, cursors were deleted before policies were read."""
    place.add("b")
    place.geo.set_policy("orders", targets=["b"])
    key = policy_key("orders", prefix=False)
    stored = place.store.get(key)
    assert stored is not None
    version = place.store.put(key, b'{"version":9,"min_reader":9}', stored.version)
    place.geo.set_policy("other", targets=["b"])
    place.open("orders").close()
    store_cursor(place.store, "orders", "b", TopicPosition(0, 0, 0))
    topic = place.open("orders")
    place.round()
    assert cursors(topic) == ["pyreplog.geo.b"] and place.made.made == []
    place.store.put(key, stored.value, version)
    place.geo.set_policy("other", targets=[])
    place.round()
    assert place.made.pairs() == [("orders", "b")] and cursors(topic) == ["pyreplog.geo.b"]


def test_a_store_that_does_not_answer_ends_nothing(place: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    place.add("b")
    place.open("orders")
    place.geo.set_policy("orders", targets=["b"])
    place.round()

    def refuse(key: str) -> list[str]:
        raise MetadataUnavailableError("away")

    place.geo.set_policy("orders", rate_bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(place.store, "list", refuse)
        with pytest.raises(MetadataUnavailableError):
            place.round()
        assert place.made.of("orders").calls == ["start"]
    place.round()
    assert place.made.of("orders").calls == ["start", "configure"]


def test_failed_target_does_not_stop_replication_to_another(place: Replicated) -> None:
    place.add("b", "c")
    place.made.errors["b"] = PeerError("no way")
    topic = place.open("orders")
    topic.publish_batch([b"1", b"2"])
    place.geo.set_policy("orders", targets=["b", "c"])
    place.round()
    assert place.made.pairs() == [("orders", "c")]
    row = place.geo.status("orders")[0]
    assert (row.target, row.state, row.error) == ("b", "failed", "no way")
    assert (row.stored, row.end, row.unsent_messages) == (None, 2, 2) and row.unsent_bytes > 0
    del place.made.errors["b"]
    place.round()
    assert place.made.pairs() == [("orders", "c"), ("orders", "b")]
    assert [row.state for row in place.geo.status()] == ["running", "running"]


# ---- what other threads ask -------------------------------------------------------------------------------------


def test_another_thread_asks_for_the_state_while_targets_fail(place: Replicated) -> None:
    targets = [f"target-{at}" for at in range(TARGETS_MAX)]
    for target in targets:
        add_cluster(place.store, target, replace(remote("b"), uuid=uuid.uuid4().hex))
        place.made.errors[target] = PeerError("no way")
    place.open("orders")
    place.geo.set_policy("orders", targets=targets)
    place.round()
    rows: list[int] = []
    race(40, place.round, lambda: rows.append(len(place.geo.status())))
    assert max(rows) == len(targets)


def test_subscriptions_are_replicated_no_longer_while_another_thread_asks_where_they_are(
    place: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy changes after the manager has looked whether they are replicated."""
    place.add("b")
    monkeypatch.setattr(place.made, "link", lambda target, cluster: UnansweringLink())
    topic = place.open("orders")
    topic.create_subscription("s")
    place.geo.set_policy("orders", targets=["b"], replicated_subscriptions=True)
    place.round()
    until(lambda: place.geo.where("orders", "s"))

    def change(name: str) -> list[str]:
        place.geo.set_policy("orders", replicated_subscriptions=False)
        place.round()
        return [name]

    monkeypatch.setattr(replicator_manager, "names_of", change)
    assert place.manager.where("orders", "other") == []


# ---- topics that nobody owns ----------------------------------------------------------------------------------


def test_manager_opens_unowned_topics_that_a_policy_replicates(tmp_path: Path) -> None:
    with replicated(tmp_path / "cluster") as place:
        place.add("b")
        for name in ("orders", "clicks", "other"):
            place.open(name).publish(b"1")
            place.topics.opened()[0].close()
        place.geo.set_policy("orders", targets=["b"])
        place.geo.set_policy("clicks", targets=["b"], direction="receive")
        place.round()
        assert place.topics.opened() == [], "this process does not serve topics"
        place.opens = True
        place.round()
        until(lambda: [topic.name for topic in place.topics.opened()] == ["orders"])
        until(lambda: place.made.pairs() == [("orders", "b")])


def test_a_topic_without_anything_unsent_is_not_opened(place: Replicated) -> None:
    place.add("b")
    place.geo.set_policy("", prefix=True, targets=["b"])
    ends = {}
    for name in ("sent", "unsent", "new"):
        topic = place.open(name)
        topic.publish_batch([b"1", b"22"])
        ends[name] = topic.managed.end
        topic.close()
    store_cursor(place.store, "sent", "b", ends["sent"])
    store_cursor(place.store, "unsent", "b", ends["unsent"]._replace(offset=1))
    place.made.made.clear()
    place.opens = True
    place.round()
    assert place.manager.complete == {"sent"}
    until(lambda: {fake.topic.name for fake in place.made.made} == {"unsent", "new"})
    place.round()
    assert {topic.name for topic in place.topics.opened()} == {"unsent", "new"}


def test_a_topic_of_a_killed_owner_is_opened_although_it_seems_complete(place: Replicated) -> None:
    """Its last ledger is open, so that the end of the topic is unknown."""
    place.add("b")
    place.geo.set_policy("orders", targets=["b"])
    topic = place.open("orders")
    topic.publish(b"1")
    store = place.store
    stored = store.get("/topics/orders")
    assert stored is not None
    end = topic.managed.end
    topic.close()
    store_cursor(store, "orders", "b", end)
    now = store.get("/topics/orders")
    assert now is not None
    value = json.loads(now.value)
    value["ledgers"] = json.loads(stored.value)["ledgers"]
    store.put("/topics/orders", json.dumps(value).encode(), now.version)
    place.made.made.clear()
    place.opens = True
    place.round()
    until(lambda: place.made.pairs() == [("orders", "b")])


def test_a_close_ends_the_replicators_before_the_topics(tmp_path: Path) -> None:
    closed: list[str] = []
    with replicated(tmp_path / "cluster") as place:
        place.add("b")
        topic = place.open("orders")
        place.geo.set_policy("orders", targets=["b"])
        place.round()
        fake = place.made.of("orders")
        fake.close = lambda: closed.append(f"topic open: {not topic.is_closing}")  # type: ignore[method-assign]
    assert closed == ["topic open: True"]


def test_a_process_without_policies_pays_for_one_watch(tmp_path: Path) -> None:
    with LedgerCluster.embedded(tmp_path / "cluster", bookies=1) as cluster:
        with (
            Topics(cluster, SystemClock()) as topics,
            GeoReplication(cluster.metadata, SystemClock(), Factory()) as geo,
        ):
            geo.start(topics, lambda: True)
            topics.open("orders", settings={"ensemble": 1})
            assert geo.replicator_manager is not None and not geo.replicator_manager.round()
            assert cluster.metadata.list("/geo") == []


def test_manager_registers_its_server_until_it_is_closed(place: Replicated) -> None:
    place.opens = True
    place.add("b")
    place.round()
    (name,) = place.store.list("/geo/servers")
    assert name == place.manager.server
    value = json.loads(raw(place.store, f"/geo/servers/{name}"))
    assert value.keys() == {"version", "min_reader", "address", "host", "pid"} and value["address"] == ""
    place.geo.close()
    assert place.store.list("/geo/servers") == []
