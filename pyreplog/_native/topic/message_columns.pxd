# Columns of messages.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.layout cimport LongHeader
from pyreplog._native.topic.message_entry cimport MessageEntry, MessageTable


# The place of a message: the number of its entry in the table, and its number in the entry.
ctypedef struct Place:
    uint32_t entry
    uint32_t number


cdef enum Column:
    COLUMN_OFFSET, COLUMN_PUBLISH_TIME, COLUMN_EVENT_TIME, COLUMN_DELIVER_AT, COLUMN_SEQUENCE, COLUMN_SIZE
    COLUMN_KEY_SIZE, COLUMN_ENTRY_INDEX, COLUMN_KEY_HASH
    ENTRY_ID, ENTRY_FIRST, ENTRY_COUNT, ENTRY_SIZE, ENTRY_SEQUENCE, ENTRIES_BEFORE, BYTES_BEFORE
    ENTRY_ORIGIN_KEY, ENTRY_ORIGIN_FIRST, ENTRY_ORIGIN_PUBLISH_TIME


# Entries, and bytes of values, of the topic before an entry.
cdef inline int64_t entries_before(MessageTable table, const MessageEntry *entry) noexcept nogil:
    return table.entries_start + (<const LongHeader *>entry.record).entry


cdef inline int64_t bytes_before(MessageTable table, const MessageEntry *entry) noexcept nogil:
    return table.bytes_start + <int64_t>(<const LongHeader *>entry.record).ledger_bytes - entry.size


# Fill an int64 column of the messages at these places.
cdef void gather(const MessageEntry *entries, const Place *places, Py_ssize_t count, int column,
                 int64_t *out) noexcept nogil

cdef void gather_hashes(const MessageEntry *entries, const Place *places, Py_ssize_t count,
                        uint32_t *out) noexcept nogil

# Fill an int64 column of the entries.
cdef void gather_entries(MessageTable table, int column, int64_t *out) noexcept nogil

# Compute the offset of each value (or key) in a buffer that holds all of them end to end. Return the size of the
# buffer.
cdef int64_t measure(const MessageEntry *entries, const Place *places, Py_ssize_t count, bint keys,
                     int64_t *starts) noexcept nogil

# Copy values (or keys) to these offsets. Adjacent messages of an entry are copied in one step.
cdef void pack(const MessageEntry *entries, const Place *places, Py_ssize_t count, bint keys, const int64_t *starts,
               uint8_t *out) noexcept nogil
