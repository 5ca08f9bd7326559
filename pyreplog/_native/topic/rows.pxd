# Sorted rows of int64 words, the first of which is the key; keys are distinct. There may be millions of rows, without a
# Python object, in chunks with a directory: a lookup bisects the directory and one chunk; an addition moves rows of one
# chunk.
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
    uint32_t flag         # for the user; a joined chunk has it if either part had it


# Empty if all fields except `width` are zero.
ctypedef struct Rows:
    Chunk *chunks
    uint32_t used         # chunks; none is empty
    uint32_t room
    uint32_t width        # words of a row
    int64_t count         # rows


# The place of a row, or of an insertion: `row` may be one behind the last row of its chunk.
ctypedef struct Spot:
    uint32_t chunk
    uint32_t row


# The first row whose key is above `key`.
cdef Spot rows_until(const Rows *rows, int64_t key) noexcept nogil
# The row at the spot, which may move to the next chunk; NULL: behind the last row. Valid until rows change.
cdef int64_t *rows_at(const Rows *rows, Spot *spot) noexcept nogil
# The row before the spot, which is moved there; NULL: there is none, and the spot stays.
cdef int64_t *rows_before(const Rows *rows, Spot *spot) noexcept nogil
# Insert a row, whose key must belong there, and set the spot to it. ROWS_OK; or ROWS_NO_MEMORY, and nothing happened.
cdef int rows_insert(Rows *rows, Spot *spot, const int64_t *row) noexcept nogil
# Replace the words of the row at the spot; its key must stay between those of its neighbours.
cdef void rows_set(Rows *rows, Spot spot, const int64_t *row) noexcept nogil
# Remove `count` rows from the spot on, which must exist.
cdef void rows_remove(Rows *rows, Spot spot, int64_t count) noexcept nogil
cdef void rows_clear(Rows *rows) noexcept nogil
# Bytes allocated.
cdef uint64_t rows_bytes(const Rows *rows) noexcept nogil
