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

    takes_appends: the replica leads, and the record of its epoch is in the log.
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
        return item(self.append_counted_pending(batch, count, event_time_us), 1)

    cdef bint has_room(self, int64_t size, int64_t count) noexcept:
        """Whether a record batch fits into the active segment, with room to spare, and its numbers as well."""
        return (self.pos + size + RECORD_MARGIN <= self.limit
                and 1 <= count <= INT32_MAX - (self.next_entry - self.first_entry))

    cdef object append_values(self, values, keys, event_times):
        cdef object end = None
        if keys is None and event_times is None:
            end = self.put_messages(values)
        return item(self._append_messages(values, keys, event_times), 1) if end is None else end

    cdef object append_counted(self, batch, int64_t count, event_time_us):
        cdef object end = self.put_record_batch(batch, count, event_time_us)
        return item(self._append_record_batch(batch, count, event_time_us), 1) if end is None else end

    def append_messages(self, values, keys=None, event_times=None):
        """Append native messages, as leader. Each takes one offset.

        Args:
            values: values, bytes-like.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many event times, each a time or None; None: no event times.

        Returns:
            The offsets of the messages, and the end of the log.

        Raises:
            ReplogError: errors of `append_records`.
        """
        cdef list appended = values if type(values) is list else list(values)
        cdef object end = self.append_values(appended, keys, event_times)
        return appended_at(entry_of(end) - len(appended), len(appended), position_of(end))

    def append_record_batch(self, batch, int64_t count, event_time_us):
        """Append one record batch, as `append_records` does.

        Args:
            batch: record batch, bytes-like.
            count: number of its records.
            event_time_us: event time, microseconds since 1970-01-01 UTC; None: no event time.

        Returns:
            The offsets of the records, and the end of the log.

        Raises:
            ReplogError: errors of `append_records`.
        """
        cdef object end = self.append_counted(batch, count, event_time_us)
        return appended_at(entry_of(end) - count, count, position_of(end))

    cpdef show_high_watermark(self, high_watermark):
        """Let readers read up to the high watermark, at most to the end of the log. It never decreases. Any thread.

        Args:
            high_watermark: the high watermark.
        """
        if not self.show_reached(position_of(high_watermark), entry_of(high_watermark)):
            end = self.end_mark
            (<object>self).show(*(end if end < high_watermark else high_watermark))  # `show` of MirrorLog

    cdef bint has_free_tail(self) noexcept:
        """Whether an append may begin at once: the replica leads, the log is open, and no thread is inside."""
        return (self.takes_appends and self.open and not self.inside and not self.staged and self.active is not None
                and self.first_entry >= 0)
