"""Consumer groups as rows, for `top`, reports and metrics: lag in messages and in seconds, and drain time. No I/O.

The terms, and the computation of drain times, are those of native subscriptions (`topic/model/trend.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.topic.model.trend import STALLED_S, outlook, slowest_drain


class LedgerBounds(NamedTuple):
    """A topic on ledgers, or a partition of one, as far as the lag of a group needs it.

    Attributes:
        start: offset of the first message that is kept.
        end: offset behind the last message.
        rate_in: messages published per second; None: unknown.
        times_us: when messages were published, by offset, microseconds since 1970; without those that are unknown.
    """

    start: int
    end: int
    rate_in: float | None = None
    times_us: Mapping[int, int] = {}


@dataclass(frozen=True, kw_only=True)
class GroupPartitionStatus:
    """The position of a group in one partition.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: the committed offset; all records before it were consumed.
        end: the high watermark; None: unknown.
        lag: number of existing messages that were not consumed; None: unknown.
        lag_s: age of the oldest of these messages, seconds; 0.0: there is none; None: unknown.
        rate_in: messages appended per second; None: unknown.
        rate_out: messages per second by which the committed offset advances; None: unknown.
        drain_s: seconds until the lag is 0; None: never at these rates, or unknown.
        status: "done", "stalled", "growing" or "draining", as for a subscription's backlog; None: unknown.
        moved_us: when the committed offset last advanced, microseconds since 1970; None: unknown.
        is_stalled: whether the offset has not advanced for a minute, and a message has waited as long.
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
            now_us: current time, microseconds since 1970.
            start: first offset of the log; None: unknown. Deleted records do not count as lag.
            end: the high watermark; None: unknown.
            oldest_us: append time of the record at `offset`, or at `start` if that is later; None: unknown.
            moved_us: when the offset last advanced, microseconds since 1970; None: unknown.
            rate_in: messages appended per second; None: unknown.
            rate_out: messages per second by which the offset advances; None: unknown.
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

    @property
    def name(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def on_ledgers(self, bounds: LedgerBounds, now_us: int) -> GroupPartitionStatus:
        """Return the row with the lag in a topic on ledgers.

        Args:
            bounds: the topic, or the partition of it.
            now_us: current time, microseconds since 1970.
        """
        start, end, rate_in, times_us = bounds
        return GroupPartitionStatus.of(
            self.topic, self.partition, self.offset, now_us=now_us, start=start, end=end,
            oldest_us=times_us.get(max(self.offset, start)), moved_us=self.moved_us, rate_in=rate_in,
            rate_out=self.rate_out,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """The status of a consumer group.

    Attributes:
        group: name of the group.
        state: state of the group, with Kafka's name; None: unknown.
        members: number of members; None: unknown.
        partitions: partitions with a committed offset, ordered by topic and number.
    """

    group: str
    state: str | None = None
    members: int | None = None
    partitions: tuple[GroupPartitionStatus, ...] = ()

    def of_topic(self, topic: str) -> GroupStatus:
        """Return the status with the partitions of one topic only."""
        return replace(self, partitions=tuple(each for each in self.partitions if each.topic == topic))

    def of_partition(self, name: TopicPartition) -> GroupStatus:
        """Return the status with one partition only."""
        return replace(self, partitions=tuple(each for each in self.partitions if each.name == name))

    def on_ledgers(self, bounds: Mapping[TopicPartition, LedgerBounds], now_us: int) -> GroupStatus:
        """Return the status with the lag in topics on ledgers.

        Args:
            bounds: the topics on ledgers; other partitions stay as they are.
            now_us: current time, microseconds since 1970.
        """
        partitions = [
            each if each.name not in bounds else each.on_ledgers(bounds[each.name], now_us) for each in self.partitions
        ]
        return replace(self, partitions=tuple(partitions))

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics with a committed offset."""
        return tuple(dict.fromkeys(each.topic for each in self.partitions))

    @property
    def lag(self) -> int | None:
        """Number of messages that were not consumed; None: unknown for a partition."""
        lags = [each.lag for each in self.partitions]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def lag_s(self) -> float | None:
        """Age of the oldest message that was not consumed, seconds; 0.0: there is none; None: unknown."""
        ages = [each.lag_s for each in self.partitions]
        return None if None in ages else max((age for age in ages if age is not None), default=0.0)

    @property
    def rate_in(self) -> float | None:
        """Messages appended per second; None: unknown."""
        return _sum(each.rate_in for each in self.partitions)

    @property
    def rate_out(self) -> float | None:
        """Messages consumed per second; None: unknown."""
        return _sum(each.rate_out for each in self.partitions)

    @property
    def drain_s(self) -> float | None:
        """Seconds until the lag of all partitions is 0; None: never at these rates, or unknown."""
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
        """Return the status as dicts, lists, strings and numbers only."""
        partitions = [{name: getattr(each, name) for name in each.__dataclass_fields__} for each in self.partitions]
        return {
            "group": self.group, "state": self.state, "members": self.members, "lag": self.lag, "lag_s": self.lag_s,
            "drain_s": self.drain_s, "states": list(self.states), "partitions": partitions,
        }  # fmt: skip


def unread_offsets(
    groups: Iterable[GroupStatus], offsets: Mapping[TopicPartition, range]
) -> dict[TopicPartition, set[int]]:
    """Return the offsets of the first messages that groups have not consumed, by topic on ledgers.

    Args:
        groups: the groups.
        offsets: the offsets that are kept of each topic on ledgers, or partition of one.
    """
    unread: dict[TopicPartition, set[int]] = {}
    for each in (each for group in groups for each in group.partitions):
        kept = offsets.get(each.name, range(0))
        first = max(each.offset, kept.start)
        if first in kept:
            unread.setdefault(each.name, set()).add(first)
    return unread


def _sum(rates: Iterable[float | None]) -> float | None:
    known = list(rates)
    return None if None in known else sum(rate for rate in known if rate is not None)
