"""ReplicaRole: one term of a replica as leader or follower, with the numbers that requests wait for."""

from __future__ import annotations

from pyreplog.errors import ClosedError
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.stream.log_position import ORIGIN, LogPosition

_HIGH_WATERMARK, _TXN_COMMITTED = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED
# `FetchIsolation.NAME` takes 0.1 us in Python 3.11


class WaitKey:
    """The key in a `Purgatory` of a number that requests wait for, of one replica in one role. name: name of the
    number, for messages.
    """

    __slots__ = ("name", "partition")

    def __init__(self, partition: TopicPartition, name: str) -> None:
        self.partition, self.name = partition, name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.partition}"


class ReplicaRole:
    """The role of a replica, leader or follower, in one leader epoch.

    Its partition changes the numbers, under its lock. Any thread reads them without the lock. A request reads its
    number again after it has entered the purgatory, because a change wakes only requests that are in it.

    Attributes:
        is_leader: whether the replica leads.
        is_over: whether the replica has another role now, or none: requests must not wait any longer.
        marks: positions up to which consumers read, by isolation level.
        keys: keys of the positions in `marks`, for which consumers and producers wait.
        log_end: end of the leader's log, bytes from its beginning.
        changes: number of changes of the end, the high watermark and the start of the leader's log, each of which is
            reported to followers.
        changes_key: key of `changes`, for which fetches of followers wait.
        low_watermark_key: key of the low watermark, the offset before which all live replicas have deleted the records.
    """

    __slots__ = (
        "_leader_keys", "changes", "changes_key", "is_leader", "is_over", "keys", "log_end", "low_watermark_key",
        "marks",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, *, is_leader: bool) -> None:
        self.is_leader, self.is_over = is_leader, False
        self.marks = dict.fromkeys(FetchIsolation, ORIGIN)
        self.keys = {isolation: WaitKey(partition, isolation.value) for isolation in FetchIsolation}
        self.log_end = self.changes = 0
        self.changes_key = WaitKey(partition, "number of changes")
        self.low_watermark_key = WaitKey(partition, "low watermark")
        self._leader_keys = self.keys[_HIGH_WATERMARK], self.keys[_TXN_COMMITTED], self.changes_key

    def advance(self, purgatory: Purgatory, isolation: FetchIsolation, mark: LogPosition) -> None:
        """Note the position up to which consumers read, and wake the requests that wait for it.

        The caller drains the purgatory afterwards, without holding a lock.
        """
        if mark.position > self.marks[isolation].position:
            self.marks[isolation] = mark  # before the check: a request that enters after the check reads it
            key = self.keys[isolation]
            if purgatory.is_watched(key):
                purgatory.advance(key, mark.position)

    def advance_all(
        self, purgatory: Purgatory, log_end: LogPosition, high_watermark: LogPosition, stable: LogPosition
    ) -> None:
        """Note all positions of a leader, as `advance` does, and wake the fetches of followers.

        The purgatory is checked once for all keys, because in most of these calls no request waits.
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
        """Note the end of a leader's log, and wake the fetches of followers."""
        if log_end.position > self.log_end:
            self.log_end = log_end.position
            self.wake_followers(purgatory)

    def wake_followers(self, purgatory: Purgatory) -> None:
        """Count a change of the leader's log, and wake the fetches of followers that wait for it.

        The caller drains the purgatory afterwards, without holding a lock.
        """
        self.changes += 1
        if purgatory.is_watched(self.changes_key):
            purgatory.advance(self.changes_key, self.changes)

    def end(self, purgatory: Purgatory) -> None:
        """Wake all waiting requests, because the role has ended. The caller holds no lock."""
        for key in (*self.keys.values(), self.changes_key, self.low_watermark_key):
            purgatory.fail(
                key, ClosedError(f"{key.partition}: the role of this replica changed while a request waited")
            )
            purgatory.reset(key)
