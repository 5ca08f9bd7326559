# Sorted rows of int64 words. The first word is the key; keys are distinct. Millions of rows need no Python object: they
# lie in chunks with a directory. A lookup bisects the directory and one chunk; an insertion moves rows of one chunk.
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
    uint32_t flag         # for the caller; if two chunks are joined, the result has it if either had it


# Rows with all fields except `width` zero are empty.
ctypedef struct Rows:
    Chunk *chunks
    uint32_t used         # number of chunks; none of them is empty
    uint32_t room
    uint32_t width        # words of a row
    int64_t count         # rows


# The place of a row, or of an insertion; `row` may be one above that of the last row of the chunk.
ctypedef struct Spot:
    uint32_t chunk
    uint32_t row


# Return the place of the first row whose key is above `key`.
cdef Spot rows_until(const Rows *rows, int64_t key) noexcept nogil
# Return the row at the spot, which may move to the next chunk; NULL: the spot is behind the last row. Valid until rows
# change.
cdef int64_t *rows_at(const Rows *rows, Spot *spot) noexcept nogil
# Return the row before the spot, and move the spot there; NULL: there is none, and the spot does not move.
cdef int64_t *rows_before(const Rows *rows, Spot *spot) noexcept nogil
# Insert a row at the spot, where its key must belong, and set the spot to it. On ROWS_NO_MEMORY nothing was changed.
cdef int rows_insert(Rows *rows, Spot *spot, const int64_t *row) noexcept nogil
# Replace the words of the row at the spot; its key must stay between those of its neighbours.
cdef void rows_set(Rows *rows, Spot spot, const int64_t *row) noexcept nogil
# Remove `count` rows from the spot on. All of them must exist.
cdef void rows_remove(Rows *rows, Spot spot, int64_t count) noexcept nogil
cdef void rows_clear(Rows *rows) noexcept nogil
# Return the number of allocated bytes.
cdef uint64_t rows_bytes(const Rows *rows) noexcept nogil
