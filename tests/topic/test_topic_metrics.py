"""Metrics of topics: names, labels, and values for subscriptions without consumers."""

from __future__ import annotations

import dataclasses
import re
import urllib.request

import pytest

from pyreplog.metrics import Metric, MetricsServer
from pyreplog.topic.model.stats import TopicStats
from pyreplog.topic.owner.report import topic_metrics
from tests.topic.stats_samples import NOW, orders


def values(metrics: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    """Return the values by the values of the labels."""
    (metric,) = [metric for metric in metrics if metric.name == f"pyreplog_{name}"]
    return {tuple(labels.values()): value for labels, value in metric.samples}  # type: ignore[misc]


def test_the_lag_of_a_subscription_without_consumers() -> None:
    metrics = topic_metrics([orders()])
    assert values(metrics, "subscription_lag_seconds") == {
        ("orders", "used"): 2.0, ("orders", "left"): 3600.0, ("orders", "reader"): 9999.0
    }  # fmt: skip
    assert values(metrics, "subscription_consumers")["orders", "left"] == 0
    topic = orders()
    used = dataclasses.replace(topic.subscriptions[0], oldest_us=None)
    done = dataclasses.replace(topic.subscriptions[1], backlog_messages=0, oldest_us=None)
    unsure = topic_metrics([dataclasses.replace(topic, subscriptions=(used, done))])
    assert values(unsure, "subscription_lag_seconds") == {("orders", "left"): 0.0}, "not known is not 0"


@pytest.mark.parametrize("name, value", [
    ("topic_published_messages", 100), ("topic_storage_bytes", 800), ("topic_backlog_bytes", 500),
    ("topic_subscriptions", 3), ("topic_publishing_stopped", 1), ("topic_quota_bytes", 400),
])  # fmt: skip
def test_metrics_of_a_topic(name: str, value: float) -> None:
    assert values(topic_metrics([orders()]), name) == {("orders",): value}


@pytest.mark.parametrize("name, value", [
    ("backlog_messages", 7), ("backlog_entries", 2), ("backlog_bytes", 150), ("unacked_messages", 3),
    ("delayed_messages", 2), ("replay_messages", 1), ("permits", 15), ("consumers", 2), ("delivered_messages", 98),
    ("redelivered_messages", 1), ("persists", 5),
    ("stalled", 0), ("last_acked_timestamp_seconds", NOW / 1e6 - 1),
])  # fmt: skip
def test_metrics_of_a_subscription(name: str, value: float) -> None:
    assert values(topic_metrics([orders()]), f"subscription_{name}")["orders", "used"] == value


def test_metrics_show_exceeded_quotas() -> None:
    metrics = topic_metrics([orders(), TopicStats(name="free", at_us=NOW)])
    assert values(metrics, "topic_quota_exceeded") == {("orders", "bytes"): 1.0}
    assert values(metrics, "topic_quota_evictions")["orders", "age"] == 3
    assert values(metrics, "topic_quota_seconds") == {}
    timed = dataclasses.replace(orders(), quota_ms=1500, quota_exceeded=())
    assert values(topic_metrics([timed]), "topic_quota_seconds") == {("orders",): 1.5}
    assert values(topic_metrics([timed]), "topic_quota_exceeded") == {("orders", "bytes"): 0, ("orders", "age"): 0}


def test_each_metric_is_named_once_and_explained() -> None:
    metrics = topic_metrics([orders(), dataclasses.replace(orders(), name="others")])
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        assert re.fullmatch(r"pyreplog_(topic|subscription)_[a-z_]+", metric.name) and not metric.name.endswith(
            "_total"
        )
        assert metric.help.endswith(".") and "\n" not in metric.help and metric.kind in ("counter", "gauge")
        assert len({tuple(labels) for labels, _ in metric.samples}) <= 1
        assert len({tuple(labels.items()) for labels, _ in metric.samples}) == len(metric.samples)
    assert [metric.samples for metric in topic_metrics([])] == [[]] * len(metrics)


def test_a_scrape_has_metrics_of_topics() -> None:
    with (
        MetricsServer([lambda: topic_metrics([orders()])]) as server,
        urllib.request.urlopen("http://{}:{}/metrics".format(*server.address), timeout=60) as reply,
    ):
        text = reply.read().decode()
    assert 'pyreplog_subscription_lag_seconds{subscription="left",topic="orders"} 3600.0' in text
    assert 'pyreplog_topic_published_messages_total{topic="orders"} 100.0' in text
