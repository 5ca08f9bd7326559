# Sorted rows of int64 words, the first of which is the key; no two rows have one key. Millions of them, without a
# Python object, in chunks of which a directory is kept: a lookup bisects it and one chunk; an addition moves rows of
# one chunk.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t


cdef enum:
    ROWS_OK = 0
    ROWS_NO_MEMORY = -1
    CHUNK_ROWS = 128


ctypedef struct Chunk:
    int64_t first         # key of its first row
    int64_t *words
    uint16_t count        # rows
    uint16_t room
    uint32_t flag         # the user's; a chunk made of two has it if either had it


# All zero but for `width`: empty.
ctypedef struct Rows:
    Chunk *chunks
    uint32_t used         # chunks; none is empty
    uint32_t room
    uint32_t width        # words of a row
    int64_t count         # rows


# Where a row is, or would be inserted: `row` may be one behind the last row of its chunk.
ctypedef struct Spot:
    uint32_t chunk
    uint32_t row


# The first row whose key is above `key`.
cdef Spot rows_until(const Rows *rows, int64_t key) noexcept nogil
# The row at the spot, which is moved to the next chunk if need be; NULL: behind the last row. Valid until rows change.
cdef int64_t *rows_at(const Rows *rows, Spot *spot) noexcept nogil
# The row before the spot, which is moved there; NULL: there is none, and the spot stays.
cdef int64_t *rows_before(const Rows *rows, Spot *spot) noexcept nogil
# Insert a row, whose key must belong there; the spot is its spot then. ROWS_OK, or nothing happened: ROWS_NO_MEMORY.
cdef int rows_insert(Rows *rows, Spot *spot, const int64_t *row) noexcept nogil
# Give the row at the spot, which must be one, other words; its key must stay between those of its neighbours.
cdef void rows_set(Rows *rows, Spot spot, const int64_t *row) noexcept nogil
# Remove `count` rows from the spot on; there must be so many.
cdef void rows_remove(Rows *rows, Spot spot, int64_t count) noexcept nogil
cdef void rows_clear(Rows *rows) noexcept nogil
# Bytes allocated.
cdef uint64_t rows_bytes(const Rows *rows) noexcept nogil
