"""Sorted rows of integers, compact: the storage of range sets and tables of entries. No Python here.

A full chunk is split in half, but rows that only ascend fill every chunk completely. Adjacent chunks that have become
small are joined, so memory follows the number of rows. Threads: the caller's lock.
"""

from libc.stdint cimport UINT32_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove


cdef Spot rows_until(const Rows *rows, int64_t key) noexcept nogil:
    cdef Spot spot
    cdef const int64_t *words
    cdef uint32_t low = 0, high = rows.used, middle
    while low < high:
        middle = (low + high) // 2
        if rows.chunks[middle].first <= key:
            low = middle + 1
        else:
            high = middle
    spot.chunk, spot.row = 0, 0
    if not low:
        return spot
    spot.chunk = low - 1
    words = rows.chunks[spot.chunk].words
    low, high = 1, rows.chunks[spot.chunk].count
    while low < high:
        middle = (low + high) // 2
        if words[<uint64_t>middle * rows.width] <= key:
            low = middle + 1
        else:
            high = middle
    spot.row = low
    return spot


cdef int64_t *rows_at(const Rows *rows, Spot *spot) noexcept nogil:
    while spot.chunk < rows.used:
        if spot.row < rows.chunks[spot.chunk].count:
            return rows.chunks[spot.chunk].words + <uint64_t>spot.row * rows.width
        if spot.chunk + 1 == rows.used:
            break
        spot.chunk, spot.row = spot.chunk + 1, 0
    return NULL


cdef int64_t *rows_before(const Rows *rows, Spot *spot) noexcept nogil:
    if not spot.row:
        if not spot.chunk:
            return NULL
        spot.chunk -= 1
        spot.row = rows.chunks[spot.chunk].count
    spot.row -= 1
    return rows.chunks[spot.chunk].words + <uint64_t>spot.row * rows.width


# ---- adding ------------------------------------------------------------------------------------------------------

cdef int rows_insert(Rows *rows, Spot *spot, const int64_t *row) noexcept nogil:
    cdef Chunk *chunk
    cdef int64_t *place
    if make_room(rows, spot) < 0:
        return ROWS_NO_MEMORY
    chunk = &rows.chunks[spot.chunk]
    place = chunk.words + <uint64_t>spot.row * rows.width
    memmove(place + rows.width, place, <uint64_t>(chunk.count - spot.row) * rows.width * sizeof(int64_t))
    memcpy(place, row, rows.width * sizeof(int64_t))
    chunk.count += 1
    chunk.first = chunk.words[0]
    rows.count += 1
    return ROWS_OK


cdef int make_room(Rows *rows, Spot *spot) noexcept nogil:
    """Make room for one more row in the spot's chunk."""
    cdef Chunk *chunk
    if not rows.used:
        return insert_chunk(rows, 0, 4)
    chunk = &rows.chunks[spot.chunk]
    if chunk.count < chunk.room:
        return ROWS_OK
    if chunk.count < CHUNK_ROWS:
        return grow(rows, chunk, min(2 * <uint32_t>chunk.room, <uint32_t>CHUNK_ROWS))
    if spot.row == CHUNK_ROWS and spot.chunk + 1 == rows.used:   # rows that ascend
        if insert_chunk(rows, rows.used, CHUNK_ROWS) < 0:
            return ROWS_NO_MEMORY
        spot.chunk, spot.row = rows.used - 1, 0
        return ROWS_OK
    return split(rows, spot)


cdef int split(Rows *rows, Spot *spot) noexcept nogil:
    cdef Chunk *lower
    cdef Chunk *upper
    cdef uint32_t half = CHUNK_ROWS // 2
    if insert_chunk(rows, spot.chunk + 1, CHUNK_ROWS) < 0:
        return ROWS_NO_MEMORY
    lower, upper = &rows.chunks[spot.chunk], &rows.chunks[spot.chunk + 1]
    memcpy(upper.words, lower.words + half * rows.width, half * rows.width * sizeof(int64_t))
    lower.count = upper.count = <uint16_t>half
    upper.first, upper.flag = upper.words[0], lower.flag
    if spot.row > half:
        spot.chunk, spot.row = spot.chunk + 1, spot.row - half
    return ROWS_OK


