"""Stats of an imaginary topic."""

from __future__ import annotations

from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import ConsumerStats, SubscriptionStats, TopicStats

S = 1_000_000
NOW = 1_700_000_000 * S


def orders() -> TopicStats:
    """Return the stats of a topic with a subscription in use, an unused one, and a reader that lags."""
    used = SubscriptionStats(
        name="used", at_us=NOW, type="shared", mark=TopicPosition(90, 9, 900), backlog_messages=7, backlog_entries=2,
        backlog_bytes=150, oldest_us=NOW - 2 * S, unacked=3, delayed=2, replay=1, delivered_messages=98,
        redelivered_messages=1, last_acked_us=NOW - S, persists=5,
        consumers=(ConsumerStats(name="one", consumer=1, permits=10), ConsumerStats(name="two", consumer=2, permits=5)),
        properties={"team": "a"},
    )  # fmt: skip
    left = SubscriptionStats(
        name="left", at_us=NOW, mark=TopicPosition(50, 5, 500), backlog_messages=50, backlog_entries=5, backlog_bytes=500,
        oldest_us=NOW - 3600 * S, stalled=True,
    )  # fmt: skip
    reader = SubscriptionStats(name="reader", at_us=NOW, durable=False, backlog_messages=100, oldest_us=NOW - 9999 * S)
    return TopicStats(
        name="orders", at_us=NOW, owner="host:1", epoch=4, end=TopicPosition(100, 10, 1000), start=TopicPosition(20, 2, 200),
        storage_bytes=800, published_messages=100, quota_bytes=400, quota_exceeded=("bytes",), publishing="held",
        quota_evictions={"age": 3}, subscriptions=(used, left, reader),
    )  # fmt: skip
