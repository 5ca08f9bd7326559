"""Leaders and followers of a partition in given states, for tests of one machine."""

from __future__ import annotations

from collections.abc import Sequence

from pyreplog.partition.protocol.effects import AlterIsr, LeadingEffect
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.leading import LeadingReplica, ReplicaConfig
from pyreplog.partition.protocol.messages import Fetch
from pyreplog.partition.protocol.partition_state import BrokerRegistration, Member, PartitionState
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart

LAG_US = 1000
VERSION = 5


def mark(records: int) -> LogPosition:
    return LogPosition(10 * records, records)


def members(*names: str) -> tuple[Member, ...]:
    return tuple(Member(name, 1) for name in names)


def registered(*names: str) -> dict[str, BrokerRegistration]:
    return {name: BrokerRegistration(1) for name in names}


def state(
    isr: Sequence[str], *, replicas: str = "abc", min_isr: int = 1, elr: Sequence[str] = (), leader: str = "a", epoch: int = 3
) -> PartitionState:  # fmt: skip
    """Of a partition with brokers of one letter each."""
    return PartitionState(
        tuple(replicas), members(*isr), min_isr, members(*elr), leader, LeaderEpoch(epoch, leader or "a")
    )


class Leader:
    """A leader whose epoch's control record lies behind `before` records. effects: all that it has asked for."""

    def __init__(
        self, isr: Sequence[str], *, before: int = 0, replicas: str = "abc", min_isr: int = 1, elr: Sequence[str] = (),
        requires_sync: bool = False, high_watermark: int = 0,
    ) -> None:  # fmt: skip
        former = History((TermStart(LeaderEpoch(1, "b"), mark(0)),) if before else ())
        self.effects: list[LeadingEffect] = []
        self.end = before
        self.machine = LeadingReplica(
            Member("a", 1), VERSION, state(isr, replicas=replicas, min_isr=min_isr, elr=elr),
            ReplicaLog(former, mark(0), mark(before), mark(before)), mark(high_watermark),
            ReplicaConfig(requires_sync=requires_sync, lag_us=LAG_US), registered(*replicas), 0,
        )  # fmt: skip
        self.effects += self.machine.begin()
        self.append(1)

    @property
    def epoch(self) -> LeaderEpoch:
        return self.machine.epoch

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark.entry

    @property
    def proposed(self) -> list[str]:
        """The newest ISR that it has proposed."""
        alters = [effect for effect in self.effects if isinstance(effect, AlterIsr)]
        return [str(member) for member in alters[-1].state.isr] if alters else []

    def append(self, records: int, now_us: int = 0) -> None:
        self.end += records
        self.effects += self.machine.appended(mark(self.end), mark(self.end), now_us)

    def fetch(
        self, follower: str, records: int, now_us: int = 0, *, incarnation: int = 1, last_epoch: LeaderEpoch | None = None,
        epoch: LeaderEpoch | None = None, synced: int | None = None,
    ) -> list[LeadingEffect]:  # fmt: skip
        """A follower has so many records, in the leader's epoch unless another one is said."""
        synced = records if synced is None else synced
        effects = self.machine.fetched(
            Fetch(
                1, Member(follower, incarnation), epoch or self.epoch, mark(records), last_epoch or self.epoch, mark(synced), mark(0)
            ),
            now_us,
        )  # fmt: skip
        self.effects += effects
        return effects

    def alter(self, version: int = VERSION + 1, now_us: int = 0) -> None:
        self.effects += self.machine.altered(version, now_us)
