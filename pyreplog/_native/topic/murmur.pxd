# The hash murmur3 of keys. Clients of Pulsar choose partitions by it, too.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy


cdef inline uint32_t rotated(uint32_t x, int by) noexcept nogil:
    return (x << by) | (x >> (32 - by))


cdef inline uint32_t mixed(uint32_t k) noexcept nogil:
    return rotated(k * <uint32_t>0xcc9e2d51, 15) * <uint32_t>0x1b873593


cdef inline uint32_t murmur(const uint8_t *p, int64_t size) noexcept nogil:
    """Return the 32-bit hash with seed 0."""
    cdef uint32_t hashed = 0, k
    cdef int64_t i, whole = size & ~3
    for i in range(0, whole, 4):
        memcpy(&k, p + i, 4)
        hashed = rotated(hashed ^ mixed(k), 13) * 5 + <uint32_t>0xe6546b64
    if size > whole:
        k = 0
        memcpy(&k, p + whole, size - whole)
        hashed ^= mixed(k)
    hashed ^= <uint32_t>size
    hashed = (hashed ^ (hashed >> 16)) * <uint32_t>0x85ebca6b
    hashed = (hashed ^ (hashed >> 13)) * <uint32_t>0xc2b2ae35
    return hashed ^ (hashed >> 16)
