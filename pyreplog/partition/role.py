"""One term of a replica's role, as leader or as follower: what requests wait for while it lasts."""

from __future__ import annotations

from pyreplog.errors import ClosedError
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.stream.log_position import LogPosition

_HIGH_WATERMARK, _TXN_COMMITTED = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED
# a member of an enumeration is read slowly (0.1 us in Python 3.11)


class WaitKey:
    """What requests wait for at one replica in one role: a key of a `Purgatory`.

    name: of the number that has to be reached.
    """

    __slots__ = ("name", "partition")

    def __init__(self, partition: TopicPartition, name: str) -> None:
        self.partition, self.name = partition, name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.partition}"


class ReplicaRole:
    """A replica's role from one change to the next: of leader or follower, of epoch or leader.

    Its partition moves the marks, under its lock. Any thread reads them without it: a request that waits looks at them
    before and after it enters the purgatory. It has to: the purgatory is told of a mark only if somebody waits there.

    Attributes:
        is_leader: whether it is the leader's.
        is_over: the replica has another role, or none: what waits must not go on.
        positions: up to where consumers read, bytes from the beginning of the log.
        keys: what consumers and producers wait for in the purgatory: a position.
        log_end: where the leader's log ends, bytes from its beginning.
        changes: how often end, high watermark or start of the leader's log have changed: each is to be told to the
            followers.
        changes_key: what the fetches of followers wait for.
        low_watermark: key of the offset before which all replicas that live have deleted the records.
    """

    __slots__ = ("changes", "changes_key", "is_leader", "is_over", "keys", "log_end", "low_watermark", "positions")

    def __init__(self, partition: TopicPartition, *, is_leader: bool) -> None:
        self.is_leader, self.is_over = is_leader, False
        self.positions = dict.fromkeys(FetchIsolation, 0)
        self.keys = {isolation: WaitKey(partition, isolation.value) for isolation in FetchIsolation}
        self.log_end = self.changes = 0
        self.changes_key = WaitKey(partition, "number of changes")
        self.low_watermark = WaitKey(partition, "low watermark")

    def move(self, purgatory: Purgatory, isolation: FetchIsolation, mark: LogPosition) -> None:
        """Note a mark, and wake what waits for it. The caller drains the purgatory when it holds no lock."""
        position = mark.position
        if position > self.positions[isolation]:
            self.positions[isolation] = position  # before anybody is looked for: who comes later reads it
            key = self.keys[isolation]
            if purgatory.is_watched(key):
                purgatory.advance(key, position)

    def show(
        self, purgatory: Purgatory, log_end: LogPosition, high_watermark: LogPosition, stable: LogPosition
    ) -> None:
        """Note all marks of a leader, as `move` does, and wake the fetches of followers."""
        positions = self.positions
        is_changed = log_end.position > self.log_end
        if high_watermark.position > positions[_HIGH_WATERMARK]:
            self.move(purgatory, _HIGH_WATERMARK, high_watermark)
            is_changed = True
        if stable.position > positions[_TXN_COMMITTED]:
            self.move(purgatory, _TXN_COMMITTED, stable)
        if is_changed:
            self.log_end = log_end.position
            self.wake_followers(purgatory)

    def move_end(self, purgatory: Purgatory, log_end: LogPosition) -> None:
        """Note where a leader's log ends, and wake the fetches of followers."""
        if log_end.position > self.log_end:
            self.log_end = log_end.position
            self.wake_followers(purgatory)

    def wake_followers(self, purgatory: Purgatory) -> None:
        """Wake the fetches of followers: there is something to tell them. The caller drains the purgatory."""
        self.changes += 1
        if purgatory.is_watched(self.changes_key):
            purgatory.advance(self.changes_key, self.changes)

    def end(self, purgatory: Purgatory) -> None:
        """Wake all that waits: the role is over. Without locks."""
        for key in (*self.keys.values(), self.changes_key, self.low_watermark):
            purgatory.fail(key, ClosedError(f"{key.partition}: the role in which a request waited is over"))
            purgatory.reset(key)
