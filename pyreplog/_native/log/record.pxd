# Records, the unit that all layers store, send and scan. layout.h and FORMAT.md have their layout.
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport (
    ATTRIBUTES_MAX, COUNTED_HEADER, CRC_FROM, CountedHeader, FORM_ATTRIBUTES, FORM_COUNT, FORM_KEY, FORM_LONG,
    FORMAT_VERSION, KIND_BATCH, KIND_BLANK, LAG_NONE, LONG_HEADER, LongHeader, RecordHead, SHORT_HEADER, ShortHeader,
    crc32c, crc32c_copy,
)


# The faults of a record, as negative numbers; `status.describe` has their texts.
cdef enum Status:
    RECORD_ABSENT = -1    # length 0: no record was ever written here
    RECORD_LENGTH = -2    # the length is below that of the header, or exceeds the space
    RECORD_STAMP = -3     # the record belongs to another log, position or epoch
    RECORD_CRC = -4
    RECORD_KIND = -5
    RECORD_FORM = -6      # unknown version or flags
    RECORD_PARTS = -7     # key and attributes are longer than the record
    RECORD_ENTRY = -8     # the entry number does not follow the one before
    RECORD_BLANK = -9     # no fault: a blank, which ends the segment
    RECORD_IDS = -10      # an id is out of range, or not one of those asked for


# A record to be encoded. The pointers are borrowed, and valid while the caller holds the objects.
ctypedef struct Part:
    const uint8_t *key
    const uint8_t *attributes
    const uint8_t *value
    Py_ssize_t key_length         # -1: no key
    Py_ssize_t attributes_length
    Py_ssize_t value_length
    int64_t event_time            # INT64_MIN: none
    uint8_t kind
    uint32_t count                # entry numbers it takes, of a batch in the short form


cdef inline int64_t stride_of(int64_t length) noexcept nogil:
    return (length + 7) & ~7


cdef inline int64_t part_length(const Part *part, int64_t header) noexcept nogil:
    """Return the length of the record without padding."""
    return (header + (part.key_length if part.key_length > 0 else 0)
            + (part.attributes_length + 2 if part.attributes_length else 0) + part.value_length)


cdef inline int64_t short_length(const Part *part) noexcept nogil:
    """Return the length of the record in the short form, without padding."""
    return part_length(part, COUNTED_HEADER if part.kind == KIND_BATCH else SHORT_HEADER)


cdef inline void write_head(uint8_t *dst, uint32_t length, uint32_t stamp, uint8_t kind, uint8_t form,
                            uint16_t key_length, int64_t time) noexcept nogil:
    cdef RecordHead *head = <RecordHead *>dst
    head.length = length
    head.stamp = stamp
    head.kind = kind
    head.form = form | <uint8_t>FORMAT_VERSION
    head.key_length = key_length
    head.time = time


cdef inline void write_body(uint8_t *dst, int64_t header, uint32_t length, const Part *part) noexcept nogil:
    """Copy attributes, key and value behind a finished header, pad, and set the CRC, in one pass over the bytes."""
    cdef uint32_t crc = crc32c(length, dst + CRC_FROM, header - CRC_FROM)
    cdef uint8_t *p = dst + header
    cdef uint16_t attributes_length
    if part.attributes_length:
        attributes_length = <uint16_t>part.attributes_length
        crc = crc32c_copy(crc, p, <const uint8_t *>&attributes_length, 2, 0)
        crc = crc32c_copy(crc, p + 2, part.attributes, part.attributes_length, 0)
        p += 2 + part.attributes_length
    if part.key_length > 0:
        crc = crc32c_copy(crc, p, part.key, part.key_length, 0)
        p += part.key_length
    crc = crc32c_copy(crc, p, part.value, part.value_length, stride_of(length) - length)
    (<RecordHead *>dst).crc = crc


cdef inline void encode_short(uint8_t *dst, uint32_t length, uint32_t stamp, uint8_t kind, int64_t time,
                              uint32_t entry_delta, uint32_t synced_lag, const Part *part) noexcept nogil:
    cdef uint8_t form = ((FORM_KEY if part.key_length >= 0 else 0)
                         | (FORM_ATTRIBUTES if part.attributes_length else 0))
    write_head(dst, length, stamp, kind, form, <uint16_t>(part.key_length if part.key_length > 0 else 0), time)
    (<ShortHeader *>dst).entry_delta = entry_delta
    (<ShortHeader *>dst).synced_lag = synced_lag
    write_body(dst, SHORT_HEADER, length, part)


cdef inline void encode_counted(uint8_t *dst, uint32_t length, uint32_t stamp, int64_t time, uint32_t entry_delta,
                                uint32_t synced_lag, const Part *part) noexcept nogil:
    """Encode a batch record with a count. entry_delta: of its last entry."""
    cdef uint8_t form = (FORM_COUNT | (FORM_KEY if part.key_length >= 0 else 0)
                         | (FORM_ATTRIBUTES if part.attributes_length else 0))
    write_head(dst, length, stamp, KIND_BATCH, form, <uint16_t>(part.key_length if part.key_length > 0 else 0), time)
    (<ShortHeader *>dst).entry_delta = entry_delta
    (<ShortHeader *>dst).synced_lag = synced_lag
    (<CountedHeader *>dst).count = part.count
    (<CountedHeader *>dst).reserved = 0
    write_body(dst, COUNTED_HEADER, length, part)


