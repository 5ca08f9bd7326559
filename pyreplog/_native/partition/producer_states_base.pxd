# The last batches of idempotent producers; see producer_states_base.pyx.
from libc.stdint cimport int32_t, int64_t

# Of one producer; Python code reads the constant from the module.
cpdef enum:
    BATCHES_KEPT = 5


# A batch in the log.
ctypedef struct StoredBatch:
    int32_t first_sequence, last_sequence
    int64_t first_offset, last_offset


# The state of one producer: its highest epoch, the last batches of that epoch, oldest first, and the time of its last use.
cdef class ProducerEntry:
    cdef readonly int epoch
    cdef readonly int64_t used_us
    cdef int count
    cdef StoredBatch batches[BATCHES_KEPT]


cdef class ProducerStatesBase:
    cdef dict entries
    # Return the error code of a batch, 0 for a new one. `duplicate` is set to the equal batch in the log, or to NULL.
    cdef int check_sequences(self, int64_t producer_id, int epoch, int64_t first_sequence, int64_t records,
                             StoredBatch **duplicate) except -2
    cdef int note_batch(self, int64_t producer_id, int epoch, int64_t first_sequence, int64_t records,
                        int64_t first_offset, int64_t now_us) except -1
