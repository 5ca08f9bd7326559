# Frames on a byte stream: i64 offset, u32 size, body; big-endian. FORMAT.md has the byte table and the rules.
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport FRAME_HEADER


cdef extern from "endian.h" nogil:
    uint64_t be64toh(uint64_t value)
    uint64_t htobe64(uint64_t value)
    uint32_t be32toh(uint32_t value)
    uint32_t htobe32(uint32_t value)


cdef enum:
    BODY_LIMIT = 0x7FFFFFFF # a peer that reads the size as an i32 would find a larger one negative


# The reason why a walk ended.
cdef enum Status:
    FRAME_MORE = 0          # no bytes are left, or the beginning of a frame
    FRAME_SIZE = -1         # a body exceeds the limit
    FRAME_OFFSET = -2       # the order does not admit an offset


cdef enum Order:
    ORDER_ANY               # any offset is valid: correlation ids
    ORDER_CONTIGUOUS        # each frame begins where the frame before it ended: log positions
    ORDER_NON_DECREASING


# The limits of a stream, and its place in the order. A frame at offset -1 is a control body, and not part of the order.
ctypedef struct Rules:
    int64_t max_body
    int64_t next            # contiguous: the only valid offset, -1: any; non-decreasing: the lowest valid offset
    Order order


ctypedef struct Walk:
    Py_ssize_t count        # complete frames
    Py_ssize_t length       # bytes of the complete frames
    int64_t largest         # size of their largest body
    int64_t offset          # of the frame that ended the walk
    int64_t size            # of the body of that frame; -1: its header is not complete


cdef inline void put_header(char *p, int64_t offset, int64_t size) noexcept nogil:
    cdef uint64_t offset_word = htobe64(<uint64_t>offset)
    cdef uint32_t size_word = htobe32(<uint32_t>size)
    memcpy(p, &offset_word, 8)
    memcpy(p + 8, &size_word, 4)


cdef inline int64_t load_i64(const uint8_t *p) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, p, 8)
    return <int64_t>be64toh(word)


cdef inline void store_i64(char *p, int64_t value) noexcept nogil:
    cdef uint64_t word = htobe64(<uint64_t>value)
    memcpy(p, &word, 8)


cdef inline int64_t load_size(const uint8_t *p) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, p + 8, 4)
    return be32toh(word)


cdef inline bint admits(const Rules *rules, int64_t offset, int64_t size) noexcept nogil:
    if rules.order == ORDER_ANY or offset == -1:
        return True
    if offset < 0 or offset > INT64_MAX - size:
        return False
    if rules.order == ORDER_CONTIGUOUS:
        return rules.next < 0 or offset == rules.next
    return offset >= rules.next


cdef inline void pass_over(Rules *rules, int64_t offset, int64_t size) noexcept nogil:
    if rules.order == ORDER_ANY or offset == -1:
        return
    rules.next = offset + size if rules.order == ORDER_CONTIGUOUS else offset


cdef inline int parse(const uint8_t *data, Py_ssize_t length, Rules *rules, Walk *walk) noexcept nogil:
    """Walk over the complete frames. A header is checked as soon as it is complete, before its body has arrived."""
    cdef Rules now = rules[0]   # a local copy stays in registers: no store through a pointer can change it
    cdef Py_ssize_t at = 0, count = 0
    cdef int64_t offset = 0, size = -1, largest = 0
    cdef int status = FRAME_MORE
    while length - at >= FRAME_HEADER:
        offset = load_i64(data + at)
        size = load_size(data + at)
        if size > now.max_body:
            status = FRAME_SIZE
            break
        if not admits(&now, offset, size):
            status = FRAME_OFFSET
            break
        if size > length - at - FRAME_HEADER:
            break
        pass_over(&now, offset, size)
        largest = max(largest, size)
        at += FRAME_HEADER + size
        count += 1
        size = -1
    rules[0] = now
    walk.count, walk.length, walk.largest, walk.offset, walk.size = count, at, largest, offset, size
    return status


cdef inline bint index(const uint8_t *data, Py_ssize_t length, Py_ssize_t count, int64_t *columns) noexcept nogil:
    """Store offset, size and body start of `count` parsed frames. Return False if the bytes have changed since."""
    cdef Py_ssize_t at = 0, i
    cdef int64_t size
    for i in range(count):
        if length - at < FRAME_HEADER:
            return False
        size = load_size(data + at)
        if size > length - at - FRAME_HEADER:
            return False
        columns[i] = load_i64(data + at)
        columns[count + i] = size
        columns[2 * count + i] = at + FRAME_HEADER
        at += FRAME_HEADER + size
    return True


cdef class _Chunk:
    cdef uint8_t *data
    cdef Py_ssize_t capacity, size  # bytes that may be used; bytes of the memory
    cdef Py_ssize_t exports


cdef class _Window:
    cdef _Chunk chunk
    cdef Py_ssize_t start


cdef class FrameBatch:
    cdef _Chunk chunk               # counts this batch among its readers, which keeps the bytes in place
    cdef Py_ssize_t begin           # of the frames in the chunk
    cdef object frames              # a read-only view of them; None until first needed
    cdef const uint8_t *data
    cdef Py_ssize_t length, count
    cdef bytes columns              # `count` int64 each of offsets, sizes, starts; None until first needed
    cdef readonly object error

    cdef object view(self)
    cdef object array(self, int which)
    cdef const int64_t *column(self, int which) except NULL


cdef class FrameParser:
    cdef Rules rules
    cdef _Chunk chunk, spare
    cdef Py_ssize_t start, end      # of the bytes in the chunk that belong to no complete frame yet
    cdef Py_ssize_t window          # bytes of the last get_buffer() that received() may still report
    cdef Py_ssize_t buffer_size, target
    cdef Py_ssize_t largest         # size of the largest frame during the last relocations
    cdef int rounds                 # number of these relocations
    cdef int64_t position           # in the stream, of chunk[start]
    cdef int64_t offset, size       # of the incomplete frame; size -1: there is none, or its header is incomplete
    cdef tuple failure              # arguments of the FrameError that ended the stream

    # For modules that receive bytes directly into the chunk.
    cdef Py_ssize_t make_room(self, Py_ssize_t hint) except -1
    cdef FrameBatch take(self, Py_ssize_t count)

    cdef FrameBatch advance(self)
    cdef Py_ssize_t needed(self) noexcept
    cdef Py_ssize_t fit(self)
    cdef int relocate(self, Py_ssize_t capacity) except -1
    cdef int refuse_after_failure(self) except -1
