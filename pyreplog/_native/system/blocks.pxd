# Large buffers whose memory is used again.
from libc.stdint cimport uint8_t


# Memory of at least `wanted` bytes, `size` of them in all; NULL: there is none. With the GIL, as give_block.
cdef uint8_t *take_block(Py_ssize_t wanted, Py_ssize_t *size) noexcept

# Give it back, with the size it was taken with. NULL is fine.
cdef void give_block(uint8_t *block, Py_ssize_t size) noexcept


# Read-only bytes for Python, `length` of them; the memory is given back with the last view.
cdef class Block:
    cdef uint8_t *data
    cdef Py_ssize_t size, length


cdef Block make_block(Py_ssize_t length)
