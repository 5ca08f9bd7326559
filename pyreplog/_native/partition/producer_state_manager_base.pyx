"""What a record batch changes in the state of the producers of its log.

Threads: the owner of the log calls it under its lock, one at a time.
"""

from libc.stdint cimport int64_t

from pyreplog._native.kafka.record_batch cimport CONTROL, TRANSACTIONAL, RecordBatchHeader
from pyreplog._native.log.log_position cimport entry_of, position_of
from pyreplog._native.partition.producer_states_base cimport ProducerStatesBase


cdef class ProducerStateManagerBase:
    """Base of ProducerStateManager, which describes the attributes, and has `replay`.

    _replayed: end of the replayed part of the log. _segment_bytes: size of the log's segments.
    """

    cpdef appended(self, RecordBatchHeader head, marker, before, end, int64_t time_us):
        """Apply one append of the owner, without reading it again if possible.

        Snapshots are not written; `write_snapshots` writes them.

        Args:
            head: header of the appended record batch; None: messages.
            marker: the transaction marker in the batch; None: it has no marker.
            before: where the log ended before the append.
            end: where it ends now.
            time_us: wall time, microseconds since 1970-01-01 UTC.

        Raises:
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        cdef int64_t position = position_of(before), offset = position % self._segment_bytes
        if not offset or offset + position_of(end) - position >= self._segment_bytes or before != self._replayed:
            self.replay(write=False)
            return
        if head is not None and head.producer_id >= 0:
            self.apply(head, marker, before, end, time_us)
        self._replayed = end

    cpdef apply(self, RecordBatchHeader head, marker, first, end, int64_t time_us):
        """Apply one record batch of a producer, which lies between two positions of the log."""
        if not head.attributes & CONTROL:
            if head.base_sequence >= 0:
                self.producers.note_batch(head.producer_id, head.producer_epoch, head.base_sequence,
                                          head.last_offset_delta + 1, entry_of(first), time_us)
            if head.attributes & TRANSACTIONAL:
                self.transactions.append(head.producer_id, head.producer_epoch, first)
        if marker is not None:
            self.transactions.end(marker, end)
            self.producers.note_use(head.producer_id, time_us)

    def replay(self, *, write=True):
        raise NotImplementedError
