"""Consumer groups as rows, for `top`, reports and metrics: lag in messages and in seconds, and drain time. No I/O.

The words, and how a drain time is computed, are those of native subscriptions (`topic/model/trend.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyreplog.topic.model.trend import STALLED_S, outlook, slowest_drain


@dataclass(frozen=True, kw_only=True)
class GroupPartitionStatus:
    """A group's place in one partition.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: the committed offset: everything before it was consumed.
        end: the high watermark; None: not known.
        lag: messages that there are and that were not consumed; None: not known.
        lag_s: age of the oldest of them, seconds; 0.0: there is none; None: not known.
        rate_in: messages appended per second; None: not known.
        rate_out: messages that the committed offset passed per second; None: not known.
        drain_s: seconds until the lag is 0; None: never at these rates, or not known.
        status: "done", "stalled", "growing" or "draining", as of a subscription's backlog; None: not known.
        moved_us: when the committed offset last moved, microseconds since 1970; None: not known.
        is_stalled: it has not moved for a minute, and a message has waited for as long.
    """

    topic: str
    partition: int
    offset: int
    end: int | None = None
    lag: int | None = None
    lag_s: float | None = None
    rate_in: float | None = None
    rate_out: float | None = None
    drain_s: float | None = None
    status: str | None = None
    moved_us: int | None = None
    is_stalled: bool = False

    @classmethod
    def of(
        cls, topic: str, partition: int, offset: int, *, now_us: int, start: int | None = None, end: int | None = None,
        oldest_us: int | None = None, moved_us: int | None = None, rate_in: float | None = None,
        rate_out: float | None = None,
    ) -> GroupPartitionStatus:  # fmt: skip
        """Return the row of a committed offset.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: the committed offset.
            now_us: the time, microseconds since 1970.
            start: where the log begins; None: not known. Records that were removed are no lag.
            end: the high watermark; None: not known.
            oldest_us: append time of the record at `offset`, or at `start` if that is later; None: not known.
            moved_us: when the offset last moved; None: not known.
            rate_in: messages appended per second; None: not known.
            rate_out: messages that the offset passed per second; None: not known.
        """
        if end is None:
            return cls(topic=topic, partition=partition, offset=offset, rate_out=rate_out, moved_us=moved_us)
        lag = max(end - max(offset, start or 0), 0)
        drain_s, status = outlook(lag, rate_in, rate_out)
        since_us = [time_us for time_us in (moved_us, oldest_us) if time_us is not None]
        waited_s = (now_us - max(since_us)) / 1e6 if since_us else 0.0
        lag_s = 0.0 if lag == 0 else None if oldest_us is None else max(now_us - oldest_us, 0) / 1e6
        return cls(
            topic=topic, partition=partition, offset=offset, end=end, lag=lag, lag_s=lag_s, rate_in=rate_in,
            rate_out=rate_out, drain_s=drain_s, status=status, moved_us=moved_us,
            is_stalled=lag > 0 and waited_s >= STALLED_S,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """A consumer group.

    Attributes:
        group: its name.
        state: its state, by Kafka's name; None: not known.
        members: number of its members; None: not known.
        partitions: those for which it has committed an offset, in the order of topics and numbers.
    """

    group: str
    state: str | None = None
    members: int | None = None
    partitions: tuple[GroupPartitionStatus, ...] = ()

    def of_topic(self, topic: str) -> GroupStatus:
        """Return the group with the partitions of one topic."""
        return replace(self, partitions=tuple(each for each in self.partitions if each.topic == topic))

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics with a committed offset."""
        return tuple(dict.fromkeys(each.topic for each in self.partitions))

    @property
    def lag(self) -> int | None:
        """Messages that were not consumed; None: not known of a partition."""
        lags = [each.lag for each in self.partitions]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def lag_s(self) -> float | None:
        """Age of the oldest message that was not consumed, seconds; 0.0: there is none; None: not known."""
        ages = [each.lag_s for each in self.partitions]
        return None if None in ages else max((age for age in ages if age is not None), default=0.0)

    @property
    def rate_in(self) -> float | None:
        """Messages appended per second; None: not known."""
        return _sum(each.rate_in for each in self.partitions)

    @property
    def rate_out(self) -> float | None:
        """Messages consumed per second; None: not known."""
        return _sum(each.rate_out for each in self.partitions)

    @property
    def drain_s(self) -> float | None:
        """Seconds until the lag of all partitions is 0; None: never at these rates, or not known."""
        return slowest_drain(each.drain_s for each in self.partitions if each.lag != 0) if self.lag != 0 else 0.0

    @property
    def states(self) -> tuple[str, ...]:
        """States that need attention."""
        flags = (
            ("stalled", any(each.is_stalled for each in self.partitions)),
            ("growing", any(each.status == "growing" for each in self.partitions)),
        )
        return tuple(name for name, is_so in flags if is_so)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as dicts, lists, texts and numbers only."""
        partitions = [{name: getattr(each, name) for name in each.__dataclass_fields__} for each in self.partitions]
        return {
            "group": self.group, "state": self.state, "members": self.members, "lag": self.lag, "lag_s": self.lag_s,
            "drain_s": self.drain_s, "states": list(self.states), "partitions": partitions,
        }  # fmt: skip


def _sum(rates: Iterable[float | None]) -> float | None:
    known = list(rates)
    return None if None in known else sum(rate for rate in known if rate is not None)
