"""QuotaManager: measures the use of quotas by clients. It does no I/O; callers pass the time."""

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
"""Seconds of its quota that an idle client may use at once, as with Kafka's default windows."""
BUCKETS_MAX = 10_000
"""Maximum number of clients whose use is kept, the most recently used ones: clients choose their ids themselves."""
TIME_THROTTLE_MS_MAX = 1_000
"""Maximum throttle time for the quota of request time, milliseconds. It is short because the time of a request is
unknown before the request."""
THROTTLE_MS_MAX = (1 << 31) - 1


class LeakyBucket:
    """A leaky bucket of recent use: each use fills the bucket, which leaks at the rate of the quota.

    While it holds more than `BURST_S` seconds of the quota, the client is above its quota. Not thread-safe.
    """

    __slots__ = ("_level", "_now_us")

    def __init__(self) -> None:
        self._level, self._now_us = 0.0, 0

    def record(self, value: float, limit: float, now_us: int) -> int:
        """Record use of the quota.

        Args:
            value: amount used, such as bytes.
            limit: the quota: amount per second.
            now_us: monotonic time, microseconds. A time before that of an earlier call counts as the earlier call's.

        Returns:
            Microseconds until the client is below its quota again if it uses nothing; 0: it is not above the quota.
        """
        leaked = limit * (now_us - self._now_us) / 1_000_000 if now_us > self._now_us else 0.0
        self._level, self._now_us = max(self._level - leaked, 0.0) + value, max(now_us, self._now_us)
        return max(round((self._level / limit - BURST_S) * 1_000_000), 0)


class Throttles(NamedTuple):
    """Number of responses throttled for a kind of quota, and the sum of their throttle times, milliseconds."""

    answers: int = 0
    total_ms: int = 0


class QuotaManager:
    """Records what clients use, and computes throttle times. Any thread may use it.

    Example:
        ```python
        manager = QuotaManager()
        manager.replace(QuotaTable([ClientQuota(user="billing", quotas={"producer_byte_rate": 1000.0})]))
        throttle_ms = manager.record("producer_byte_rate", "billing", "client", 20_000, now_us)  # 10,000
        ```
    """

    def __init__(self) -> None:
        self.table = QuotaTable()
        """The quotas that apply; replaced as a whole."""
        self.throttles = dict.fromkeys(QUOTAS, Throttles())
        """Throttled responses by kind of quota."""
        self._lock = threading.Lock()
        self._buckets: OrderedDict[tuple[str, QuotaEntity], LeakyBucket] = OrderedDict()  # least recently used first

    def replace(self, table: QuotaTable) -> None:
        """Replace the quotas. Recorded use is kept, and leaks at the new rates."""
        self.table = table

    def record(self, kind: str, user: str, client_id: str, value: float, now_us: int) -> int:
        """Record the use of a quota by a request.

        Args:
            kind: one of `QUOTAS`.
            user: user of the client.
            client_id: client id of the client.
            value: bytes; for `request_percentage`, percents of a second.
            now_us: monotonic time, microseconds.

        Returns:
            Milliseconds for which no more requests of the client should be read.
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
        """Return the bytes of a fetch above which it would be throttled even after idle time; None: no limit."""
        found = self.table.limit(CONSUMER_BYTE_RATE, user, client_id) if self.table else None
        return None if found is None else int(found[0]) * BURST_S
