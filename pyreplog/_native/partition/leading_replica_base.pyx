"""The high watermark of a leader, and its changes with each append.

Threads: the owner of the log calls it under its lock, one at a time.
"""

from libc.stdint cimport int64_t

from pyreplog._native.machines.named cimport named


cdef class HighWatermark:
    """The high watermark of a leader in one epoch. It never decreases.

    A replica counts once its log has the record with which the epoch began. From then on the log was compared with the
    leader's (KIP-320), and the replica follows no earlier leader any more, even if it reads old metadata after a
    restart.

    Args:
        value: the high watermark that the leader knew as a follower, bounded by its log's end.
        epoch_start: where the epoch begins, the position of its control record.
    """

    def __init__(self, value, epoch_start):
        self.value, self.epoch_start = value, epoch_start

    cpdef bint advance(self, marks) except -1:
        """Advance to the lowest of these positions; return whether the high watermark has moved.

        Args:
            marks: the position of each replica that counts, including the leader; None: it has not begun to follow.
        """
        lowest = None
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
    def is_known(self):
        """Whether it covers all records that earlier leaders committed. Until then the latest offset is not available
        (KIP-207), since it could be lower than one that an earlier leader returned."""
        return self.value > self.epoch_start


cdef class LeadingReplicaBase:
    """Base of LeadingReplica, which describes the fields."""

    @property
    def high_watermark(self):
        return self._high_watermark.value

    cpdef list appended(self, end, synced, int64_t now_us):
        """Note the end and the synced end of the log, after an append or a sync."""
        self.end, self.synced = end, synced
        return self._advance(now_us)

    cpdef list _advance(self, int64_t now_us):
        """Advance the high watermark to the lowest position of the replicas that count."""
        if self.is_deposed or self.isr.is_under_min:
            return []
        own = self.synced if self.config.requires_sync else self.end
        if self._followers or len(self.isr.maximal) > 1:
            marks = (own, *self._marks_of_others(now_us))
        else:
            marks = (own,)
        if not self._high_watermark.advance(marks):
            return []
        moved = named(self._high_watermark_advanced, (self._high_watermark.value,))
        return [moved, *self._expand(now_us)] if self._followers else [moved]
