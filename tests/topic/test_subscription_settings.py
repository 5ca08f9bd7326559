"""Settings of subscriptions: they are stored, replaced when others are given, and equal for all consumers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.cursors.subscription_metadata import HOME_PROPERTY, SETTINGS_PROPERTY, load_subscription, subscription_key
from pyreplog.errors import ConfigError, InvalidArgumentError, MetadataUnavailableError, SubscriptionBusyError
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.owner import subscriptions
from tests.topic.handling import PLAIN, open_cluster, receive, until
from tests.topic.remoting import ServedCluster

WORK: dict[str, Any] = {"type": "shared", "nack_min_ms": 0, "nack_max_ms": 0, "max_redeliveries": 1, "dead_letter": "d"}


def settings_of(cluster: Cluster, topic: str = "t") -> SubscriptionConfig:
    """Return the settings that the owner uses; check that the stored ones are equal."""
    used = cluster.topic(topic).subscription("s").settings
    assert load_subscription(cluster.metadata, topic, "s").config == used
    return used


def test_settings_are_stored_with_the_subscription(tmp_path: Path) -> None:
    """A consumer without settings, of a process that starts later, uses the stored ones."""
    with open_cluster(tmp_path / "c") as cluster:
        topic = cluster.topic("t", **PLAIN)
        topic.create_subscription("s", start="earliest", properties={"of": "us"}, **WORK)
        topic.publish(b"poison")
    with open_cluster(tmp_path / "c") as cluster:
        topic = cluster.topic("t")
        assert settings_of(cluster) == SubscriptionConfig(**WORK)
        dead = cluster.topic("d", **PLAIN)
        with dead.subscribe("support", start="earliest") as support, topic.subscribe("s") as consumer:
            consumer.nack(receive(consumer, 1), delay=0.0)
            consumer.nack(receive(consumer, 1), delay=0.0)
            assert receive(support, 1)[0].value == b"poison"
        assert topic.stats().subscriptions[0].properties == {"of": "us"}


def test_later_settings_replace_stored_ones(served: ServedCluster, place: Cluster | Client) -> None:
    topic = place.topic("t", **PLAIN)
    topic.create_subscription("s", **WORK)
    topic.create_subscription("s")
    assert settings_of(served.cluster) == SubscriptionConfig(**WORK)
    topic.create_subscription("s", max_redeliveries=5)
    assert settings_of(served.cluster) == SubscriptionConfig(**{**WORK, "max_redeliveries": 5})
    topic.subscribe("s", dead_letter=None, ack_timeout_ms=60_000).close()
    changed = SubscriptionConfig(**{**WORK, "max_redeliveries": 5, "dead_letter": None, "ack_timeout_ms": 60_000})
    assert settings_of(served.cluster) == changed
    topic.subscribe("s").close()
    served.cluster.topic("t").close()
    assert settings_of(served.cluster) == changed


def test_settings_of_a_subscription_with_consumers_cannot_be_changed(
    served: ServedCluster, place: Cluster | Client
) -> None:
    topic = place.topic("t", **PLAIN)
    with topic.subscribe("s", **WORK):
        topic.create_subscription("s", type="shared", max_redeliveries=1)
        topic.subscribe("s", dead_letter="d").close()
        with pytest.raises(SubscriptionBusyError):
            topic.create_subscription("s", dead_letter=None)
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s", type="shared", nack_min_ms=0, max_redeliveries=2)
        assert settings_of(served.cluster) == SubscriptionConfig(**WORK)
    with pytest.raises(ConfigError, match="none_of_these"):
        topic.create_subscription("s", none_of_these=1)
    with pytest.raises(InvalidArgumentError, match="another topic"):
        topic.create_subscription("s", dead_letter="t")
    for reserved in (SETTINGS_PROPERTY, HOME_PROPERTY):
        with pytest.raises(InvalidArgumentError, match=f"'{reserved}' is reserved"):
            topic.create_subscription("other", properties={reserved: "{}"})
    assert settings_of(served.cluster) == SubscriptionConfig(**WORK)


def test_settings_that_cannot_be_stored_do_not_take_effect(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MetadataUnavailableError("away")

    topic = served.cluster.topic("t", **PLAIN)
    topic.create_subscription("s", **WORK)
    with monkeypatch.context() as away:
        away.setattr(subscriptions, "change_subscription", fail)
        with pytest.raises(MetadataUnavailableError):
            topic.create_subscription("s", type="failover")
        assert topic.subscription("s").settings == SubscriptionConfig(**WORK)
    assert settings_of(served.cluster) == SubscriptionConfig(**WORK)
    topic.create_subscription("s", type="failover")
    assert settings_of(served.cluster) == SubscriptionConfig(**{**WORK, "type": "failover"})


def test_settings_of_a_consumer_are_stored_once_the_store_is_back(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers come and go while the metadata store is away."""

    def fail(*_: object) -> None:
        raise MetadataUnavailableError("away")

    topic = served.cluster.topic("t", **PLAIN)
    topic.create_subscription("s", **WORK)
    with monkeypatch.context() as away:
        away.setattr(subscriptions, "change_subscription", fail)
        with topic.subscribe("s", max_redeliveries=9):
            assert topic.subscription("s").settings.max_redeliveries == 9
        topic.maintain()
        assert load_subscription(served.cluster.metadata, "t", "s").config == SubscriptionConfig(**WORK)
    until(lambda: load_subscription(served.cluster.metadata, "t", "s").config.max_redeliveries == 9)
    assert settings_of(served.cluster) == SubscriptionConfig(**{**WORK, "max_redeliveries": 9})


def test_a_subscription_that_is_not_stored_has_settings_too(served: ServedCluster) -> None:
    topic = served.cluster.topic("t", **PLAIN)
    with topic.subscribe("s", durable=False, **WORK):
        assert topic.subscription("s").settings == SubscriptionConfig(**WORK)
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s", durable=False, max_redeliveries=3)
        topic.subscribe("s", durable=False, max_redeliveries=1).close()


def test_new_partitions_have_the_settings_of_the_others(served: ServedCluster, place: Cluster | Client) -> None:
    topic = place.topic("p", partitions=1, **PLAIN)
    topic.create_subscription("s", **WORK)
    topic = place.topic("p", partitions=2)
    with topic.subscribe("s", type="shared"):
        assert settings_of(served.cluster, "p-partition-1") == SubscriptionConfig(**WORK)
    topic.create_subscription("s", max_redeliveries=7)
    for partition in range(2):
        assert settings_of(served.cluster, f"p-partition-{partition}").max_redeliveries == 7


def test_records_of_before_have_the_default_settings(served: ServedCluster) -> None:
    """A subscription with default settings has a record of the former form, all fields of which older processes know."""
    topic = served.cluster.topic("t", **PLAIN)
    topic.create_subscription("s", type="shared")
    stored = served.cluster.metadata.get(subscription_key("t", "s"))
    assert stored is not None
    assert json.loads(stored.value)["properties"] == {}
    topic.close()
    assert settings_of(served.cluster) == SubscriptionConfig(type="shared")


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "any"}, {"ack_timeout_ms": 0}, {"nack_min_ms": -1}, {"nack_min_ms": 0.5},
        {"nack_min_ms": 2, "nack_max_ms": 1}, {"max_redeliveries": -1}, {"dead_letter": 5}, {"max_unacked": 0},
        {"max_unacked_consumer": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_setting_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{list(wrong)[-1]}: expected"):
        SubscriptionConfig.of(wrong)
