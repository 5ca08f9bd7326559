# A leader that is alone: what its machine, its role and its producers note of an append.
from libc.stdint cimport int64_t


cdef class LeadingReplicaBase:
    cdef public object isr, config, start, end, synced, log_start, _followers, _high_watermark
    cdef public bint is_deposed
    cdef bint is_alone(self) except -1
    cdef int appended_alone(self, object end) except -1


cdef class ReplicaRoleBase:
    cdef public dict marks
    cdef public object log_end, changes, _leader_keys
    cdef int advance_alone(self, object purgatory, object end) except -1


cdef class LogTransactionsBase:
    cdef public object _open, _unreplicated
    cdef bint is_stable(self) except -1


cdef class ProducerStateManagerBase:
    cdef public object _replayed
    cdef public LogTransactionsBase transactions
    cdef bint is_level(self, object end) except -1
    cdef int appended_plain(self, object end) except -1
