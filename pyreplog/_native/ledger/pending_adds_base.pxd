# Batches of encoded entries that bookies of an ensemble have not all stored yet.
from libc.stdint cimport int64_t

from pyreplog._native.ledger_log.entries cimport Entries
from pyreplog._native.quorum.ack_tracker cimport AckTracker


cdef class EntryBatch:
    cdef readonly int64_t first, last, nbytes
    cdef readonly object records, about
    cdef object starts              # the offsets; None: `about` has them

    cdef bint is_alone(self) except -1


cdef class PendingAddsBase:
    cdef readonly int64_t ledger, pending_bytes, batch_bytes
    cdef readonly bytes key
    cdef readonly list ensemble
    cdef readonly AckTracker tracker
    cdef readonly object batches    # a deque
    cdef readonly int _flags
    cdef type request

    cdef list push(self, EntryBatch batch)
    cdef tuple asked(self, EntryBatch batch)
    cdef int let_go(self) except -1


# Make one batch of all entries.
cdef EntryBatch whole(Entries entries)
