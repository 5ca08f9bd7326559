"""The progress of one replica, as its master knows it: one object for each name, for all connections of that name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from pyreplog._native.ha.commit_point import RATE_US, ProgressBase
from pyreplog.stream.log_position import ORIGIN, LogPosition


class InSyncLimits(NamedTuple):
    """Limits within which a replica is in sync: its lag in bytes, and microseconds since it was level."""

    bytes: int
    us: int


class ReplicaStats(NamedTuple):
    """State of one replica, for operators. rate: bytes per second. lag_us: since it was last level with its master."""

    name: str
    state: str  # "joining", "streaming", "gone"
    observer: bool
    in_sync: bool
    received: LogPosition
    synced: LogPosition
    lag_bytes: int
    lag_us: int
    rate: int


class Progress(ProgressBase):
    """The progress of one replica.

    Its positions count for the commit point once `counts` is true: it has promised the term of this master, and has
    stored the members of the group.
    """

    __slots__ = ("connection", "left_us", "name")

    received: LogPosition
    synced: LogPosition
    proven: LogPosition
    counted: LogPosition

    def __init__(self, name: str, now_us: int) -> None:
        self.name = name
        self.observer = False
        self.connection: Hashable | None = None
        self.received = self.synced = self.proven = self.counted = ORIGIN
        self.reported = self.knows_members = self.counts = False
        self.left_us = self.caught_up_us = now_us
        self._probe, self._probe_us = 0, now_us
        self._base, self._base_us, self._rate = 0, now_us, 0

    def joined(
        self,
        connection: Hashable,
        observer: bool,
        received: LogPosition,
        synced: LogPosition,
        end: LogPosition,
        now_us: int,
    ) -> None:
        """Begin to follow from `received` on. Its positions do not count before its first report."""
        self.connection, self.observer = connection, observer
        self.reported = self.counts = False
        self.received, self.synced, self.counted = received, synced, ORIGIN
        self._probe, self._probe_us = end.position, now_us
        self._base, self._base_us, self._rate = received.position, now_us, 0

    def disconnected(self, now_us: int) -> None:
        """Note that its connection ended. Its reported positions stay."""
        self.connection, self.left_us = None, now_us

    def rate(self, now_us: int) -> int:
        """Return the bytes per second that it received lately; 0 without a connection."""
        if self.connection is None:
            return 0
        elapsed_us = now_us - self._base_us
        return self._rate if elapsed_us < RATE_US else (self.received.position - self._base) * 1_000_000 // elapsed_us

    def lag_us(self, mark: LogPosition, end: LogPosition, now_us: int) -> int:
        return 0 if self.counts and mark.position >= end.position else now_us - self.caught_up_us

    def is_in_sync(self, mark: LogPosition, end: LogPosition, now_us: int, limits: InSyncLimits) -> bool:
        """Return whether appends wait for the replica; it may lack acknowledged records all the same."""
        return (
            self.connection is not None
            and self.counts
            and end.position - mark.position <= limits.bytes
            and self.lag_us(mark, end, now_us) <= limits.us
        )

    def stats(self, mark: LogPosition, end: LogPosition, now_us: int, limits: InSyncLimits) -> ReplicaStats:
        state = "gone" if self.connection is None else "streaming" if self.counts else "joining"
        return ReplicaStats(
            self.name, state, self.observer, self.is_in_sync(mark, end, now_us, limits), self.received, self.synced,
            max(0, end.position - self.received.position), self.lag_us(mark, end, now_us),
            self.rate(now_us),
        )  # fmt: skip
