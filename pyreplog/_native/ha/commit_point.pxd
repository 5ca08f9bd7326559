# The commit point of a replica group; see commit_point.pyx.
from libc.stdint cimport int64_t

from pyreplog._native.log.apply_replicated cimport Marks
from pyreplog._native.log.log_position cimport Mark


cdef enum:          # outcomes of `take_report`
    REPORT_LEFT     # it is not ordinary: nothing was done, and `progress` handles it
    REPORT_COUNTED
    REPORT_COMMITTED    # the commit point has moved, too


cdef class ProgressBase:
    cdef Marks marks
    cdef Mark proven_mark, counted_mark
    cdef public bint reported, knows_members, counts, observer
    cdef public int64_t caught_up_us, _probe, _probe_us, _base, _base_us, _rate

    cdef int fault_of(self, const Marks *marks, int64_t sent, const Mark *end) noexcept
    cdef str absurdity(self, int fault, const Marks *marks, int64_t sent, const Mark *end)
    cdef int take(self, const Marks *marks, bint counts_synced, int64_t end, int64_t now_us) except -1
    cdef const Mark *mark(self, bint counts_synced) noexcept
    cdef void count_if_ready(self, const Mark *mark) noexcept


cdef class CommitPointBase:
    cdef readonly str name
    cdef readonly object config, fallback
    cdef public object fenced
    cdef readonly dict _progress_by_name, _connected
    cdef public int64_t _reports
    cdef object present_members
    cdef tuple quorums
    cdef bint is_changing, waits_for_disks
    cdef int sync_replicas
    cdef Marks ends                 # of the log: all of it, and what is synced
    cdef Mark committed_mark, term_start, origin

    # Take a report if it is ordinary: of a replica that follows, possible, and in a group that neither changes its members
    # nor may go on alone.
    cdef int take_report(self, object connection, const Marks *marks, int64_t sent, int64_t now_us) except -1
    # Whether a commit needs a replica's report.
    cdef bint waits_for_replicas(self) except -1
    cdef int note(self, ProgressBase replica, const Marks *marks, int64_t now_us) except -1
    cdef const Mark *own_mark(self) noexcept
    cdef bint count(self, Mark *reached) except -1
