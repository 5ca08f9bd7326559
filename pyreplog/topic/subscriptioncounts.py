"""What became of a subscription's messages, since its topic was opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyreplog._native.messages import MessageBatch


@dataclass
class Counts:
    """Messages, and bytes of their values; *_us: when last, 0: never."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    evicted: int = 0
    dead_lettered: int = 0
    last_delivered_us: int = 0
    last_flow_us: int = 0
    last_expired_us: int = 0

    def deliver(self, batch: MessageBatch, redelivered: Mapping[int, int], now_us: int) -> None:
        self.delivered += len(batch)
        self.delivered_bytes += batch.value_bytes
        self.redelivered += len(redelivered)
        self.last_delivered_us = now_us
