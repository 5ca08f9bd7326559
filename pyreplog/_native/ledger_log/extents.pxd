# A map from entry ids to record numbers, for one ledger in one segment. The records of the ledger are numbered from 0,
# in the order of adding. Consecutive entries in consecutive records form one extent, like blocks of a file.
from libc.stdint cimport int64_t, uint32_t, uint64_t


ctypedef struct Extent:
    uint64_t entry        # of the first record; unsigned, so that the end of an extent does not overflow
    uint32_t number       # of the first record
    uint32_t count


# The sorted extents of a map whose entries came out of order. Lookups need them, and bring them up to date.
#
# Levels lie end to end, the oldest first. The extents of a level ascend and are disjoint. Where two levels have the
# same entry, the newer level holds. Each level has more than twice the extents of the next one (the logarithmic method
# of Bentley and Saxe), so each extent is merged O(log n) times, and a lookup bisects O(log n) levels.
ctypedef struct View:
    Extent *extents
    uint32_t count
    uint32_t room
    uint32_t numbers      # records below this number are in the view
    uint32_t levels
    uint32_t start[32]    # index of the first extent of each level


# A map with all fields zero is empty.
ctypedef struct ExtentMap:
    Extent *extents       # in the order of adding
    View *view            # NULL: no lookup has needed it
    uint64_t first        # lowest entry id
    uint64_t last         # highest entry id
    uint32_t count        # of extents
    uint32_t room
    uint32_t numbers      # records, copies of an entry included
    bint unordered        # an entry id was not above the ids before it


cdef enum:
    EXTENTS_OK = 0
    EXTENTS_ABSENT = -1
    EXTENTS_NO_MEMORY = -2


# Make room for `wanted` items. Growing by a quarter is enough, because realloc moves the pages of a large block instead
# of copying them.
cdef int make_room(void **items, uint64_t wanted, uint32_t *room, size_t size) noexcept nogil

# Add the next `count` records, which hold the entries from `entry` on. On EXTENTS_NO_MEMORY nothing was added.
cdef int extents_add(ExtentMap *map, uint64_t entry, uint32_t count) noexcept nogil
# Remove all records from number `keep` on.
cdef void extents_cut(ExtentMap *map, uint32_t keep) noexcept nogil
cdef void extents_free(ExtentMap *map) noexcept nogil
# Return the number of the last record of the entry, EXTENTS_ABSENT or EXTENTS_NO_MEMORY.
cdef int64_t extents_find(ExtentMap *map, uint64_t entry) noexcept nogil
# Return all entries as extents that ascend and are disjoint, or NULL for lack of memory. They are valid until the map
# is used again.
cdef const Extent *extents_sorted(ExtentMap *map, uint32_t *count) noexcept nogil
# Copy into the empty map `past` the state that `map` had with `keep` records.
cdef int extents_rewind(const ExtentMap *map, uint32_t keep, ExtentMap *past) noexcept nogil
# Return the number of allocated bytes.
cdef uint64_t extents_bytes(const ExtentMap *map) noexcept nogil


cdef inline uint64_t end_of(const Extent *extent) noexcept nogil:
    return extent.entry + extent.count


cdef inline uint32_t extents_until(const Extent *extents, uint32_t count, uint64_t entry) noexcept nogil:
    """Return how many of the ascending extents begin at or before `entry`."""
    cdef uint32_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if extents[middle].entry <= entry:
            low = middle + 1
        else:
            high = middle
    return low
