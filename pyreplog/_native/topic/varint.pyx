"""Variable-length numbers (LEB128). No Python here. Threads: the caller's lock."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc


cdef int put_varint(Out *out, int64_t value) noexcept nogil:
    cdef uint64_t remaining = <uint64_t>value
    cdef size_t wanted = 2 * out.room + 64
    cdef void *moved
    if out.used + UINT64_VARINT > out.room:  # also for a number that is out of range
        moved = realloc(out.data, wanted)
        if moved == NULL:
            return -1
        out.data, out.room = <uint8_t *>moved, wanted
    while remaining > 127:
        out.data[out.used] = <uint8_t>(remaining | 128)
        out.used += 1
        remaining >>= 7
    out.data[out.used] = <uint8_t>remaining
    out.used += 1
    return 0


cdef int64_t get_varint(const uint8_t **at, const uint8_t *stop) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < stop and shift < 7 * VARINT_MAX:
        byte = at[0][0]
        at[0] += 1
        value |= <uint64_t>(byte & 127) << shift
        shift += 7
        if byte < 128:
            return <int64_t>value if value <= <uint64_t>VARINT_END and (byte or shift == 7) else -1
    return -1
