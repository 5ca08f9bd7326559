# The high watermark of a leader, and its changes with each append; see leading_replica_base.pyx.
from libc.stdint cimport int64_t


cdef class HighWatermark:
    cdef readonly object value, epoch_start
    cpdef bint advance(self, object marks) except -1


cdef class LeadingReplicaBase:
    cdef public object isr, config, epoch, start, end, synced, _followers
    cdef public int64_t log_start
    cdef public bint is_deposed
    cdef public HighWatermark _high_watermark
    cpdef list appended(self, object end, object synced, int64_t now_us)
    cpdef list _advance(self, int64_t now_us)
