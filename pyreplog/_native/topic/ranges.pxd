# Ranges [start, end) of offsets. The row of a range has start, end, and further words of the caller. Ranges ascend, are
# disjoint and do not touch each other.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.topic.rows cimport Rows, Spot


cdef extern from *:
    """
    #define REPLOG_OFFSET_MAX (INT64_C(1) << 62)
    """
    const int64_t OFFSET_MAX "REPLOG_OFFSET_MAX"      # end of the last possible range


# The effect of adding [start, end): `count` rows from `spot` on are replaced by [start, end) of this struct.
ctypedef struct Merge:
    Spot spot
    int64_t count
    int64_t start
    int64_t end
    int64_t held          # number of offsets in these rows


# Whether offsets are in a range; the answer holds for all of [start, stop).
ctypedef struct Known:
    int64_t start
    int64_t stop
    bint present


cdef void ranges_probe(const Rows *rows, int64_t start, int64_t end, Merge *merge) noexcept nogil
# Carry out a merge: `row` replaces the rows, and its chunk gets the flag. On ROWS_NO_MEMORY nothing was changed.
cdef int ranges_commit(Rows *rows, Merge *merge, const int64_t *row) noexcept nogil
# Add [start, end) to rows of width 2; return the number of new members, or ROWS_NO_MEMORY.
cdef int64_t ranges_add(Rows *rows, int64_t start, int64_t end) noexcept nogil
# Remove [start, end) from rows of width 2; return the number of removed members, or ROWS_NO_MEMORY.
cdef int64_t ranges_cut(Rows *rows, int64_t start, int64_t end) noexcept nogil
# Return whether `offset` is in a range, and the offsets around it for which the answer is the same.
cdef Known ranges_known(const Rows *rows, int64_t offset) noexcept nogil
# Return the number of offsets of [start, end) that are in no range.
cdef int64_t ranges_missing(const Rows *rows, int64_t start, int64_t end) noexcept nogil
cdef void ranges_mask(const Rows *rows, const int64_t *offsets, int64_t count, uint8_t *mask) noexcept nogil
# Return (starts, ends) of at most `most` ranges, cut to [start, end).
cdef tuple ranges_between(const Rows *rows, int64_t start, int64_t end, int64_t most)

cdef const int64_t[::1] int64s(object array, str name)
cdef int check_range(int64_t start, int64_t end) except -1
