"""What `trim` returns, of a topic here and at another process: as a log's, the first one left."""

from __future__ import annotations

from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.client import Client
from tests.topic.owners import until


def test_trim_returns_the_first_message_left(place: Cluster | Client) -> None:
    """Of three ledgers of five messages, two at least have their end."""
    topic = place.topic("news", ensemble=1, durability="appended", roll_entries=1, retention_ms=None)
    assert topic.trim() == 0
    for _ in range(3):
        topic.publish_batch([b"v"] * 5)
    until(lambda: len(topic.internal_stats().ledgers) >= 3)
    assert topic.trim() == 0, "all is kept"
    topic.configure(retention_ms=0)
    assert topic.trim() in (10, 15)
