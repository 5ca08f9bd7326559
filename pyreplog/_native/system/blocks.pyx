"""Large buffers whose memory is used again: a fresh page costs a fault, which takes longer than filling it.

The C library gives large blocks back to the kernel when they are freed. These are mapped, so that they lie close
together (see `entries.merge_entries`). The block that was given back last is taken first: it may still be in the
cache. Threads: any that holds the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.string cimport memmove

cdef extern from "<sys/mman.h>" nogil:
    enum:
        PROT_READ
        PROT_WRITE
        MAP_PRIVATE
        MAP_ANONYMOUS
    void *MAP_FAILED
    void *c_mmap "mmap"(void *address, size_t length, int protection, int flags, int fd, long offset)
    int c_munmap "munmap"(void *address, size_t length)

KEPT_MAX = KEPT_BYTES
"""Bytes of free blocks that are kept, at most."""

cdef enum:
    SMALL_BYTES = 128 << 10     # below, the C library keeps them itself
    GRAIN_BYTES = 64 << 10      # sizes are multiples of it, so that one serves for another
    KEPT_BYTES = 16 << 20
    KEPT_BLOCKS = 64

ctypedef struct Kept:
    uint8_t *block
    Py_ssize_t size

cdef Kept[KEPT_BLOCKS] kept     # the one given back last is the last
cdef int kept_count = 0
cdef Py_ssize_t kept_size = 0


def kept_bytes():
    """Return the bytes of free blocks that this process keeps."""
    return kept_size


cdef uint8_t *take_block(Py_ssize_t wanted, Py_ssize_t *size) noexcept:
    cdef int i
    size[0] = wanted
    if wanted >= SMALL_BYTES:
        size[0] = (wanted + GRAIN_BYTES - 1) // GRAIN_BYTES * GRAIN_BYTES
        for i in range(kept_count - 1, -1, -1):
            if size[0] <= kept[i].size <= 2 * size[0]:
                size[0] = kept[i].size
                return drop_kept(i)
        return map_block(size[0])
    return <uint8_t *>PyMem_RawMalloc(wanted)


cdef uint8_t *map_block(Py_ssize_t size) noexcept:
    cdef void *block = c_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    return NULL if block == MAP_FAILED else <uint8_t *>block


cdef void give_block(uint8_t *block, Py_ssize_t size) noexcept:
    global kept_count, kept_size
    cdef Py_ssize_t dropped
    if block == NULL or size < SMALL_BYTES:
        PyMem_RawFree(block)
        return
    if size > KEPT_BYTES:
        c_munmap(block, size)
        return
    while kept_count == KEPT_BLOCKS or kept_size + size > KEPT_BYTES:
        dropped = kept[0].size
        c_munmap(drop_kept(0), dropped)
    kept[kept_count].block, kept[kept_count].size = block, size
    kept_count += 1
    kept_size += size


cdef uint8_t *drop_kept(int i) noexcept:
    global kept_count, kept_size
    cdef uint8_t *block = kept[i].block
    kept_size -= kept[i].size
    kept_count -= 1
    memmove(&kept[i], &kept[i + 1], (kept_count - i) * sizeof(Kept))
    return block


@cython.final
cdef class Block:
    """Bytes in memory that is used again; made by the native code that fills them."""

    def __init__(self):
        raise TypeError("blocks are made by the native code that fills them")

    def __dealloc__(self):
        give_block(self.data, self.size)

    def __len__(self):
        return self.length

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.length, 1, flags)


cdef Block make_block(Py_ssize_t length):
    cdef Block block = Block.__new__(Block)
    block.data = take_block(max(length, 1), &block.size)
    if block.data == NULL:
        raise MemoryError(f"no memory for {length} bytes")
    block.length = length
    return block


cdef object int64_array(object array):
    import numpy
    array = numpy.ascontiguousarray(array, numpy.int64)
    return array if array.flags.aligned else array.copy()  # a view of bytes may begin anywhere
