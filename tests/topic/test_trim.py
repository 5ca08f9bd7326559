"""`trim` returns the first offset that is left, here and at another process, as `trim` of a log does."""

from __future__ import annotations

from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.client import Client
from tests.topic.owners import until


def test_trim_returns_the_first_message_left(place: Cluster | Client) -> None:
    """Of three ledgers of five messages, at least two are closed."""
    topic = place.topic("news", ensemble=1, durability="appended", roll_entries=1, retention_ms=None)
    assert topic.trim() == 0
    for _ in range(3):
        topic.publish_batch([b"v"] * 5)
    until(lambda: len(topic.internal_stats().ledgers) >= 3)
    assert topic.trim() == 0, "all is kept"
    topic.configure(retention_ms=0)
    assert topic.trim() in (10, 15)
