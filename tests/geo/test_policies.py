"""Which policy holds for a topic; fields that a newer version has stored are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pyreplog import ConfigError, InvalidMetadataError, MetadataVersionError, NoSuchClusterError
from pyreplog.clock import SystemClock
from pyreplog.geo.clusters import CLUSTERS, RemoteCluster, add_cluster, load_clusters
from pyreplog.geo.geo_replication import GeoReplication
from pyreplog.geo.policies import (
    TopicControls,
    change_controls,
    change_policy,
    delete_policy,
    load_config,
    policy_key,
)
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.revision import REVISION
from pyreplog.metadata.memory import MemoryStore
from pyreplog.partition.metadata.topic_metadata import create_topic
from tests.geo.fakes import Factory, Replicated, raw, remote


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def geo(store: MemoryStore) -> Iterator[GeoReplication]:
    for name in ("b", "c"):
        add_cluster(store, name, remote(name))
    with GeoReplication(store, SystemClock(), Factory()) as geo:
        yield geo


def test_the_policy_of_the_topic_beats_the_longest_prefix(geo: GeoReplication) -> None:
    geo.set_policy("", prefix=True, targets=["b"], rate_bytes=1)
    geo.set_policy("shop.", prefix=True, targets=["b"], rate_bytes=2)
    geo.set_policy("shop.orders", prefix=True, targets=["b"], rate_bytes=3)
    geo.set_policy("shop.orders", targets=["c"])
    geo.set_policy("shop.clicks", targets=[])
    holds = {name: geo.policy(name) for name in ("x", "shop.", "shop.a", "shop.orders", "shop.orders2", "shop.clicks")}
    assert {name: policy and policy.rate_bytes for name, policy in holds.items()} == {
        "x": 1, "shop.": 2, "shop.a": 2, "shop.orders": None, "shop.orders2": 3, "shop.clicks": None,
    }  # fmt: skip
    assert holds["shop.orders"] == ReplicationPolicy(targets=("c",))
    assert holds["shop.clicks"] == ReplicationPolicy()
    assert geo.remove_policy("shop.orders") and not geo.remove_policy("shop.orders")
    assert geo.policy("shop.orders") == geo.policy("shop.orders2")


def test_a_partition_has_the_policy_of_its_topic(geo: GeoReplication) -> None:
    geo.set_policy("clicks-", prefix=True, targets=["c"])
    assert geo.policy("clicks-partition-3") is None
    assert geo.policy("clicks-page") is not None
    geo.set_policy("clicks", targets=["b"])
    assert geo.policy("clicks-partition-3") == ReplicationPolicy(targets=("b",))
    geo.set_policy("clicks-partition-3", targets=[])
    assert geo.policy("clicks-partition-3") == ReplicationPolicy()


def test_prefixes_with_stars_dots_and_slashes(geo: GeoReplication) -> None:
    for prefix in ("*", "**", ".", "..", "a/b*", "ü "):
        geo.set_policy(prefix, prefix=True, targets=["b"])
    assert sorted(row.name for row in geo.policies()) == sorted(["*", "**", ".", "..", "a/b*", "ü "])
    assert all(row.is_prefix for row in geo.policies())
    assert geo.policy("***") and geo.policy(".x") and geo.policy("a/b*c") and geo.policy("a/b") is None


def test_settings_that_are_not_given_stay(geo: GeoReplication) -> None:
    geo.set_policy("t", targets=["c", "b", "b"], rate_bytes=5)
    changed = geo.set_policy("t", start="latest")
    assert changed == ReplicationPolicy(targets=("b", "c"), rate_bytes=5, start="latest") == geo.policy("t")
    assert geo.set_policy("t", rate_bytes=None).rate_bytes is None


@pytest.mark.parametrize(
    "settings",
    [{"targets": "b"}, {"targets": [1]}, {"targets": ["b"], "start": "now"}, {"rate": 1}, {"window_bytes": 1},
     {"replicated_from": ["b"]}, {"backlog_policy": "evict"}, {"ttl_ms": 0}, {"direction": "both"},
     {"targets": [f"c{at}" for at in range(65)]}],
)  # fmt: skip
def test_malformed_settings_of_a_policy_are_refused(geo: GeoReplication, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        geo.set_policy("t", **settings)  # type: ignore[arg-type]
    assert geo.policies() == []


def test_a_target_that_was_not_added(geo: GeoReplication) -> None:
    with pytest.raises(NoSuchClusterError, match="cluster x: it was not added; known clusters: b, c"):
        geo.set_policy("t", targets=["b", "x"])
    assert geo.policies() == []


# ---- what newer versions stored -------------------------------------------------------------------------------


def change_stored(store: MemoryStore, key: str, **fields: object) -> None:
    stored = store.get(key)
    assert stored is not None
    store.put(key, json.dumps({**json.loads(stored.value), **fields}).encode(), stored.version)


def test_fields_of_newer_versions_are_kept(store: MemoryStore, geo: GeoReplication) -> None:
    geo.set_policy("t", targets=["b"])
    key = policy_key("t", prefix=False)
    settings = json.loads(raw(store, key))["settings"]
    change_stored(store, key, version=9, colour="red", settings={**settings, "compress": "zstd"})
    geo.set_policy("t", rate_bytes=7)
    value = json.loads(raw(store, key))
    assert value == {
        "version": 9, "min_reader": 1, "colour": "red",
        "settings": {"targets": ["b"], "rate_bytes": 7, "compress": "zstd"},
    }  # fmt: skip

    change_stored(store, f"{CLUSTERS}/b", version=9, zone="z")
    add_cluster(store, "b", RemoteCluster(uuid=remote("b").uuid, url="pyreplog://new:1"))
    value = json.loads(raw(store, f"{CLUSTERS}/b"))
    assert (value["version"], value["zone"], value["url"]) == (9, "z", "pyreplog://new:1")

    geo.pause("t", "b")
    change_stored(store, "/geo/controls/t", version=9, note="x")
    geo.resync("t", "b")
    value = json.loads(raw(store, "/geo/controls/t"))
    assert (value["version"], value["note"], value["paused"], value["resync"]) == (9, "x", ["b"], ["b"])


def test_a_policy_that_cannot_be_read_is_not_none(store: MemoryStore, geo: GeoReplication) -> None:
    geo.set_policy("t", prefix=True, targets=["b"])
    geo.set_policy("topic", targets=["b"])
    change_stored(store, policy_key("topic", prefix=False), min_reader=2, version=2)
    config = load_config(store)
    with pytest.raises(InvalidMetadataError, match="reader of version 2"):
        config.policy_of("topic")  # the policy of the prefix is not used in its place
    assert config.policy_of("tomato") == ReplicationPolicy(targets=("b",))
    with pytest.raises(MetadataVersionError):
        geo.set_policy("topic", targets=["c"])  # writing would remove the fields that this version does not know
    change_stored(store, f"{CLUSTERS}/c", uuid="00")
    assert isinstance(load_clusters(store)["c"], InvalidMetadataError)


@pytest.mark.parametrize("value", [b"", b"[]", b'{"version":1}', b'{"version":1,"settings":{"targets":"b"}}',
                                   b'{"version":1,"settings":{"targets":[1]}}', b'{"version":1,"settings":[]}'])  # fmt: skip
def test_garbled_policies_in_the_store_are_refused(store: MemoryStore, geo: GeoReplication, value: bytes) -> None:
    store.create(policy_key("t", prefix=False), value)
    with pytest.raises(InvalidMetadataError, match="/geo/topics/t"):
        load_config(store).policy_of("t")


# ---- controls --------------------------------------------------------------------------------------------------


def test_orders_for_a_topic_hold_for_its_partitions(store: MemoryStore) -> None:
    change_controls(store, "clicks", lambda _: TopicControls(paused=("b",)))
    change_controls(store, "clicks-partition-1", lambda _: TopicControls(resync=("c",)))
    config = load_config(store)
    assert config.controls_of("clicks-partition-0") == TopicControls(paused=("b",))
    assert config.controls_of("clicks-partition-1") == TopicControls(paused=("b",), resync=("c",))
    change_controls(store, "clicks", lambda _: TopicControls())
    assert store.get("/geo/controls/clicks") is None


def test_every_policy_change_updates_the_revision_key(store: MemoryStore, geo: GeoReplication) -> None:
    seen = {raw(store, REVISION)}
    for change in (
        lambda: geo.set_policy("t", targets=["b"]),
        lambda: geo.pause("t"),
        lambda: geo.resume("t"),
        lambda: geo.resync("t", "b"),
        lambda: geo.remove_policy("t"),
        lambda: geo.remove_cluster("b"),
        lambda: add_cluster(store, "b", remote("b")),
    ):
        change()
        assert raw(store, REVISION) not in seen
        seen.add(raw(store, REVISION))
    before = raw(store, REVISION)
    assert not delete_policy(store, "none", prefix=False)
    assert raw(store, REVISION) == before


def test_a_change_that_changes_nothing_writes_no_policy(store: MemoryStore, geo: GeoReplication) -> None:
    geo.set_policy("t", targets=["b"])
    key = policy_key("t", prefix=False)
    before = store.get(key)
    change_policy(store, "t", lambda policy: policy, prefix=False)
    assert store.get(key) == before


def test_topics_of_partitions_are_refused(place: Replicated) -> None:
    """Topics of partitions are not replicated between clusters: the error says so, and a policy of a prefix skips
    them."""
    place.add("b")
    create_topic(place.store, "clicks", partitions=2, replication_factor=1, now_us=1)
    with pytest.raises(ConfigError, match=r"a topic of partitions .* not replicated between clusters yet"):
        place.geo.set_policy("clicks", targets=["b"])
    assert place.geo.policies() == []
    place.geo.set_policy("cl", prefix=True, targets=["b"])
    place.round()
    assert not place.made.made
    place.open("clicks")  # a topic of ledgers, of the same name
    place.geo.set_policy("clicks", targets=["b"])
