"""The high watermark: up to where a log is committed, which consumers may read and a produce with acks=-1 waits for."""

from __future__ import annotations

from collections.abc import Iterable

from pyreplog.stream.log_position import LogPosition


class HighWatermark:
    """The high watermark of a leader in one epoch. It never goes back.

    A replica counts once its log has the record with which the epoch began. It has then been compared with the
    leader's (KIP-320), and it follows no earlier leader any more, whatever old metadata it may read after a restart.

    Args:
        value: the high watermark that the leader knew as a follower, bounded by its log's end.
        epoch_start: where the epoch begins, the position of its control record.
    """

    def __init__(self, value: LogPosition, epoch_start: LogPosition) -> None:
        self.value, self.epoch_start = value, epoch_start

    def advance(self, marks: Iterable[LogPosition | None]) -> bool:
        """Move to the lowest of these marks; return whether that is further.

        Args:
            marks: how far each replica is that counts, the leader among them; None: it has not begun to follow.
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
        """Whether it covers all that earlier leaders committed. Until then the latest offset is not told (KIP-207): it
        would be lower than one that was told before."""
        return self.value > self.epoch_start
