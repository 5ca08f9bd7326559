"""QuotaManager: what clients have used of their quotas. It does no I/O, and is told the time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from pyreplog.kafka.quotas.client_quotas import (
    CONSUMER_BYTE_RATE,
    QUOTAS,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    QuotaTable,
)

BURST_S = 10
"""Seconds of its quota that a client which was silent may use at once, as with Kafka's default windows."""
BUCKETS_MAX = 10_000
"""Clients whose use is known; of more, those that were seen last. Clients choose their ids themselves."""
TIME_THROTTLE_MS_MAX = 1_000
"""Of the quota of time: what a request takes is not known before it, and so nobody waits for long."""
THROTTLE_MS_MAX = (1 << 31) - 1


class LeakyBucket:
    """What a client has used of late: each use fills the bucket, which leaks at the rate of the quota.

    While it holds more than `BURST_S` seconds of the quota, the client is above it. Not for several threads.
    """

    __slots__ = ("_level", "_now_us")

    def __init__(self) -> None:
        self._level, self._now_us = 0.0, 0

    def record(self, value: float, limit: float, now_us: int) -> int:
        """Note what is used.

        Args:
            value: bytes, or whatever is counted.
            limit: of them a second.
            now_us: monotonic microseconds. One before that of an earlier call counts as that.

        Returns:
            Microseconds until the client is not above its quota any more, if it uses nothing; 0: it is not above it.
        """
        leaked = limit * (now_us - self._now_us) / 1_000_000 if now_us > self._now_us else 0.0
        self._level, self._now_us = max(self._level - leaked, 0.0) + value, max(now_us, self._now_us)
        return max(round((self._level / limit - BURST_S) * 1_000_000), 0)


class Throttles(NamedTuple):
    """Answers to clients that were above a kind of quota, and for how many milliseconds these had to be silent."""

    answers: int = 0
    total_ms: int = 0


class QuotaManager:
    """Notes what clients use, and says for how long they have to be silent. Any thread may use it.

    Example:
        ```python
        manager = QuotaManager()
        manager.replace(QuotaTable([ClientQuota(user="billing", quotas={"producer_byte_rate": 1000.0})]))
        throttle_ms = manager.record("producer_byte_rate", "billing", "client", 20_000, now_us)  # 10,000
        ```
    """

    def __init__(self) -> None:
        self.table = QuotaTable()
        """The quotas that count. Replaced as a whole."""
        self.throttles = dict.fromkeys(QUOTAS, Throttles())
        """By kind of quota."""
        self._lock = threading.Lock()
        self._buckets: OrderedDict[tuple[str, QuotaEntity], LeakyBucket] = (
            OrderedDict()
        )  # the one used last is the last

    def replace(self, table: QuotaTable) -> None:
        """Have other quotas count. What clients have used stays known, and leaks at the new rates."""
        self.table = table

    def record(self, kind: str, user: str, client_id: str, value: float, now_us: int) -> int:
        """Note what a request has used.

        Args:
            kind: one of `QUOTAS`.
            user: who the client is.
            client_id: what it calls itself.
            value: bytes; of `request_percentage` percents of a second.
            now_us: monotonic microseconds.

        Returns:
            Milliseconds for which nothing of this client should be read.
        """
        found = self.table.limit(kind, user, client_id) if self.table else None
        if found is None:
            return 0
        limit, shared = found
        with self._lock:
            bucket = self._buckets.get((kind, shared))
            if bucket is None:
                bucket = self._buckets[kind, shared] = LeakyBucket()
                if len(self._buckets) > BUCKETS_MAX:
                    self._buckets.popitem(last=False)
            self._buckets.move_to_end((kind, shared))
            most_ms = TIME_THROTTLE_MS_MAX if kind == REQUEST_PERCENTAGE else THROTTLE_MS_MAX
            throttle_ms = min(-(-bucket.record(value, limit, now_us) // 1000), most_ms)
            if throttle_ms:
                answers, total_ms = self.throttles[kind]
                self.throttles[kind] = Throttles(answers + 1, total_ms + throttle_ms)
        return throttle_ms

    def fetch_bytes_max(self, user: str, client_id: str) -> int | None:
        """Return the bytes that one fetch may take: more would be throttled even after silence. None: no limit."""
        found = self.table.limit(CONSUMER_BYTE_RATE, user, client_id) if self.table else None
        return None if found is None else int(found[0]) * BURST_S
