# The progress reports of replicas, for native code; see reports.pyx.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.log.apply_replicated cimport Marks
from pyreplog._native.log.log_position cimport Mark
from pyreplog._native.net.frame cimport FrameBatch

# The frame of a report.
cdef bytes report_frame(const Marks *marks)
# Read a report that is the only frame of a batch. Return False if it is another message, or one with a mark below 0.
cdef bint read_report(FrameBatch batch, Marks *marks) noexcept


# Which report a replica owes its master.
cdef class ReplicaReportsBase:
    cdef public bint is_streaming
    cdef Mark end           # of the log, as it was told last
    cdef Marks reported
    cdef bint has_reported

    cdef bint is_news(self, const Marks *ends) noexcept
