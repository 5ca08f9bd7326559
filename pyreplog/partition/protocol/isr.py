"""The in-sync replicas of a partition, as its leader knows them, and the progress of each follower."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.partition.protocol.effects import AlterIsr
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch
from pyreplog.partition.protocol.messages import Fetch
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from pyreplog.stream.log_position import ORIGIN, LogPosition


class FollowerProgress(NamedTuple):
    """The progress of a follower, for reports and metrics.

    Attributes:
        member: the follower.
        end: offset behind its last record that counts; -1: its fetches have shown no record of this epoch yet.
        behind_us: microseconds since it was last caught up; 0: it is caught up.
    """

    member: Member
    end: int
    behind_us: int


class FollowerState:
    """The progress of one follower in one leader epoch, from its fetches.

    Within an epoch the log of one incarnation never gets shorter once it was compared with the leader's, so a fetch
    that arrives late does not lower the progress.

    Args:
        caught_up_us: when it was last caught up, microseconds.
    """

    __slots__ = ("caught_up_us", "fetch_us", "last_epoch", "leader_end", "log_start", "received", "synced")

    def __init__(self, caught_up_us: int) -> None:
        self.received = self.synced = ORIGIN
        self.last_epoch: LeaderEpoch = NO_EPOCH
        self.caught_up_us = caught_up_us
        self.fetch_us = caught_up_us
        self.leader_end: LogPosition | None = None  # at the previous fetch
        self.log_start = 0

    def fetched(self, fetch: Fetch, leader_end: LogPosition, now_us: int, *, requires_sync: bool) -> None:
        """Note a fetch whose position is in the leader's log.

        A follower that has reached the end that the leader's log had at its previous fetch was caught up at that time:
        a follower that is always a little behind a busy leader is in sync.

        Args:
            fetch: the fetch.
            leader_end: the end of the leader's log.
            now_us: monotonic time, microseconds.
            requires_sync: whether its synced position counts, or the one up to which it has received records.
        """
        self.received = max(self.received, fetch.position)
        self.synced = max(self.synced, min(fetch.synced, fetch.position))
        self.last_epoch = max(self.last_epoch, fetch.last_epoch)
        self.log_start = max(self.log_start, fetch.log_start)
        mark = self.synced if requires_sync else self.received
        if mark >= leader_end:
            self.caught_up_us = max(self.caught_up_us, now_us)
        elif self.leader_end is not None and mark >= self.leader_end:
            self.caught_up_us = max(self.caught_up_us, self.fetch_us)
        self.fetch_us, self.leader_end = now_us, leader_end

    def is_caught_up(self, mark: LogPosition, leader_end: LogPosition, now_us: int, lag_us: int) -> bool:
        """Return whether it has all of the leader's log, or had it at most `lag_us` microseconds ago."""
        return mark >= leader_end or now_us - self.caught_up_us <= lag_us


class Isr:
    """The ISR, and at most one change of it that is under way. Every append reads the attributes.

    Args:
        version: version of the partition's key.
        committed: the state under that version.

    Attributes:
        version: version of the partition's key.
        committed: the state under that version.
        pending: the change that is under way; None: no change.
        maximal: the maximal ISR (KIP-497), all members of the committed and of the proposed ISR. The high watermark
            waits for a member that leaves until the change is committed, and for one that joins at once, because either
            may be elected.
        is_under_min: whether the ISR is smaller than `min.insync.replicas`, so that nothing may be committed.
        is_maximal_enough: whether the maximal ISR has at least `min.insync.replicas` members.
    """

    def __init__(self, version: int, committed: PartitionState) -> None:
        self.version, self.committed = version, committed
        self.pending: PartitionState | None = None
        self._count(committed.isr)

    def propose(self, state: PartitionState) -> AlterIsr:
        """Propose a change of the ISR."""
        assert self.pending is None, "one change at a time"
        self.pending = state
        self._count(tuple(sorted({*self.committed.isr, *state.isr})))
        return AlterIsr(self.version, state)

    def adopt(self, version: int, state: PartitionState) -> None:
        """Replace the state by a newer one. A change that is still under way will fail, because its version is
        older."""
        self.version, self.committed, self.pending = version, state, None
        self._count(state.isr)

    def _count(self, maximal: tuple[Member, ...]) -> None:
        enough = self.committed.effective_min_isr
        self.maximal = maximal
        self.is_under_min = len(self.committed.isr) < enough
        self.is_maximal_enough = len(maximal) >= enough
