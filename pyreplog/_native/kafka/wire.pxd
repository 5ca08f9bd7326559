# Numbers on Kafka's wire: big endian, and of variable length (unsigned LEB128, and zigzag on top of it).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    static inline uint16_t replog_swap16(uint16_t value) { return __builtin_bswap16(value); }
    static inline uint32_t replog_swap32(uint32_t value) { return __builtin_bswap32(value); }
    static inline uint64_t replog_swap64(uint64_t value) { return __builtin_bswap64(value); }
    """
    uint16_t swap16 "replog_swap16"(uint16_t value) noexcept nogil
    uint32_t swap32 "replog_swap32"(uint32_t value) noexcept nogil
    uint64_t swap64 "replog_swap64"(uint64_t value) noexcept nogil


cdef inline int16_t get_int16(const uint8_t *p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return <int16_t>swap16(value)


cdef inline int32_t get_int32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return <int32_t>swap32(value)


cdef inline int64_t get_int64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return <int64_t>swap64(value)


cdef inline double get_float64(const uint8_t *p) noexcept nogil:
    cdef uint64_t bits
    cdef double value
    memcpy(&bits, p, 8)
    bits = swap64(bits)
    memcpy(&value, &bits, 8)
    return value


cdef inline void put_int16(uint8_t *p, int64_t number) noexcept nogil:
    cdef uint16_t value = swap16(<uint16_t>number)
    memcpy(p, &value, 2)


cdef inline void put_int32(uint8_t *p, int64_t number) noexcept nogil:
    cdef uint32_t value = swap32(<uint32_t>number)
    memcpy(p, &value, 4)


cdef inline void put_int64(uint8_t *p, int64_t number) noexcept nogil:
    cdef uint64_t value = swap64(<uint64_t>number)
    memcpy(p, &value, 8)


cdef inline void put_float64(uint8_t *p, double number) noexcept nogil:
    cdef uint64_t bits
    memcpy(&bits, &number, 8)
    bits = swap64(bits)
    memcpy(p, &bits, 8)


# Read an unsigned number of at most 32 bits and move `at` behind it. Return -1 if it has more bits, or bytes are missing.
cdef inline int64_t get_uvarint(const uint8_t **at, const uint8_t *stop) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < stop and shift < 35:
        byte = at[0][0]
        at[0] += 1
        value |= <uint64_t>(byte & 127) << shift
        shift += 7
        if byte < 128:
            return <int64_t>value if value <= 0xFFFFFFFFu else -1
    return -1


# Read a signed number of at most 64 bits and move `at` behind it. Return 0; -1 if it has more bits, or bytes are missing.
cdef inline int get_varlong(const uint8_t **at, const uint8_t *stop, int64_t *number) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef uint64_t value
    if stop - p > 1 and (p[0] & p[1]) < 128:  # the usual ones have one byte or two
        value = p[0]
        if value < 128:
            at[0] = p + 1
        else:
            value = (value & 127) | (<uint64_t>p[1] << 7)
            at[0] = p + 2
        number[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
        return 0
    return get_long_varlong(at, stop, number)


cdef inline int get_long_varlong(const uint8_t **at, const uint8_t *stop, int64_t *number) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < stop and shift < 70:
        byte = at[0][0]
        at[0] += 1
        if shift == 63 and byte > 1:
            return -1
        value |= <uint64_t>(byte & 127) << shift
        shift += 7
        if byte < 128:
            number[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return 0
    return -1


# Read a signed number of at most 32 bits, as get_varlong does.
cdef inline int get_varint(const uint8_t **at, const uint8_t *stop, int64_t *number) noexcept nogil:
    if get_varlong(at, stop, number) < 0 or number[0] != <int32_t>number[0]:
        return -1
    return 0


cdef inline Py_ssize_t uvarint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t *put_uvarint(uint8_t *p, uint64_t value) noexcept nogil:
    """Return the address behind the number."""
    while value > 127:
        p[0] = <uint8_t>(value | 128)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
