"""ReplicaRole: one term of a replica as leader or follower, with the numbers that requests wait for."""

from __future__ import annotations

from pyreplog._native.partition.replica_role_base import ReplicaRoleBase
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


class ReplicaRole(ReplicaRoleBase):
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

    __slots__ = ("is_leader", "is_over", "low_watermark_key")

    marks: dict[FetchIsolation, LogPosition]
    keys: dict[FetchIsolation, WaitKey]
    changes_key: WaitKey

    def __init__(self, partition: TopicPartition, *, is_leader: bool) -> None:
        self.is_leader, self.is_over = is_leader, False
        self.marks = dict.fromkeys(FetchIsolation, ORIGIN)
        self.keys = {isolation: WaitKey(partition, isolation.value) for isolation in FetchIsolation}
        self.changes_key = WaitKey(partition, "number of changes")
        self.low_watermark_key = WaitKey(partition, "low watermark")
        self._high_watermark, self._stable = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED

    def end(self, purgatory: Purgatory) -> None:
        """Wake all waiting requests, because the role has ended. The caller holds no lock."""
        for key in (*self.keys.values(), self.changes_key, self.low_watermark_key):
            purgatory.fail(
                key, ClosedError(f"{key.partition}: the role of this replica changed while a request waited")
            )
            purgatory.reset(key)
