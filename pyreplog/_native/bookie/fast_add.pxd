# The fast path of plain ADDs for other native code; see fast_add.pyx.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.bookie.inspect_records cimport Seen
from pyreplog._native.bookie.ledger_state_base cimport LedgerStateBase, Uncommitted
from pyreplog._native.ledger_log.intake cimport EntryIntake
from pyreplog._native.net.frame cimport FrameBatch
from pyreplog._native.system.histogram cimport Histogram
from pyreplog._native.system.mutex cimport Mutex

cdef enum:      # in place of a LAC
    LATER_LAC = -2      # the reply comes with the next commit
    DECLINED_LAC = -3   # nothing was done: the general way handles it, or fails in the same way


cdef class FastAdd:
    cdef object kept                # owner of the bytes; no Py_buffer, which the garbage collector would drop unreleased
    cdef const uint8_t *start       # of the records
    cdef readonly Py_ssize_t nbytes
    cdef readonly int64_t number, ledger, first, last, count, highest, lac, confirmed
    cdef readonly bytes key
    cdef readonly int flags
    cdef readonly object respond

    cdef void note(self, int64_t ledger, int64_t first, int64_t last, int flags, const Seen *seen) noexcept
    cdef bytes ok_frame(self, int64_t lac)


cdef class AddCounters:
    cdef public int64_t added_entries, added_bytes
    cdef int64_t by_kind[256]       # requests
    cdef int64_t by_status[256]     # replies
    cdef tuple kinds, statuses
    cdef readonly Histogram commit_entries
    cdef int64_t committed

    cpdef add(self, int64_t entries, int64_t size)
    cdef int commit(self) except -1


cdef class DiskSpaceBase:
    cdef public bint read_only
    cdef public int64_t added, check_after

    cpdef add(self, int64_t size)


cdef class LongPollsBase:
    cdef public int64_t count


cdef class FastAddHandler:
    cdef public object _log
    cdef public LongPollsBase _polls
    cdef public dict _lacs
    cdef public DiskSpaceBase _space
    cdef public AddCounters counts
    cdef public Uncommitted _group
    cdef public str _failure
    cdef object states, append
    cdef EntryIntake intake         # that of the log, which is called without a Python object for its result; or None
    cdef dict deleted
    cdef bint staged

    cdef int64_t try_add(self, FastAdd add, object respond) except? -4
    # The steps of a commit.
    cdef list begin(self)
    cdef object sync_log(self)
    cdef int end(self, list group, object error) except -1
    cpdef _note_added(self, LedgerStateBase state, int64_t count, int64_t nbytes, int64_t highest, int64_t lac)
    cpdef _raise_lac(self, LedgerStateBase state, int64_t lac)


cdef class CommitEnd:
    cdef int end(self, FastAddHandler bookie, list group, object error) except -1


cdef class LocalBookieBase:
    cdef public FastAddHandler _bookie
    cdef public Mutex _lock
    cdef public object _replies, _error
    cdef public int64_t _pid

    cdef int check(self) except -1
    cdef int64_t try_add(self, FastAdd add, object respond) except? -4
    cdef bint commit_for(self, CommitEnd end) except -1


# As `parse_fast_add`.
cdef FastAdd parse_alone(FrameBatch batch, dict taken)
# Parse frame `i` of a batch as an ADD of a ledger's writer; None: it is something else.
cdef FastAdd parse_add(FrameBatch batch, Py_ssize_t i)
