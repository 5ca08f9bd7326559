# The sparse index of one segment: finds the offset of an entry number or an event time. layout.h and FORMAT.md have its
# layout.
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.layout cimport IndexBlock, TimeRange


cdef class SparseIndex:
    cdef IndexBlock *blocks
    cdef TimeRange *ranges        # NULL: no record has an event time
    cdef int64_t count            # of blocks
    cdef int64_t range_count
    cdef int64_t capacity         # blocks that fit into the memory; 0: the index is mapped from a file, read-only
    cdef int64_t size             # of the segment
    cdef int64_t boundary         # the first record that ends beyond this offset gets a block entry
    cdef int64_t run_stride       # stride of the records since the last block entry
    cdef bint mixed               # some of these records have another stride, or do not take one number each
    cdef readonly int64_t end     # offset behind the last noted record
    cdef readonly int64_t entries # entry numbers of the noted records
    cdef bint counted             # one of them takes several entry numbers
    cdef const uint8_t *image     # the mapped file; NULL: in memory
    cdef uint64_t length          # of the mapped file

    # Raise InvalidArgumentError unless records of a segment of `size` bytes may be noted.
    cdef int check_notes(self, int64_t size) except -1
    # Note the record at `offset`, which takes `count` entry numbers. Records are noted in order, and lie within the
    # segment: then there is memory for all blocks.
    cdef void note(self, int64_t offset, int64_t stride, int64_t count, int64_t event_time) noexcept nogil
    # Return the offset at which the walk to `entry_delta` starts, and set `stride` to the common stride of its block's
    # records, or 0; `delta` to the entry delta at that offset.
    cdef int64_t find(self, int64_t entry_delta, int64_t *stride, int64_t *delta) noexcept nogil
    cdef void open_block(self, int64_t offset) noexcept nogil
    # Whether the records since the last block entry, so far, have one stride and take one number each.
    cdef bint is_uniform(self) noexcept nogil
    cdef void widen(self, int64_t offset, int64_t event_time) noexcept nogil
    cdef int64_t place_of(self, int64_t at) noexcept nogil
    cdef int64_t block_of(self, int64_t entry_delta) noexcept nogil
    cdef tuple adopt(self, object path, const uint8_t *p, Py_ssize_t length, bytes uuid, int64_t base,
                     int64_t first_entry, uint32_t stamp)


cdef inline bint is_plain(SparseIndex index, int64_t end, int64_t stride, int64_t event_time) noexcept nogil:
    """Whether noting a record that takes one number changes only the end and the count of the index, as most records do."""
    return end <= index.boundary and stride == index.run_stride and event_time == INT64_MIN
