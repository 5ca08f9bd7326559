# The append path of a log's writer.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t

from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.log.group_buffer cimport GroupBuffer
from pyreplog._native.log.log_view_base cimport LogViewBase
from pyreplog._native.log.record cimport Part
from pyreplog._native.log.segment cimport Segment
from pyreplog._native.log.sparse cimport SparseIndex
from pyreplog._native.log.position_waiters cimport PositionWaiters
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_type_lock


cdef class Appender(LogViewBase):
    cdef Segment active           # None: the log was closed
    cdef int64_t active_base      # position of the first byte of `active`; kept when the log is closed
    cdef SparseIndex index
    cdef uint32_t stamp           # of the active segment
    cdef int64_t first_entry      # of the active segment
    cdef uintptr_t dest           # address for offset 0 of the active segment: in its mapping, or by way of the stage
    cdef int64_t pos              # offset of the next record
    cdef int64_t limit            # no record may end beyond this offset: the end of the segment, or of the stage
    cdef int64_t next_entry
    cdef int64_t last_time
    cdef int64_t synced_entry     # number of the first entry not known to be synced
    cdef object clock             # None: the kernel's coarse clock
    cdef bint quick               # append may take the short path now: `wants_quick`, and no thread is inside
    cdef bint wants_quick         # the log allows the short path: open, numbered, not staged, with the system clock
    cdef bint open
    cdef bint inside              # a thread is in the append path with the GIL released, or in Python code
    cdef bint makes_room          # the thread that is inside waits for the disk, or is about to
    cdef unsigned long inside_by  # id of the thread that is inside
    cdef PyThread_type_lock gate  # held by the thread that is inside
    cdef bint staged              # records wait in the stage for their group commit (durability "synced")
    cdef bint gated               # readers stop at a commit point before the end
    cdef object front             # value of the control record with which each new segment begins; None: of none
    cdef int64_t front_bytes      # size of that record
    cdef GroupBuffer stage
    cdef readonly PositionWaiters _submitted  # futures of appends that wait for their commit
    cdef int enter(self, bint waits=*) except -1
    cdef void leave(self) noexcept
    cdef void leave_if_inside(self) noexcept
    cdef void set_synced(self, int64_t position, int64_t entry)
    cdef int64_t now(self) except? -1
    cdef uint32_t synced_lag(self) noexcept nogil
    cdef void show(self, int64_t position, int64_t entry) noexcept nogil
    cdef void publish(self) noexcept nogil
    cdef void encode_one(self, const Part *part, int64_t length, int64_t stride, int64_t time) noexcept nogil
    cdef void encode_counted(self, const Part *part, int64_t length, int64_t stride, int64_t time) noexcept nogil
    cdef Py_ssize_t encode_run(self, const Part *parts, Py_ssize_t count, int64_t time) noexcept nogil
    cdef Py_ssize_t encode_batches(self, const Part *parts, Py_ssize_t count, int64_t time) noexcept nogil
    cdef int tell_readers(self) except -1
    cdef int make_room(self, int64_t stride) except -1
    cdef int reserve(self, int64_t segments) except -1
    cdef int put(self, const Part *parts, Py_ssize_t count, int64_t total) except -1
    cdef object append_any(self, value, key, event_time, properties)
    cdef int64_t put_one(self, value, key, event_time, properties, AppendFuture future, bint waits,
                         int64_t *entry) except -1
    cdef int64_t put_part(self, const Part *part, AppendFuture future, bint waits, int64_t *entry) except -1
    cdef tuple put_batch(self, values, keys, event_times, control, bint waits)
    cdef bint put_list(self, list values, int64_t time)
    cdef void encode_list(self, PyObject *values, Py_ssize_t count, int64_t time) noexcept
    cdef int64_t put_locked(self, const Part *parts, Py_ssize_t count, bint waits, int64_t *entry) except -1
    cdef int64_t put_inside(self, const Part *parts, Py_ssize_t count, int64_t total, bint waits) except -1
    cdef int64_t put_counted(self, const Part *parts, Py_ssize_t count, int64_t numbers, bint waits,
                             int64_t *entry) except -1
    cdef object append_counted_pending(self, value, int64_t count, event_time)
    cdef tuple put_record_batches(self, values, counts, event_times, control, bint waits)
    cdef int begin_stage(self) except -1
    cdef tuple take_stage(self)
