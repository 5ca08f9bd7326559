"""What became of the messages of a subscription since its topic was opened, and of a consumer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.cursor import Cursor


@dataclass
class ConsumerCounters:
    """Of one consumer, since it was attached. address: HOST:PORT of a remote one. *_us: time of day, 0: never."""

    address: str
    connected_us: int
    delivered_bytes: int = 0
    redelivered: int = 0
    last_delivered_us: int = 0
    last_acked_us: int = 0

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us


@dataclass
class SubscriptionCounters:
    """Messages, and bytes of their values; persists: stored records of the cursor; *_us: when last, 0: never."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    expired: int = 0
    evicted: int = 0
    dead_lettered: int = 0
    persists: int = 0
    last_delivered_us: int = 0
    last_flow_us: int = 0
    last_mark_us: int = 0
    last_expired_us: int = 0

    begun_at: int = 0
    """Messages that were acknowledged when the topic was opened, those that are trimmed included."""

    def acked(self, cursor: Cursor) -> int:
        """Messages acknowledged since; less after a seek back."""
        return max(cursor.mark.offset + cursor.acks.acked_messages - self.begun_at, 0)

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered += len(batch)
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us
