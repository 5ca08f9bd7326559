# Batches of records as columns.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.log.record cimport Record
from pyreplog._native.system.blocks cimport Block


cdef class RecordBatch:
    cdef object owner             # keeps the mapping alive
    cdef const uint8_t *map       # address of offset 0
    cdef int64_t base             # position of offset 0
    cdef int64_t first_entry      # entry number of delta 0; -1: the records have no numbers
    cdef uint32_t *offsets
    cdef uint32_t *sizes          # bytes of each value; in the same allocation, behind the offsets
    cdef Py_ssize_t block_bytes   # size of that allocation if `take_block` made it; 0: malloc did
    cdef Block times              # append times of all records; None: read them from the records
    cdef Py_ssize_t count
    cdef readonly bint plain      # True: no record has a key or attributes; False: unknown
    cdef bint consecutive         # entry numbers follow each other
    cdef bint scattered           # the records are not stored end to end in this order
    cdef readonly int64_t next_position
    cdef dict columns
    cdef Record record_at(self, Py_ssize_t i)
    cdef Record record_from(self, const uint8_t *p)
    cdef object column(self, int which)


cdef RecordBatch make_batch(object owner, const uint8_t *map, int64_t base, int64_t first_entry,
                            uint32_t *offsets, uint32_t *sizes, Py_ssize_t count, bint consecutive,
                            int64_t next_position)
