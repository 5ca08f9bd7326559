"""Partitions, their replicas and brokers as rows, for `top`, reports, metrics and `pyreplog partitions`. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.partition_state import Brokers, PartitionState
from pyreplog.partition.requests import PartitionDescription
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition


class ReplicaStatus(NamedTuple):
    """A replica of a partition.

    Attributes:
        broker: name of its broker.
        is_leader: whether it leads.
        is_in_sync: whether it is in the ISR.
        is_alive: whether its broker is alive; None: unknown.
        end: offset behind its last record; None: unknown.
        lag: number of the leader's messages that it lacks; None: unknown.
        behind_s: seconds since it was last caught up, as the ISR counts them; None: unknown.
    """

    broker: str
    is_leader: bool
    is_in_sync: bool
    is_alive: bool | None = None
    end: int | None = None
    lag: int | None = None
    behind_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionStatus:
    """A partition.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        leader: name of a broker; None: the partition has no leader.
        epoch: number of the newest leader epoch.
        isr: names of the in-sync replicas.
        min_isr: number of in-sync replicas that an append with acks=-1 needs.
        replicas: the replicas, the preferred leader first.
        elr: eligible leader replicas, each with its incarnation.
        target: the replicas after the reassignment that is under way; (): no reassignment.
        start: offset at which the log begins; None: unknown, as the leader did not answer.
        high_watermark: offset up to which it is committed; None: unknown.
        last_stable: offset before which no transaction is open; None: unknown.
        end: offset at which the leader's log ends; None: unknown.
    """

    topic: str
    partition: int
    leader: str | None
    epoch: int
    isr: tuple[str, ...]
    min_isr: int
    replicas: tuple[ReplicaStatus, ...]
    elr: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    start: int | None = None
    high_watermark: int | None = None
    last_stable: int | None = None
    end: int | None = None

    @property
    def preferred(self) -> str:
        """Name of the preferred leader."""
        return self.replicas[0].broker

    @property
    def out_of_sync(self) -> tuple[str, ...]:
        """Names of the replicas that are not in the ISR."""
        return tuple(replica.broker for replica in self.replicas if not replica.is_in_sync)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in the ISR."""
        return len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether appends with acks=-1 are refused, because the ISR is too small."""
        return len(self.isr) < self.min_isr

    @property
    def is_led_by_another(self) -> bool:
        """Whether its leader is not the preferred leader."""
        return self.leader not in (None, self.preferred)

    @property
    def uncommitted(self) -> int | None:
        """Number of the leader's messages that are not committed yet; None: unknown."""
        return None if self.end is None or self.high_watermark is None else self.end - self.high_watermark

    @property
    def replica_lag(self) -> int | None:
        """Greatest known lag of a replica, in messages; None: no lag is known."""
        return max((each.lag for each in self.replicas if each.lag is not None), default=None)

    @property
    def replica_behind_s(self) -> float | None:
        """Longest time for which a replica has not been caught up, seconds; None: unknown."""
        return max((each.behind_s for each in self.replicas if each.behind_s is not None), default=None)

    @property
    def states(self) -> tuple[str, ...]:
        """States that need attention, the worst first."""
        flags = (
            ("no leader", self.leader is None),
            ("under min ISR", self.is_under_min_isr),
            ("under-replicated", self.is_under_replicated),
            ("not led by the preferred leader", self.is_led_by_another),
        )
        return tuple(name for name, is_so in flags if is_so)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as dicts, lists, strings and numbers."""
        return {
            "topic": self.topic, "partition": self.partition, "leader": self.leader, "epoch": self.epoch,
            "isr": list(self.isr), "min_isr": self.min_isr, "replicas": [each.broker for each in self.replicas],
            "out_of_sync": list(self.out_of_sync), "elr": list(self.elr), "target": list(self.target),
            "start": self.start, "high_watermark": self.high_watermark, "last_stable": self.last_stable,
            "end": self.end, "lag": self.uncommitted, "replica_lag": {each.broker: each.lag for each in self.replicas},
            "replica_behind_s": {each.broker: each.behind_s for each in self.replicas}, "states": list(self.states),
        }  # fmt: skip


class BrokerStatus(NamedTuple):
    """A broker.

    Attributes:
        broker: name of the broker.
        state: "alive", "stopping" or "dead".
        leads: number of partitions that it leads.
        preferred: number of partitions of which it is the preferred leader.
        replicas: number of its replicas.
        ratio_to_mean: partitions that it leads, over the mean of all brokers that are alive; None: no partition is led.
    """

    broker: str
    state: str
    leads: int
    preferred: int
    replicas: int
    ratio_to_mean: float | None


def partition_status(
    name: TopicPartition, state: PartitionState, described: PartitionDescription | None = None,
    brokers: Brokers | None = None,
) -> PartitionStatus:  # fmt: skip
    """Return a partition as a row.

    Args:
        name: name of the partition.
        state: its state in the metadata store.
        described: the leader's answer; None: it did not answer.
        brokers: the registrations; None: unknown.
    """
    offsets = None if described is None or described.offsets.code is not ErrorCode.NONE else described.offsets
    followers = {} if described is None else {each.member.broker: each for each in described.followers}
    in_sync = {member.broker for member in state.isr}
    replicas = []
    for broker in state.replicas:
        registration = None if brokers is None else brokers.get(broker)
        is_alive = None if brokers is None else registration is not None and not registration.is_fenced
        is_leader = broker == state.leader
        row = ReplicaStatus(broker, is_leader, broker in in_sync, is_alive)
        follower = followers.get(broker)
        if offsets is not None and is_leader:
            row = row._replace(end=offsets.end, lag=0, behind_s=0.0)
        elif offsets is not None and follower is not None:
            end = None if follower.end < 0 else follower.end
            lag = None if end is None else max(offsets.end - end, 0)
            row = row._replace(end=end, lag=lag, behind_s=follower.behind_us / 1e6)
        replicas.append(row)
    return PartitionStatus(
        topic=name.topic, partition=name.partition, leader=state.leader or None, epoch=state.epoch.number,
        isr=tuple(member.broker for member in state.isr), min_isr=state.effective_min_isr, replicas=tuple(replicas),
        elr=tuple(map(str, state.elr)), target=state.target,
        start=None if offsets is None else offsets.start,
        high_watermark=None if offsets is None else offsets.high_watermark,
        last_stable=None if offsets is None else offsets.last_stable, end=None if offsets is None else offsets.end,
    )  # fmt: skip


def broker_statuses(partitions: Iterable[PartitionStatus], brokers: Brokers) -> tuple[BrokerStatus, ...]:
    """Return the brokers as rows, by name: the leader skew of a cluster.

    Args:
        partitions: all partitions of the cluster.
        brokers: the registrations.
    """
    leads, preferred, replicas = Counter[str](), Counter[str](), Counter[str]()
    for partition in partitions:
        preferred[partition.preferred] += 1
        replicas.update(replica.broker for replica in partition.replicas)
        if partition.leader is not None:
            leads[partition.leader] += 1
    alive = sum(not registration.is_fenced for registration in brokers.values())
    mean = leads.total() / alive if alive else 0.0
    rows = []
    for name in sorted({*brokers, *replicas}):
        state, ratio = broker_state(brokers, name), leads[name] / mean if mean else None
        rows.append(BrokerStatus(name, state, leads[name], preferred[name], replicas[name], ratio))
    return tuple(rows)


def broker_state(brokers: Brokers, name: str) -> str:
    """Return "alive", "stopping" or "dead"."""
    registration = brokers.get(name)
    if registration is None or registration.is_fenced:
        return "dead"
    return "stopping" if registration.is_stopping else "alive"


class PartitionCounts(NamedTuple):
    """Partitions that need attention.

    Attributes:
        partitions: number of all partitions.
        without_leader: partitions without a leader.
        under_min_isr: partitions with an ISR so small that appends with acks=-1 are refused.
        under_replicated: partitions with a replica that is not in the ISR.
        not_preferred: partitions whose leader is not the preferred leader.
    """

    partitions: int
    without_leader: int
    under_min_isr: int
    under_replicated: int
    not_preferred: int

    @classmethod
    def of(cls, partitions: Iterable[PartitionStatus]) -> PartitionCounts:
        """Count partitions."""
        rows = list(partitions)
        return cls(
            len(rows), sum(row.leader is None for row in rows), sum(row.is_under_min_isr for row in rows),
            sum(row.is_under_replicated for row in rows), sum(row.is_led_by_another for row in rows),
        )  # fmt: skip


def by_attention(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Return the partitions that need attention first, then the others, internal topics last; each by topic and
    number."""
    ranks: Mapping[str, int] = {"no leader": 0, "under min ISR": 1, "under-replicated": 2}

    def rank(row: PartitionStatus) -> tuple[int, bool, str, int]:
        worst = ranks.get(row.states[0], 3) if row.states else 4
        return worst, row.topic in INTERNAL_TOPICS, row.topic, row.partition

    return sorted(partitions, key=rank)
