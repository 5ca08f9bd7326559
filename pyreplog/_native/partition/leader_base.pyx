"""A leader that is alone: no other replica has to have an append, so that it is committed as soon as it is in the log.

Its machine, its role and its producers note the end of the log, each in one step. What they do for other appends is in
the classes of `pyreplog.partition` that have these for bases, and describe the fields.
"""

from pyreplog._native.log.log_position cimport position_of


cdef class LeadingReplicaBase:
    """Base of LeadingReplica."""

    cdef bint is_alone(self) except -1:
        """Whether an append is committed as soon as it is in the log: this replica is the whole ISR, and nobody follows."""
        isr = self.isr
        return (not self.is_deposed and not self._followers and len(isr.maximal) == 1 and not isr.is_under_min
                and not self.config.requires_sync)

    cdef int appended_alone(self, object end) except -1:
        """Note an append of a leader that is alone: all of it is committed."""
        self.end = self._high_watermark.value = end
        return 0


cdef class ReplicaRoleBase:
    """Base of ReplicaRole."""

    cdef int advance_alone(self, object purgatory, object end) except -1:
        """As `advance_all`, if all marks move to the end of the log."""
        position = position_of(end)
        for isolation in self.marks:
            self.marks[isolation] = end  # before the look: a request that comes after the look reads it
        self.log_end = position
        self.changes += 1
        high_watermark_key, stable_key, changes_key = self._leader_keys
        if purgatory.is_watched(high_watermark_key, stable_key, changes_key):
            purgatory.advance(high_watermark_key, position)
            purgatory.advance(stable_key, position)
            purgatory.advance(changes_key, self.changes)
        return 0


cdef class LogTransactionsBase:
    """Base of LogTransactions."""

    cdef bint is_stable(self) except -1:
        """Whether no transaction is open, or waits for its marker to be committed."""
        return not self._open and not self._unreplicated


cdef class ProducerStateManagerBase:
    """Base of ProducerStateManager."""

    cdef bint is_level(self, object end) except -1:
        """Whether all before the end of the log is known, and no transaction holds readers back."""
        return self._replayed == end and self.transactions.is_stable()

    cdef int appended_plain(self, object end) except -1:
        """Learn of an append, within the segment, that says nothing of producers."""
        self._replayed = end
        return 0
