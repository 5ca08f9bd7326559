# Group commits for other native code; see group_commit_base.pyx.
from libc.stdint cimport int64_t

from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.gate cimport CommitGate
from pyreplog._native.log.segment cimport Segment


cdef class GroupCommitBase:
    cdef readonly Appender _log
    cdef readonly CommitGate _gate
    cdef public object _submitted, error
    cdef object write_sync, poison

    cdef bint wait_staged(self) except -1
    cdef int wait_for(self, int64_t position) except -1
    cdef int lead(self) except -1
    cdef int write(self, tuple taken) except -1
    cdef int sync(self, Segment segment, object data, int64_t offset) except -1


cdef class StagedSync:
    cdef GroupCommitBase commits
    cdef object general

    cdef int run(self) except -1
