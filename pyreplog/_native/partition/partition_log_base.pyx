"""Appends of a partition's leader that find room and nobody at work in the log, and the high watermark.

Threads: everything runs under the GIL, and no Python code between the look at the role and the end of an append: the
role cannot change meanwhile, and no lock is needed.
"""

from libc.stdint cimport INT32_MAX, int64_t

from pyreplog._native.log.apply_replicated cimport MirrorLogBase
from pyreplog._native.log.log_position cimport appended_at, entry_of, mark_at, position_of
from pyreplog._native.machines.named cimport item

cdef enum:
    RECORD_MARGIN = 128     # more than the header of a record, its attributes and its padding


cdef class PartitionLogBase(MirrorLogBase):
    """Base of PartitionLog, which has `_append_messages` and `_append_record_batch` for all other appends.

    _takes_appends: the replica leads, and the record of its epoch is in the log.
    """

    cdef object put_messages(self, object values):
        cdef int64_t time
        if type(values) is not list or not values or not self.open:
            return None
        time = self.now()  # a clock in Python may do anything: what follows runs no Python code
        if not self.has_free_tail() or not self.put_list(values, max(time, self.last_time)):
            return None
        return mark_at(self.active.base + self.pos, self.next_entry)

    cdef object put_record_batch(self, object batch, int64_t count, object event_time_us):
        if not self.has_free_tail() or not self.active.counted() or not self.has_room(len(batch), count):
            return None
        return item(self.append_record_batch_pending(batch, count, event_time_us), 1)

    cdef bint has_room(self, int64_t size, int64_t count) noexcept:
        """Whether a record batch fits into the active segment, with room to spare, and its numbers as well."""
        return (self.pos + size + RECORD_MARGIN <= self.limit
                and 1 <= count <= INT32_MAX - (self.next_entry - self.first_entry))

    cdef bint ends_within_segment(self, object end) except -1:
        """Whether the log ends there, and behind a record of the active segment."""
        return self.active is not None and position_of(end) == self.active.base + self.pos

    def append_messages(self, values, keys=None, event_times=None):
        """Append native messages, which take one offset each.

        Args:
            values: bytes-like.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, or None; None: no event times.

        Raises:
            ReplogError: as `append_records`.
        """
        cdef object end
        if keys is None and event_times is None:
            end = self.put_messages(values)
            if end is not None:
                return appended_at(entry_of(end) - len(values), len(values), position_of(end))
        return self._append_messages(values, keys, event_times)

    def append_record_batch(self, batch, int64_t count, event_time_us):
        """Append one record batch, as `append_records`.

        Args:
            batch: bytes-like.
            count: how many records it has.
            event_time_us: microseconds since 1970-01-01 UTC; None: no event time.

        Raises:
            ReplogError: as `append_records`.
        """
        cdef object end = self.put_record_batch(batch, count, event_time_us)
        if end is not None:
            return appended_at(entry_of(end) - count, count, position_of(end))
        return self._append_record_batch(batch, count, event_time_us)

    cdef bint has_free_tail(self) noexcept:
        """Whether an append may begin at once: the replica leads, the log is open, and no thread is inside."""
        return (self._takes_appends and self.open and not self.inside and not self.staged and self.active is not None
                and self.first_entry >= 0)
