"""The numbers of a replica's role, which requests read without a lock, and the look for those who wait for them.

Threads: everything runs under the GIL; the numbers are changed under the partition's lock.
"""

from pyreplog._native.log.log_position cimport position_of


cdef class ReplicaRoleBase:
    """Base of ReplicaRole, which describes the fields.

    _high_watermark, _stable: the isolation levels of these marks.
    """

    def advance(self, purgatory, isolation, mark):
        """Note the position up to which consumers read, and wake the requests that wait for it.

        The caller drains the purgatory afterwards, without holding a lock.
        """
        if position_of(mark) > position_of(self.marks[isolation]):
            self.marks[isolation] = mark  # before the check: a request that enters after the check reads it
            key = self.keys[isolation]
            if purgatory.is_watched(key):
                purgatory.advance(key, position_of(mark))

    cpdef advance_all(self, purgatory, log_end, high_watermark, stable):
        """Note all positions of a leader, as `advance` does, and wake the fetches of followers.

        The purgatory is checked once for all keys, because in most of these calls no request waits.
        """
        cdef bint is_changed = position_of(log_end) > self.log_end
        if position_of(high_watermark) > position_of(self.marks[self._high_watermark]):
            self.marks[self._high_watermark] = high_watermark
            is_changed = True
        if position_of(stable) > position_of(self.marks[self._stable]):
            self.marks[self._stable] = stable
        if is_changed:
            self.log_end = position_of(log_end)
            self.changes += 1
        high_watermark_key, stable_key = self.keys[self._high_watermark], self.keys[self._stable]
        if purgatory.is_watched(high_watermark_key, stable_key, self.changes_key):
            purgatory.advance(high_watermark_key, position_of(self.marks[self._high_watermark]))
            purgatory.advance(stable_key, position_of(self.marks[self._stable]))
            purgatory.advance(self.changes_key, self.changes)

    cpdef advance_log_end(self, purgatory, log_end):
        """Note the end of a leader's log, and wake the fetches of followers."""
        if position_of(log_end) > self.log_end:
            self.log_end = position_of(log_end)
            self.wake_followers(purgatory)

    cpdef wake_followers(self, purgatory):
        """Count a change of the leader's log, and wake the fetches of followers that wait for it.

        The caller drains the purgatory afterwards, without holding a lock.
        """
        self.changes += 1
        if purgatory.is_watched(self.changes_key):
            purgatory.advance(self.changes_key, self.changes)