cdef inline void encode_blank(uint8_t *dst, uint32_t length, uint32_t stamp, uint32_t entry_delta,
                              uint32_t synced_lag, int64_t time) noexcept nogil:
    """Encode a blank, which fills the rest of its segment. Only its header is written, and covered by the CRC."""
    write_head(dst, length, stamp, KIND_BLANK, 0, 0, time)
    (<ShortHeader *>dst).entry_delta = entry_delta
    (<ShortHeader *>dst).synced_lag = synced_lag
    (<RecordHead *>dst).crc = crc32c(length, dst + CRC_FROM, SHORT_HEADER - CRC_FROM)


# The bytes kind, form and key length of a data record of the short form without key and attributes. Most records are
# such.
cdef enum:
    STAMP_AT = 8
    PLAIN = 0x00000101  # KIND_DATA | FORMAT_VERSION << 8

cdef inline uint32_t load_word(const uint8_t *p) noexcept nogil:
    """Return the 32 bits at any address."""
    cdef uint32_t word
    memcpy(&word, p, 4)
    return word


cdef inline uint64_t load_words(const uint8_t *p) noexcept nogil:
    """Return the 64 bits at any address."""
    cdef uint64_t words
    memcpy(&words, p, 8)
    return words


cdef inline bint is_plain_record(const uint8_t *p) noexcept nogil:
    return load_word(p + CRC_FROM) == PLAIN


cdef inline int64_t header_of(const uint8_t *p) noexcept nogil:
    if (<const RecordHead *>p).form & FORM_LONG:
        return LONG_HEADER
    return COUNTED_HEADER if (<const RecordHead *>p).form & FORM_COUNT else SHORT_HEADER


cdef inline int64_t count_of(const uint8_t *p) noexcept nogil:
    """Return how many entry numbers a record takes whose form was checked."""
    if (<const RecordHead *>p).kind > KIND_BATCH:
        return 0
    return (<const CountedHeader *>p).count if (<const RecordHead *>p).form & FORM_COUNT else 1


cdef inline int64_t first_delta_of(const uint8_t *p) noexcept nogil:
    """Return the entry delta of the first entry of a short record whose form was checked; of a record without a
    number, that of the next one."""
    cdef int64_t count = count_of(p)
    return <int64_t>(<const ShortHeader *>p).entry_delta - (count - 1 if count else 0)


cdef inline int64_t attributes_of(const uint8_t *p, const uint8_t **start) noexcept nogil:
    """Return the length of the attributes of a verified record, and set `start` to their first byte."""
    cdef uint16_t length
    cdef int64_t header = header_of(p)
    if not (<const RecordHead *>p).form & FORM_ATTRIBUTES:
        start[0] = p + header
        return 0
    memcpy(&length, p + header, 2)
    start[0] = p + header + 2
    return length


cdef inline const uint8_t *key_of(const uint8_t *p) noexcept nogil:
    cdef const uint8_t *attributes
    cdef int64_t length = attributes_of(p, &attributes)
    return attributes + length


cdef inline const uint8_t *value_of(const uint8_t *p) noexcept nogil:
    if is_plain_record(p):
        return p + SHORT_HEADER
    return key_of(p) + (<const RecordHead *>p).key_length


cdef inline int64_t value_length_of(const uint8_t *p) noexcept nogil:
    return (<const RecordHead *>p).length - (value_of(p) - p)


cdef inline bint continues(const uint8_t *p, int64_t entries) noexcept nogil:
    """Whether the entries of a short record whose form was checked follow on the first `entries` of its segment, and
    fit into it."""
    return first_delta_of(p) == entries and entries + count_of(p) <= <int64_t>UINT32_MAX


# Return the stride of the record at p if it is intact, else a Status. `space` bytes at p must be readable.
cdef int64_t check_record(const uint8_t *p, int64_t space, uint32_t stamp) noexcept nogil

# Return `stride` if kind, form and lengths of the parts of a record are valid, else a Status. Does not check the CRC.
cdef int64_t check_form(const uint8_t *p, int64_t stride) noexcept nogil

# Return the event time of a verified record, or INT64_MIN if it has none.
cdef int64_t event_time_of(const uint8_t *p) noexcept nogil

# Verify the records that begin in map[start, until) and end at or before `stop`. Store their offsets and value sizes,
# and return their number. `next_offset` is set to the offset behind the last of them, and `fault` to the Status that
# ended the walk (0: it reached `limit`, `below` or `until`). The entry deltas of records of the short form must be
# consecutive, from `expected` on (-1: any); `expected` is set to the delta that must follow. `below`: end before the
# first record whose entries all have this delta or a greater one.
cdef int64_t scan_records(const uint8_t *map, int64_t start, int64_t until, int64_t stop, uint32_t stamp,
                          uint32_t *offsets, uint32_t *sizes, int64_t limit, int64_t below, bint numbered_only,
                          int64_t *expected, int64_t *next_offset, int64_t *fault) noexcept nogil

# Return the entry delta of the first entry of the record at p, if it has a count and the entry `expected`, else
# `expected`. Not verified.
cdef int64_t first_delta_with(const uint8_t *p, int64_t space, int64_t expected) noexcept nogil


cdef class Record:
    cdef object owner             # keeps the bytes alive
    cdef const uint8_t *p
    cdef int64_t origin           # address + origin = position in the log
    cdef int64_t first_entry      # entry number of delta 0
    cdef int64_t number(self) noexcept
    cdef bytes copied_value(self)


cdef object span(object owner, const uint8_t *p, Py_ssize_t length)
cdef Record make_record(object owner, const uint8_t *p, int64_t first_entry, int64_t position)
