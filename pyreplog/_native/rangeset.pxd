# Ranges [start, end) of offsets as rows: start, end, and whatever else the user's rows have. They ascend, are disjoint
# and do not touch each other.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyreplog._native.rows cimport Rows, Spot


cdef enum:
    VARINT_MAX = 9            # bytes of one


cdef extern from *:
    """
    #define REPLOG_OFFSET_MAX (INT64_C(1) << 62)
    """
    const int64_t OFFSET_MAX "REPLOG_OFFSET_MAX"      # end of the last possible range


# What adding [start, end) would do: it replaces `count` rows from `spot` on by [start, end) of this struct.
ctypedef struct Merge:
    Spot spot
    int64_t count
    int64_t start
    int64_t end
    int64_t held          # members of those rows


# Part of the answer that holds for every offset of [start, stop).
ctypedef struct Known:
    int64_t start
    int64_t stop
    bint present


# Bytes that grow.
ctypedef struct Out:
    uint8_t *data
    size_t used
    size_t room


cdef void ranges_probe(const Rows *rows, int64_t start, int64_t end, Merge *merge) noexcept nogil
# Carry a merge out: `row` takes the place of the rows, and its chunk gets the flag. ROWS_OK, or nothing happened:
# ROWS_NO_MEMORY.
cdef int ranges_commit(Rows *rows, Merge *merge, const int64_t *row) noexcept nogil
# Add [start, end) to rows of width 2: how many members are new, or ROWS_NO_MEMORY.
cdef int64_t ranges_add(Rows *rows, int64_t start, int64_t end) noexcept nogil
# Whether `offset` is in a range, and as far around it as the same is known.
cdef Known ranges_known(const Rows *rows, int64_t offset) noexcept nogil
# How many of [start, end) are in no range.
cdef int64_t ranges_missing(const Rows *rows, int64_t start, int64_t end) noexcept nogil
cdef void ranges_mask(const Rows *rows, const int64_t *offsets, int64_t count, uint8_t *mask) noexcept nogil
# (starts, ends) of at most `most` ranges, cut to [start, end).
cdef tuple ranges_between(const Rows *rows, int64_t start, int64_t end, int64_t most)

cdef const int64_t[::1] int64s(object array, str what)
cdef int check_range(int64_t start, int64_t end) except -1

# LEB128 of 0 to OFFSET_MAX. ROWS_OK or ROWS_NO_MEMORY.
cdef int put_varint(Out *out, int64_t value) noexcept nogil
# Moves `at` behind it; -1: it is none, or cut short.
cdef int64_t get_varint(const uint8_t **at, const uint8_t *stop) noexcept nogil


cdef class RangeSet:
    cdef Rows rows
    cdef readonly int64_t total
    cdef int64_t put(self, int64_t start, int64_t end) except -1
    cdef int64_t cut(self, int64_t start, int64_t end) except -1
    cdef int64_t each(self, const int64_t[::1] offsets, bint present) except -1
    cdef int64_t each_range(self, const int64_t[::1] starts, const int64_t[::1] ends, bint present) except -1