cdef int insert_chunk(Rows *rows, uint32_t at, uint32_t room) noexcept nogil:
    """Insert an empty chunk."""
    cdef uint32_t wanted = rows.room + rows.room // 2 + 1
    cdef void *moved
    cdef int64_t *words
    if rows.used == rows.room:
        moved = realloc(rows.chunks, wanted * sizeof(Chunk)) if wanted < UINT32_MAX // 2 else NULL
        if moved == NULL:
            return ROWS_NO_MEMORY
        rows.chunks, rows.room = <Chunk *>moved, wanted
    words = <int64_t *>malloc(<uint64_t>room * rows.width * sizeof(int64_t))
    if words == NULL:
        return ROWS_NO_MEMORY
    memmove(rows.chunks + at + 1, rows.chunks + at, (rows.used - at) * sizeof(Chunk))
    rows.chunks[at].words = words
    rows.chunks[at].first = 0
    rows.chunks[at].count, rows.chunks[at].room, rows.chunks[at].flag = 0, <uint16_t>room, 0
    rows.used += 1
    return ROWS_OK


cdef int grow(const Rows *rows, Chunk *chunk, uint32_t room) noexcept nogil:
    cdef void *moved = realloc(chunk.words, <uint64_t>room * rows.width * sizeof(int64_t))
    if moved == NULL:
        return ROWS_NO_MEMORY
    chunk.words, chunk.room = <int64_t *>moved, <uint16_t>room
    return ROWS_OK


cdef void rows_set(Rows *rows, Spot spot, const int64_t *row) noexcept nogil:
    cdef Chunk *chunk = &rows.chunks[spot.chunk]
    memcpy(chunk.words + <uint64_t>spot.row * rows.width, row, rows.width * sizeof(int64_t))
    chunk.first = chunk.words[0]


# ---- removing ----------------------------------------------------------------------------------------------------

cdef void rows_remove(Rows *rows, Spot spot, int64_t count) noexcept nogil:
    cdef uint32_t at = spot.chunk, row = spot.row, first = spot.chunk, taken
    cdef Chunk *chunk
    rows.count -= count
    while count:
        chunk = &rows.chunks[at]
        taken = <uint32_t>min(count, <int64_t>(chunk.count - row))
        memmove(chunk.words + <uint64_t>row * rows.width, chunk.words + <uint64_t>(row + taken) * rows.width,
                <uint64_t>(chunk.count - row - taken) * rows.width * sizeof(int64_t))
        chunk.count -= <uint16_t>taken
        chunk.first = chunk.words[0]
        count -= taken
        at, row = at + 1, 0
    drop_empty(rows, first, at)
    if first < rows.used:
        join(rows, first)
    if first:
        join(rows, first - 1)


cdef void drop_empty(Rows *rows, uint32_t at, uint32_t stop) noexcept nogil:
    """Remove the empty ones of some chunks from the directory."""
    cdef uint32_t i, kept = at
    for i in range(at, stop):
        if rows.chunks[i].count:
            rows.chunks[kept] = rows.chunks[i]
            kept += 1
        else:
            free(rows.chunks[i].words)
    if kept < stop:
        memmove(rows.chunks + kept, rows.chunks + stop, (rows.used - stop) * sizeof(Chunk))
        rows.used -= stop - kept
    if not rows.used:
        free(rows.chunks)
        rows.chunks, rows.room = NULL, 0


cdef void join(Rows *rows, uint32_t at) noexcept nogil:
    """Join a chunk and the next one, if both are small."""
    cdef Chunk *chunk = &rows.chunks[at]
    cdef Chunk *other = chunk + 1
    cdef uint32_t both
    if at + 1 >= rows.used:
        return
    both = <uint32_t>chunk.count + other.count
    if both > CHUNK_ROWS // 2 or (both > chunk.room and grow(rows, chunk, CHUNK_ROWS // 2) < 0):
        return
    memcpy(chunk.words + <uint64_t>chunk.count * rows.width, other.words,
           <uint64_t>other.count * rows.width * sizeof(int64_t))
    chunk.count = <uint16_t>both
    chunk.flag |= other.flag
    other.count = 0
    drop_empty(rows, at + 1, at + 2)


cdef void rows_clear(Rows *rows) noexcept nogil:
    cdef uint32_t i
    for i in range(rows.used):
        free(rows.chunks[i].words)
    free(rows.chunks)
    rows.chunks, rows.used, rows.room, rows.count = NULL, 0, 0, 0


cdef uint64_t rows_bytes(const Rows *rows) noexcept nogil:
    cdef uint64_t size = rows.room * sizeof(Chunk)
    cdef uint32_t i
    for i in range(rows.used):
        size += <uint64_t>rows.chunks[i].room * rows.width * sizeof(int64_t)
    return size
