# Entry id -> number of the record that holds it, for one ledger in one segment: its records are numbered from 0 in the
# order of adding. Consecutive entries in consecutive records are one extent, as blocks of a file are in a file system.
from libc.stdint cimport int64_t, uint32_t, uint64_t


ctypedef struct Extent:
    uint64_t entry        # of the first record; unsigned, so that the end of an extent is a number too
    uint32_t number       # of the first record
    uint32_t count


# The extents of a map whose entries came out of order, sorted, for lookups; made and brought up to date by them.
#
# Levels lie end to end, the oldest first; within one, extents ascend and are disjoint. A newer level hides what it
# shares with older ones. Each has more than twice the extents of the next one (the logarithmic method of Bentley and
# Saxe): an extent is merged, and a lookup bisects, a logarithmic number of times.
ctypedef struct View:
    Extent *extents
    uint32_t count
    uint32_t room
    uint32_t numbers      # records below this number are in the view
    uint32_t levels
    uint32_t start[32]    # of each level


# All zero: empty.
ctypedef struct ExtentMap:
    Extent *extents       # in the order of adding
    View *view            # NULL: not needed so far
    uint64_t first        # lowest entry id
    uint64_t last         # highest entry id
    uint32_t count        # of extents
    uint32_t room
    uint32_t numbers      # records, copies of an entry included
    bint unordered        # entry ids did not only increase


cdef enum:
    EXTENTS_OK = 0
    EXTENTS_ABSENT = -1
    EXTENTS_NO_MEMORY = -2


# Room for `wanted` items; grows by a quarter: realloc moves the pages of large blocks and copies nothing.
cdef int make_room(void **items, uint64_t wanted, uint32_t *room, size_t size) noexcept nogil

# Entries entry, entry + 1, ... are in the next `count` records. EXTENTS_OK, or nothing happened: EXTENTS_NO_MEMORY.
cdef int extents_add(ExtentMap *map, uint64_t entry, uint32_t count) noexcept nogil
# Forget all records from number `keep` on.
cdef void extents_cut(ExtentMap *map, uint32_t keep) noexcept nogil
cdef void extents_free(ExtentMap *map) noexcept nogil
# Number of the last record of the entry, EXTENTS_ABSENT or EXTENTS_NO_MEMORY.
cdef int64_t extents_find(ExtentMap *map, uint64_t entry) noexcept nogil
# All entries as extents that ascend and are disjoint; NULL: no memory. Valid until the map is used again.
cdef const Extent *extents_sorted(ExtentMap *map, uint32_t *count) noexcept nogil
# Make `past`, which is empty, what `map` was when it had `keep` records.
cdef int extents_rewind(const ExtentMap *map, uint32_t keep, ExtentMap *past) noexcept nogil
# Bytes allocated.
cdef uint64_t extents_bytes(const ExtentMap *map) noexcept nogil


cdef inline uint64_t end_of(const Extent *extent) noexcept nogil:
    return extent.entry + extent.count


cdef inline uint32_t extents_until(const Extent *extents, uint32_t count, uint64_t entry) noexcept nogil:
    """How many of the ascending extents begin at or before `entry`."""
    cdef uint32_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if extents[middle].entry <= entry:
            low = middle + 1
        else:
            high = middle
    return low
