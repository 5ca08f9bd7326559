# Appends of a partition's leader to its log.
from libc.stdint cimport int64_t

from pyreplog._native.log.apply_replicated cimport MirrorLogBase


cdef class PartitionLogBase(MirrorLogBase):
    cdef public bint takes_appends
    # Append, and return the end of the log behind the records; None: nothing was done. They have to wait, or to be looked
    # at further.
    cdef object put_messages(self, object values)
    cdef object put_record_batch(self, object batch, int64_t count, object event_time_us)
    cdef bint has_free_tail(self) noexcept
    cdef bint has_room(self, int64_t size, int64_t count) noexcept
    # Append, and return the end of the log behind the records.
    cdef object append_values(self, object values, object keys, object event_times)
    cdef object append_counted(self, object batch, int64_t count, object event_time_us)
    cpdef show_high_watermark(self, object high_watermark)
