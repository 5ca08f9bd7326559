"""GroupTrends: where committed offsets were at earlier scrapes, so that metrics know rates. No I/O."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.model.trend import WINDOW_S, Sample, Trend, trend

SAMPLE_S = 5.0
"""Samples are at least so far apart, but for the last one."""

Place = tuple[str, TopicPartition]
"""A group, and a partition for which it has committed an offset."""


class GroupTrends:
    """Samples of committed offsets over the window of `topic.model.trend`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[Place, deque[Sample]] = {}

    def look(self, place: Place, at_us: int, end: int, offset: int, lag: int) -> Trend:
        """Note where an offset is; return how fast it moves, and how long it has not.

        Args:
            place: the group and the partition.
            at_us: the time, on the monotonic clock.
            end: the high watermark.
            offset: the committed offset.
            lag: messages between the two that there are.
        """
        now = Sample(at_us, end, offset, lag)
        with self._lock:
            samples = self._samples.setdefault(place, deque())
            course = trend([*samples, now])
            if len(samples) > 1 and at_us - samples[-2].at_us < SAMPLE_S * 1e6:
                samples.pop()
            samples.append(now)
            while len(samples) > 1 and samples[1].at_us <= at_us - WINDOW_S * 1e6:
                samples.popleft()
        return course

    def keep(self, places: Collection[Place]) -> None:
        """Forget all others: their groups are gone, or have another coordinator."""
        with self._lock:
            self._samples = {place: samples for place, samples in self._samples.items() if place in places}
