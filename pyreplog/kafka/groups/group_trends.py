"""GroupTrends: samples of committed offsets at earlier scrapes, from which metrics compute rates. No I/O."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.model.trend import WINDOW_S, Sample, Trend, trend

SAMPLE_S = 5.0
"""Minimum seconds between two samples, except for the last one."""

Place = tuple[str, TopicPartition]
"""A group, and a partition with an offset that it committed."""


class GroupTrends:
    """Samples of committed offsets over the window of `topic.model.trend`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[Place, deque[Sample]] = {}

    def add_sample(self, place: Place, at_us: int, end: int, offset: int, lag: int) -> Trend:
        """Add a sample of an offset; return its rates, and for how long it has not advanced.

        Args:
            place: the group and the partition.
            at_us: monotonic time, microseconds.
            end: the high watermark.
            offset: the committed offset.
            lag: number of existing messages between offset and high watermark.
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
        """Remove the samples of all other places: their groups were deleted, or moved to another coordinator."""
        with self._lock:
            self._samples = {place: samples for place, samples in self._samples.items() if place in places}
