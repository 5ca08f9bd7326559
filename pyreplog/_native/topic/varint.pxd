# LEB128 encoding of numbers from 0 to VARINT_END.
from libc.stdint cimport int64_t, uint8_t


cdef enum:
    VARINT_MAX = 9            # greatest size of an encoded number, bytes
    UINT64_VARINT = 10        # of any number of 64 bits


cdef extern from *:
    """
    #define REPLOG_VARINT_END (INT64_C(1) << 62)
    """
    const int64_t VARINT_END "REPLOG_VARINT_END"


# A growing buffer.
ctypedef struct Out:
    uint8_t *data
    size_t used
    size_t room


# Append a number. Return 0, or -1 for lack of memory.
cdef int put_varint(Out *out, int64_t value) noexcept nogil
# Read a number and move `at` behind it. Return -1 if the bytes are malformed or end too early.
cdef int64_t get_varint(const uint8_t **at, const uint8_t *stop) noexcept nogil
