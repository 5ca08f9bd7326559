"""The high watermark, the end of the committed part of a log: consumers read up to it, produces with acks=-1 wait for
it."""

from __future__ import annotations

from collections.abc import Iterable

from pyreplog.stream.log_position import LogPosition


class HighWatermark:
    """The high watermark of a leader in one epoch. It never decreases.

    A replica counts once its log has the record with which the epoch began. From then on the log was compared with the
    leader's (KIP-320), and the replica follows no earlier leader any more, even if it reads old metadata after a
    restart.

    Args:
        value: the high watermark that the leader knew as a follower, bounded by its log's end.
        epoch_start: where the epoch begins, the position of its control record.
    """

    def __init__(self, value: LogPosition, epoch_start: LogPosition) -> None:
        self.value, self.epoch_start = value, epoch_start

    def advance(self, marks: Iterable[LogPosition | None]) -> bool:
        """Advance to the lowest of these positions; return whether the high watermark has moved.

        Args:
            marks: the position of each replica that counts, including the leader; None: it has not begun to follow.
        """
        lowest: LogPosition | None = None
        for mark in marks:
            if mark is None or mark <= self.epoch_start:
                return False
            if lowest is None or mark < lowest:
                lowest = mark
        if lowest is None or lowest <= self.value:
            return False
        self.value = lowest
        return True

    @property
    def is_known(self) -> bool:
        """Whether it covers all records that earlier leaders committed. Until then the latest offset is not available
        (KIP-207), since it could be lower than one that an earlier leader returned."""
        return self.value > self.epoch_start
