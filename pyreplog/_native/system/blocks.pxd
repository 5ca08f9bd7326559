# Large buffers whose memory is reused.
from libc.stdint cimport uint8_t


# Return memory of at least `wanted` bytes, and set `size` to its size; NULL for lack of memory. This function and
# give_block need the GIL.
cdef uint8_t *take_block(Py_ssize_t wanted, Py_ssize_t *size) noexcept

# Give memory back, with the size that take_block set. NULL is allowed.
cdef void give_block(uint8_t *block, Py_ssize_t size) noexcept


# `length` read-only bytes for Python. When the last view of them is gone, the memory is given back.
cdef class Block:
    cdef uint8_t *data
    cdef Py_ssize_t size, length


cdef Block make_block(Py_ssize_t length)

# Return an array of integers as a contiguous array of int64 at an address that is a multiple of 8.
cdef object int64_array(object array)
