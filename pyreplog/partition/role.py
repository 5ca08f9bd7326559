"""ReplicaRole: one term of a replica as leader or follower, with the numbers that requests wait for while it lasts."""

from __future__ import annotations

from pyreplog._native.partition.leader_base import ReplicaRoleBase
from pyreplog.errors import ClosedError
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.stream.log_position import ORIGIN, LogPosition

_HIGH_WATERMARK, _TXN_COMMITTED = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED
# `FetchIsolation.NAME` takes 0.1 us in Python 3.11


class WaitKey:
    """A number of one replica in one role that requests wait for: a key of a `Purgatory`.

    name: of the number, for messages.
    """

    __slots__ = ("name", "partition")

    def __init__(self, partition: TopicPartition, name: str) -> None:
        self.partition, self.name = partition, name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.partition}"


class ReplicaRole(ReplicaRoleBase):
    """The role of a replica, from one change to the next: of leader or follower, of epoch or leader.

    Its partition changes the numbers, under its lock. Any thread reads them without it. A request reads its number
    again when it has entered the purgatory, because the purgatory learns of a number only if requests wait for it.

    Attributes:
        is_leader: whether the replica leads.
        is_over: the replica has another role, or none: requests must not wait on.
        marks: up to where consumers read.
        keys: those of the positions of `marks`, for which consumers and producers wait.
        log_end: where the leader's log ends, bytes from its beginning.
        changes: how often the end, the high watermark or the start of the leader's log have changed. Followers learn of
            each change.
        changes_key: that of `changes`, for which fetches of followers wait.
        low_watermark_key: that of the offset before which all replicas that live have deleted the records.
    """

    __slots__ = ("changes_key", "is_leader", "is_over", "keys", "low_watermark_key")

    marks: dict[FetchIsolation, LogPosition]
    log_end: int
    changes: int

    def __init__(self, partition: TopicPartition, *, is_leader: bool) -> None:
        self.is_leader, self.is_over = is_leader, False
        self.marks = dict.fromkeys(FetchIsolation, ORIGIN)
        self.keys = {isolation: WaitKey(partition, isolation.value) for isolation in FetchIsolation}
        self.log_end = self.changes = 0
        self.changes_key = WaitKey(partition, "number of changes")
        self.low_watermark_key = WaitKey(partition, "low watermark")
        self._leader_keys = self.keys[_HIGH_WATERMARK], self.keys[_TXN_COMMITTED], self.changes_key

    def advance(self, purgatory: Purgatory, isolation: FetchIsolation, mark: LogPosition) -> None:
        """Note up to where consumers read, and wake the requests that wait for it.

        The caller drains the purgatory when it holds no lock.
        """
        if mark.position > self.marks[isolation].position:
            self.marks[isolation] = mark  # before the look: a request that comes after the look reads it
            key = self.keys[isolation]
            if purgatory.is_watched(key):
                purgatory.advance(key, mark.position)

    def advance_all(
        self, purgatory: Purgatory, log_end: LogPosition, high_watermark: LogPosition, stable: LogPosition
    ) -> None:
        """Note all marks of a leader, as `advance` does, and wake the fetches of followers.

        One look at the purgatory is for all keys: at most of these calls nobody waits for any.
        """
        marks = self.marks
        is_changed = log_end.position > self.log_end
        if high_watermark.position > marks[_HIGH_WATERMARK].position:
            marks[_HIGH_WATERMARK] = high_watermark
            is_changed = True
        if stable.position > marks[_TXN_COMMITTED].position:
            marks[_TXN_COMMITTED] = stable
        if is_changed:
            self.log_end = log_end.position
            self.changes += 1
        high_watermark_key, stable_key, changes_key = self._leader_keys
        if purgatory.is_watched(high_watermark_key, stable_key, changes_key):
            purgatory.advance(high_watermark_key, marks[_HIGH_WATERMARK].position)
            purgatory.advance(stable_key, marks[_TXN_COMMITTED].position)
            purgatory.advance(changes_key, self.changes)

    def advance_log_end(self, purgatory: Purgatory, log_end: LogPosition) -> None:
        """Note where a leader's log ends, and wake the fetches of followers."""
        if log_end.position > self.log_end:
            self.log_end = log_end.position
            self.wake_followers(purgatory)

    def wake_followers(self, purgatory: Purgatory) -> None:
        """Count a change of the leader's log, and wake the fetches of followers that wait for it.

        The caller drains the purgatory when it holds no lock.
        """
        self.changes += 1
        if purgatory.is_watched(self.changes_key):
            purgatory.advance(self.changes_key, self.changes)

    def end(self, purgatory: Purgatory) -> None:
        """Wake all requests that wait: the role is over. The caller holds no lock."""
        for key in (*self.keys.values(), self.changes_key, self.low_watermark_key):
            purgatory.fail(key, ClosedError(f"{key.partition}: the role in which a request waited is over"))
            purgatory.reset(key)
