"""One term of a replica's role, as leader or as follower: what requests wait for while it lasts."""

from __future__ import annotations

from pyreplog.errors import ClosedError
from pyreplog.partition.requests import FetchIsolation
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.stream.log_position import LogPosition

_LOG_END = FetchIsolation.LOG_END  # a member of an enumeration is read slowly (0.1 us in Python 3.11)
_HIGH_WATERMARK, _TXN_COMMITTED = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED


class WaitKey:
    """A mark of one replica in one role: a key of a `Purgatory`, whose number is the mark's position.

    isolation: None: the low watermark, whose number is an offset.
    """

    __slots__ = ("isolation", "partition")

    def __init__(self, partition: TopicPartition, isolation: FetchIsolation | None) -> None:
        self.partition, self.isolation = partition, isolation

    def __repr__(self) -> str:
        return f"the {'low watermark' if self.isolation is None else self.isolation.value} of {self.partition}"


class ReplicaRole:
    """A replica's role from one change to the next: of leader or follower, of epoch or leader.

    Its partition moves the marks, under its lock. Any thread reads them without it: a request that waits looks at them
    before and after it enters the purgatory. It has to: the purgatory is told of a mark only if somebody waits there.

    Attributes:
        is_leader: whether it is the leader's.
        is_over: the replica has another role, or none: what waits must not go on.
        positions: up to where requests read, bytes from the beginning of the log.
        keys: what to wait for in the purgatory.
        low_watermark: key of the offset before which all replicas that live have deleted the records.
    """

    __slots__ = ("is_leader", "is_over", "keys", "low_watermark", "positions")

    def __init__(self, partition: TopicPartition, *, is_leader: bool) -> None:
        self.is_leader, self.is_over = is_leader, False
        self.positions = dict.fromkeys(FetchIsolation, 0)
        self.keys = {isolation: WaitKey(partition, isolation) for isolation in FetchIsolation}
        self.low_watermark = WaitKey(partition, None)

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
        """Note all marks, as `move` does."""
        positions = self.positions
        if high_watermark.position > positions[_HIGH_WATERMARK]:
            self.move(purgatory, _HIGH_WATERMARK, high_watermark)
        if stable.position > positions[_TXN_COMMITTED]:
            self.move(purgatory, _TXN_COMMITTED, stable)
        if log_end.position > positions[_LOG_END]:
            self.move(purgatory, _LOG_END, log_end)

    def end(self, purgatory: Purgatory) -> None:
        """Wake all that waits: the role is over. Without locks."""
        for key in (*self.keys.values(), self.low_watermark):
            purgatory.fail(key, ClosedError(f"{key.partition}: the role in which a request waited is over"))
            purgatory.reset(key)
