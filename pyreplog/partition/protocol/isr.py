"""The in-sync replicas of a partition, as its leader knows them, and how far each follower is."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.partition.protocol.effects import AlterIsr
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch
from pyreplog.partition.protocol.messages import Fetch
from pyreplog.partition.protocol.partition_state import Member, PartitionState
from pyreplog.stream.log_position import ORIGIN, LogPosition


class FollowerProgress(NamedTuple):
    """How far a follower is, for people and metrics.

    Attributes:
        member: the follower.
        end: offset behind its last record that counts; -1: it has shown no record of this epoch yet.
        behind_us: for how long it has not been caught up, as the ISR counts it, microseconds; 0: it is.
    """

    member: Member
    end: int
    behind_us: int


class FollowerState:
    """How far one follower is in one leader epoch, from its fetches.

    Within an epoch the log of one incarnation never gets shorter once it was compared with the leader's, so a fetch
    that arrives late takes nothing back.

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
        """Note a fetch that fits the leader's log.

        A follower that is at the end where the leader's log was at its previous fetch was caught up then: one that is
        always a little behind a busy leader is in sync.

        Args:
            fetch: the fetch.
            leader_end: the end of the leader's log.
            now_us: the time in microseconds.
            requires_sync: whether it is at what it has synced, or at what it has received.
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
        """Return whether it has all of the leader's log, or had so lately."""
        return mark >= leader_end or now_us - self.caught_up_us <= lag_us


class Isr:
    """The ISR, and the change of it that is under way: one at most. Every append reads the attributes.

    Args:
        version: of the partition's key.
        committed: the state under that version.

    Attributes:
        version: of the partition's key.
        committed: the state under that version.
        pending: the change that is under way; None: there is none.
        maximal: all that may be in the ISR by now (KIP-497): before a change is known to be made, or not to be, both
            count. Who leaves is waited for until it has left: it may be elected. Who joins is waited for at once: it
            may be elected, too.
        is_under_min: nothing is to be committed: the ISR is smaller than `min.insync.replicas`.
        is_maximal_enough: those that may be in the ISR are at least so many.
    """

    def __init__(self, version: int, committed: PartitionState) -> None:
        self.version, self.committed = version, committed
        self.pending: PartitionState | None = None
        self._count(committed.isr)

    def propose(self, state: PartitionState) -> AlterIsr:
        """Begin a change."""
        assert self.pending is None, "one change at a time"
        self.pending = state
        self._count(tuple(sorted({*self.committed.isr, *state.isr})))
        return AlterIsr(self.version, state)

    def adopt(self, version: int, state: PartitionState) -> None:
        """Take over a newer state. A change that is still under way fails by its version."""
        self.version, self.committed, self.pending = version, state, None
        self._count(state.isr)

    def _count(self, maximal: tuple[Member, ...]) -> None:
        enough = self.committed.effective_min_isr
        self.maximal = maximal
        self.is_under_min = len(self.committed.isr) < enough
        self.is_maximal_enough = len(maximal) >= enough
