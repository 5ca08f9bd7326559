"""The append of a leader that is alone: a partition's short way, from the log to the response."""

from libc.stdint cimport int64_t

from pyreplog._native.kafka.record_batch cimport ProducedBatch
from pyreplog._native.log.log_position cimport entry_of, position_of
from pyreplog._native.machines.named cimport item, named
from pyreplog._native.partition.leader_base cimport LeadingReplicaBase, ProducerStateManagerBase, ReplicaRoleBase
from pyreplog._native.partition.partition_log_base cimport PartitionLogBase

cdef int64_t EPOCH_MAX = 0x7FFFFFFF


cdef class PartitionBase:
    """Base of Partition, which describes the fields, and has `_append_any` for all other appends.

    _response: a response to an append that succeeded.
    """

    cdef public object _lock, _purgatory, _response, config, failure
    cdef public LeadingReplicaBase _leading
    cdef public ReplicaRoleBase _role
    cdef public ProducerStateManagerBase _producers
    cdef public PartitionLogBase _log

    def append(self, records, checks, int acks, verification, /):
        """Append as leader; nothing is synced.

        Args:
            records: messages, or a batch after the checks that need no log.
            checks: of the origin.
            acks: of the produce.
            verification: of the transaction, from `begin_verification`; None: its coordinator was not asked.
        """
        cdef object response = None
        if checks.leader_epoch is None and self._lock.acquire(False):
            try:
                response = self.append_alone(records)
            finally:
                self._lock.release()
        if response is None:
            return self._append_any(records, checks, acks, verification)
        self._purgatory.drain()
        return response

    cdef object append_alone(self, records):
        """Append and return the response; None: nothing was done. The lock is held."""
        cdef object end
        cdef int64_t count = 0
        if not self.is_plain():
            return None
        end = self.put(records, &count)
        return None if end is None else self.appended(end, count)

    cdef bint is_plain(self) except -1:
        """Whether an append changes nothing but the end of the log, which is committed at once. The lock is held."""
        cdef LeadingReplicaBase leading = self._leading
        return (self.failure is None and leading is not None and leading.is_alone() and self._producers is not None
                and self._producers.is_level(leading.end) and self._log.ends_within_segment(leading.end))

    cdef object put(self, records, int64_t *count):
        """Append to the log, and set the number of records. Return the end of the log; None: nothing was done."""
        cdef ProducedBatch batch
        cdef int64_t time_ms
        if not isinstance(records, ProducedBatch):
            values, keys, event_times = records
            if type(values) is not list or keys is not None or event_times is not None:
                return None
            count[0] = len(<list>values)
            return self._log.put_messages(values)
        batch = records
        if batch.header.producer_id >= 0 or self.config.log_append_time:
            return None
        count[0], time_ms = batch.header.last_offset_delta + 1, batch.header.max_timestamp
        return self._log.put_record_batch(
            batch.stamp(entry_of(self._leading.end), self._leading.epoch.number & EPOCH_MAX), count[0],
            None if time_ms < 0 else time_ms * 1000)

    cdef object appended(self, object end, int64_t count):
        """Tell all of an append that succeeded. The lock is held."""
        cdef LeadingReplicaBase leading = self._leading
        cdef int64_t stop = entry_of(end)
        self._producers.appended_plain(end)
        leading.appended_alone(end)
        self._log.show_reached(position_of(end), stop)
        self._role.advance_alone(self._purgatory, end)
        log_start = max(leading.log_start, entry_of(leading.start))
        return named(type(self._response), (item(self._response, 0), stop - count, stop, log_start, -1, ""))

    def _append_any(self, records, checks, acks, verification):
        raise NotImplementedError
