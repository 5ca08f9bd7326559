# The numbers of a replica's role; see replica_role_base.pyx.
from libc.stdint cimport int64_t


cdef class ReplicaRoleBase:
    cdef public dict marks, keys
    cdef public int64_t log_end, changes
    cdef public object changes_key, _high_watermark, _stable
    cpdef advance_all(self, object purgatory, object log_end, object high_watermark, object stable)
    cpdef advance_log_end(self, object purgatory, object log_end)
    cpdef wake_followers(self, object purgatory)
