# Entries that hold messages, as tables of borrowed pointers.
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport NO_KEY, ORIGIN_HEAD, TAG_ORIGIN
from pyreplog._native.log.batch cimport RecordBatch
from pyreplog._native.log.record cimport attributes_of


cdef enum:
    PROPERTY_HEADER = 6           # bytes before a property: u16 length of its name, u32 length of its value


# An entry. A column that the entry does not have is NULL. Columns are not aligned; the functions below read them.
ctypedef struct MessageEntry:
    const uint8_t *record
    const uint8_t *producer
    const uint8_t *body           # of a batch entry, decompressed
    const uint8_t *value_ends     # u32
    const uint8_t *key_ends       # u32, with NO_KEY
    const uint8_t *event_times    # i64
    const uint8_t *sequences      # i64
    const uint8_t *deliver_at     # i64
    const uint8_t *property_ends  # u32
    const uint8_t *keys
    const uint8_t *properties
    const uint8_t *values
    int64_t first                 # offset of its first message in the topic
    int64_t first_sequence        # -1: none
    int64_t last_sequence
    int64_t own_event_time        # the columns of an entry with a single message point to these three fields
    uint32_t own_value_end
    uint32_t own_key_end
    uint32_t size                 # bytes of the record's value
    uint32_t count
    uint32_t raw_size
    uint32_t body_at              # offset of the body in the value
    uint16_t flags
    uint16_t producer_length
    uint8_t codec


cdef class MessageTable:
    cdef MessageEntry *entries
    cdef Py_ssize_t count
    cdef RecordBatch batch        # holds the bytes of the entries
    cdef list bodies              # decompressed bodies
    cdef int64_t ledger           # -1: there is no entry
    cdef int64_t messages         # number of messages in all entries
    cdef int64_t end              # topic offset behind the last entry
    cdef int64_t entries_start    # entries and value bytes of the topic before the ledger
    cdef int64_t bytes_start
    cdef int32_t partition        # number of the partition; -1: not known
    cdef int unpack(self, MessageEntry *entry, decompress) except -1


cdef MessageTable read_table(RecordBatch batch, int64_t offset, int64_t entries, int64_t size, decompress, int64_t raw_max)
cdef dict properties_of(const MessageEntry *entry, int64_t i)


cdef inline const uint8_t *origin_of(const uint8_t *record, int64_t *length) noexcept nogil:
    """Return the value of a record's origin attribute, and its length; NULL: it has none."""
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef uint16_t size
    cdef int64_t total = attributes_of(record, &at)
    end = at + total
    while end - at >= 3:
        memcpy(&size, at + 1, 2)
        if size > end - at - 3:
            break
        if at[0] == TAG_ORIGIN and size >= ORIGIN_HEAD:
            length[0] = size
            return at + 3
        at += 3 + size
    return NULL


cdef inline uint32_t load_u32(const uint8_t *column, int64_t i) noexcept nogil:
    cdef uint32_t item
    memcpy(&item, column + 4 * i, 4)
    return item


cdef inline int64_t load_long(const uint8_t *column, int64_t i) noexcept nogil:
    cdef int64_t item
    memcpy(&item, column + 8 * i, 8)
    return item


cdef inline int64_t value_start(const MessageEntry *entry, int64_t i) noexcept nogil:
    return load_u32(entry.value_ends, i - 1) if i else 0


cdef inline int64_t value_size(const MessageEntry *entry, int64_t i) noexcept nogil:
    return load_u32(entry.value_ends, i) - value_start(entry, i)


cdef inline int64_t key_start(const MessageEntry *entry, int64_t i) noexcept nogil:
    return load_u32(entry.key_ends, i - 1) & ~NO_KEY if i and entry.key_ends != NULL else 0


cdef inline int64_t key_size(const MessageEntry *entry, int64_t i) noexcept nogil:
    """Return the size of a key; -1: the message has no key."""
    cdef uint32_t end
    if entry.key_ends == NULL:
        return -1
    end = load_u32(entry.key_ends, i)
    return -1 if end & NO_KEY else <int64_t>end - key_start(entry, i)


cdef inline int64_t event_time_at(const MessageEntry *entry, int64_t i) noexcept nogil:
    return INT64_MIN if entry.event_times == NULL else load_long(entry.event_times, i)


cdef inline int64_t deliver_at(const MessageEntry *entry, int64_t i) noexcept nogil:
    return 0 if entry.deliver_at == NULL else load_long(entry.deliver_at, i)


cdef inline int64_t sequence_at(const MessageEntry *entry, int64_t i) noexcept nogil:
    if entry.sequences != NULL:
        return load_long(entry.sequences, i)
    return -1 if entry.first_sequence < 0 else entry.first_sequence + i
