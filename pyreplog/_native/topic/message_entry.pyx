"""Entries with messages, checked: every length in an entry is compared with its bounds before it is used.

The reader of the records has verified the records, not their values. FORMAT.md, "Messages", has the bytes.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free

from pyreplog._native.layout cimport (
    FORM_KEY, FORM_LONG, KIND_BATCH, LongHeader, MESSAGES_CODEC_MAX, MESSAGES_DELIVER_AT, MESSAGES_EVENT_TIMES,
    MESSAGES_FLAGS, MESSAGES_HEADER, MESSAGES_KEYS, MESSAGES_PROPERTIES, MESSAGES_RAW_MAX, MESSAGES_SEQUENCES,
    MESSAGES_VERSION, MessagesHeader, RecordHead,
)
from pyreplog._native.log.record cimport event_time_of, key_of, make_record, span, value_length_of, value_of
from pyreplog.errors import InvalidEntryError, ReplogError

cdef int64_t RELEASE_GIL_FROM = 1 << 16   # messages
cdef int64_t IN_RECORD = -1   # takes the place of an offset in the value


cdef enum FaultKind:
    LONG_FORM, LEDGER, ENTRY, ENTRY_MAX, MESSAGES_BEFORE, MESSAGES, BYTES, HEADER, VERSION, CODEC, FLAGS, PRODUCER, RAW_SIZE, COUNT
    BODY, LOWEST_SEQUENCE, FIRST_SEQUENCE, LAST_SEQUENCE, SEQUENCE, COLUMNS, ENDS, NO_KEY_END, PROPERTY, TOTAL

cdef tuple EXPECTED = (
    "an entry of a ledger (form {:#x})",
    "an entry of ledger {}",
    "an entry behind {}",
    "entry {} at most",
    "at most {} messages in the ledger",
    "{} messages in the ledger, this entry included",
    "{} value bytes in the ledger, this entry included, and a topic's that fit into 64 bits",
    "a header of {} bytes",
    "version {}",
    "a codec of 0 to {}",
    "no flags but {:#x}",
    "a producer's name of at most {} bytes",
    "a body of at most {} bytes",
    "1 to {} messages",
    "a body of {} bytes",
    "a first sequence number of {} or more",
    "{} as the first sequence number",
    "{} as the last sequence number",
    "a sequence number above {}",
    "columns of at most {} bytes",
    "ends that ascend up to {}",
    "the end before, {}, of a message without a key",
    "a property within {} bytes",
    "columns, keys, properties and values of {} bytes in all",
)

ctypedef struct Fault:
    int rule
    int64_t at                    # offset in the entry's value with the body decompressed; or IN_RECORD
    int64_t expected
    int64_t actual


cdef int fail(Fault *fault, int rule, int64_t at, int64_t expected, int64_t actual) noexcept nogil:
    fault.rule, fault.at, fault.expected, fault.actual = rule, at, expected, actual
    return -1


cdef object refusal(const uint8_t *record, int64_t at, str expected, object actual):
    cdef const LongHeader *header = <const LongHeader *>record
    cdef bint is_long = header.head.form & FORM_LONG
    ids = f"ledger {header.ledger}, entry {header.entry}" if is_long else "a record of a log without ledgers"
    where = "header of its record" if at == IN_RECORD else f"byte {at} of its messages"
    return InvalidEntryError(f"{ids}, {where}: expected {expected}, found {actual}")


# ---- header ----------------------------------------------------------------------------------------------------

cdef int read_single(MessageEntry *entry) noexcept nogil:
    """Read an entry of another kind, which is one message: its value."""
    cdef const RecordHead *head = <const RecordHead *>entry.record
    entry.count, entry.first_sequence, entry.last_sequence = 1, -1, -1
    entry.own_value_end = entry.size
    entry.own_key_end = head.key_length if head.form & FORM_KEY else NO_KEY
    entry.own_event_time = event_time_of(entry.record)
    entry.value_ends = <const uint8_t *>&entry.own_value_end
    entry.key_ends = <const uint8_t *>&entry.own_key_end
    entry.event_times = <const uint8_t *>&entry.own_event_time
    entry.keys, entry.values = key_of(entry.record), value_of(entry.record)
    return 0


cdef int read_header(MessageEntry *entry, Fault *fault) noexcept nogil:
    cdef MessagesHeader head
    cdef const uint8_t *value = value_of(entry.record)
    cdef int64_t last
    if (<const RecordHead *>entry.record).kind != KIND_BATCH:
        return read_single(entry)
    if entry.size < MESSAGES_HEADER:
        return fail(fault, HEADER, 0, MESSAGES_HEADER, entry.size)
    memcpy(&head, value, MESSAGES_HEADER)
    if head.version != MESSAGES_VERSION:
        return fail(fault, VERSION, 0, MESSAGES_VERSION, head.version)
    if head.codec > MESSAGES_CODEC_MAX:
        return fail(fault, CODEC, 1, MESSAGES_CODEC_MAX, head.codec)
    if head.flags & ~MESSAGES_FLAGS:
        return fail(fault, FLAGS, 2, MESSAGES_FLAGS, head.flags)
    entry.body_at = (MESSAGES_HEADER + head.producer_length + 7) & ~7
    if entry.body_at > entry.size:
        return fail(fault, PRODUCER, 4, (entry.size - MESSAGES_HEADER) & ~7, head.producer_length)
    if head.raw_size > MESSAGES_RAW_MAX:
        return fail(fault, RAW_SIZE, 12, MESSAGES_RAW_MAX, head.raw_size)
    if not 1 <= head.count <= head.raw_size // 4:
        return fail(fault, COUNT, 8, head.raw_size // 4, head.count)
    if head.codec == 0 and head.raw_size != entry.size - entry.body_at:
        return fail(fault, BODY, 12, entry.size - entry.body_at, head.raw_size)
    last = head.last_sequence
    if not head.flags & MESSAGES_SEQUENCES:
        last = -1 if head.first_sequence < 0 else head.first_sequence + min(
            INT64_MAX - head.first_sequence, <int64_t>head.count - 1)
    if head.first_sequence < (0 if head.flags & MESSAGES_SEQUENCES else -1):
        return fail(fault, LOWEST_SEQUENCE, 16, 0 if head.flags & MESSAGES_SEQUENCES else -1, head.first_sequence)
    if head.last_sequence != last:
        return fail(fault, LAST_SEQUENCE, 24, last, head.last_sequence)
    entry.count, entry.raw_size, entry.flags, entry.codec = head.count, head.raw_size, head.flags, head.codec
    entry.first_sequence, entry.last_sequence = head.first_sequence, head.last_sequence
    entry.producer, entry.producer_length = value + MESSAGES_HEADER, head.producer_length
    entry.body = value + entry.body_at if head.codec == 0 else NULL
    return 0


# ---- body ------------------------------------------------------------------------------------------------------

cdef inline int64_t aligned(int64_t size) noexcept nogil:
    return (size + 7) & ~7


cdef inline const uint8_t *take_column(const MessageEntry *entry, int flag, int64_t width, int64_t *at) noexcept nogil:
    cdef const uint8_t *column = entry.body + at[0]
    if flag and not entry.flags & flag:
        return NULL
    at[0] += aligned(width * entry.count)
    return column


cdef int64_t check_ends(MessageEntry *entry, const uint8_t *ends, int64_t room, Fault *fault) noexcept nogil:
    """Return the last end of a column if its ends ascend within `room` bytes; otherwise -1."""
    cdef int64_t i
    cdef uint32_t previous = 0, end
    for i in range(entry.count):
        end = load_u32(ends, i)
        if end < previous:
            return fail(fault, ENDS, entry.body_at + (ends - entry.body) + 4 * i, room, end)
        previous = end
    if previous > room:
        return fail(fault, ENDS, entry.body_at + (ends - entry.body) + 4 * (<int64_t>entry.count - 1), room, previous)
    return previous


cdef int64_t check_keys(MessageEntry *entry, int64_t room, Fault *fault) noexcept nogil:
    cdef int64_t i, at
    cdef uint32_t previous = 0, end
    for i in range(entry.count):
        end = load_u32(entry.key_ends, i)
        at = entry.body_at + (entry.key_ends - entry.body) + 4 * i
        if end & ~NO_KEY < previous or end & ~NO_KEY > room:
            return fail(fault, ENDS, at, room, end & ~NO_KEY)
        if end & NO_KEY and end & ~NO_KEY != previous:
            return fail(fault, NO_KEY_END, at, previous, end & ~NO_KEY)
        previous = end & ~NO_KEY
    return previous


cdef int check_sequences(MessageEntry *entry, Fault *fault) noexcept nogil:
    cdef int64_t i, previous = entry.first_sequence, sequence = load_long(entry.sequences, 0)
    if sequence != previous:
        return fail(fault, FIRST_SEQUENCE, 16, sequence, previous)
    for i in range(1, entry.count):
        sequence = load_long(entry.sequences, i)
        if sequence <= previous:
            return fail(fault, SEQUENCE, entry.body_at + (entry.sequences - entry.body) + 8 * i, previous, sequence)
        previous = sequence
    return 0 if sequence == entry.last_sequence else fail(fault, LAST_SEQUENCE, 24, sequence, entry.last_sequence)


cdef int check_properties(MessageEntry *entry, Fault *fault) noexcept nogil:
    """Check that the properties of each message end where its column says."""
    cdef int64_t i, at = 0, end, size
    for i in range(entry.count):
        end = load_u32(entry.property_ends, i)
        while at < end:
            size = property_size(entry.properties + at, end - at)
            if size > end - at:
                return fail(fault, PROPERTY, entry.body_at + (entry.properties - entry.body) + at, end - at, size)
            at += size
    return 0


cdef inline int64_t property_size(const uint8_t *p, int64_t room) noexcept nogil:
    """Return the bytes of the property at p, of which `room` may be read: u16 length of name, u32 of value, both."""
    cdef uint16_t name
    if room < PROPERTY_HEADER:
        return PROPERTY_HEADER
    memcpy(&name, p, 2)
    return PROPERTY_HEADER + <int64_t>name + load_u32(p + 2, 0)


cdef int read_body(MessageEntry *entry, Fault *fault) noexcept nogil:
    cdef int64_t at = 0, room, keys = 0, properties = 0, values
    entry.value_ends = take_column(entry, 0, 4, &at)
    entry.key_ends = take_column(entry, MESSAGES_KEYS, 4, &at)
    entry.event_times = take_column(entry, MESSAGES_EVENT_TIMES, 8, &at)
    entry.sequences = take_column(entry, MESSAGES_SEQUENCES, 8, &at)
    entry.deliver_at = take_column(entry, MESSAGES_DELIVER_AT, 8, &at)
    entry.property_ends = take_column(entry, MESSAGES_PROPERTIES, 4, &at)
    room = <int64_t>entry.raw_size - at
    if room < 0:
        return fail(fault, COLUMNS, entry.body_at, entry.raw_size, at)
    if entry.key_ends != NULL:
        keys = check_keys(entry, room, fault)
    if entry.property_ends != NULL and keys >= 0:
        properties = check_ends(entry, entry.property_ends, room - keys, fault)
    if keys < 0 or properties < 0:
        return -1
    values = check_ends(entry, entry.value_ends, room - keys - properties, fault)
    if values < 0:
        return -1
    if keys + properties + values != room:
        return fail(fault, TOTAL, entry.body_at, entry.raw_size, at + keys + properties + values)
    entry.keys = entry.body + at
    entry.properties = entry.keys + keys
    entry.values = entry.properties + properties
    if entry.sequences != NULL and check_sequences(entry, fault) < 0:
        return -1
    return 0 if entry.property_ends == NULL else check_properties(entry, fault)


# ---- the table -------------------------------------------------------------------------------------------------

@cython.final
cdef class MessageTable:
    """The entries that several batches of messages share, and the objects that hold their bytes."""

    def __init__(self):
        raise TypeError("tables are made by decode_messages")

    def __dealloc__(self):
        free(self.entries)

    cdef int unpack(self, MessageEntry *entry, decompress) except -1:
        """Decompress the body of an entry."""
        cdef const uint8_t *packed = value_of(entry.record) + entry.body_at
        cdef bytes body
        if decompress is None:
            raise refusal(entry.record, 1, "a body that is not compressed", f"codec {entry.codec}")
        try:
            unpacked = decompress(entry.codec, span(self.batch, packed, entry.size - entry.body_at), entry.raw_size)
            body = unpacked if type(unpacked) is bytes else bytes(memoryview(unpacked))
        except ReplogError:
            raise
        except Exception as error:
            raise refusal(entry.record, entry.body_at, f"a body of codec {entry.codec}",
                          f"{type(error).__name__}: {error}") from error
        if PyBytes_GET_SIZE(body) != entry.raw_size:
            raise refusal(entry.record, 12, f"a body of {entry.raw_size} bytes", PyBytes_GET_SIZE(body))
        self.bodies.append(body)
        entry.body = <const uint8_t *>PyBytes_AS_STRING(body)
        return 0


cdef int read_totals(MessageTable table, Py_ssize_t at, int64_t offset, Fault *fault) noexcept nogil:
    """Compute the position of an entry from the running totals of its ledger."""
    cdef MessageEntry *entry = &table.entries[at]
    cdef const LongHeader *header = <const LongHeader *>entry.record
    cdef const LongHeader *before = NULL
    cdef int64_t messages = <int64_t>header.ledger_messages, size = <int64_t>header.ledger_bytes, total
    cdef bint follows = header.entry == 0
    if at:
        before = <const LongHeader *>table.entries[at - 1].record
        follows = header.entry == before.entry + 1
        if header.entry <= before.entry:
            return fail(fault, ENTRY, IN_RECORD, before.entry, header.entry)
    if header.ledger != table.ledger:
        return fail(fault, LEDGER, IN_RECORD, table.ledger, header.ledger)
    if header.entry >= INT64_MAX - table.entries_start:
        return fail(fault, ENTRY_MAX, IN_RECORD, INT64_MAX - table.entries_start - 1, header.entry)
    if not 0 <= messages <= INT64_MAX - offset:
        return fail(fault, MESSAGES_BEFORE, IN_RECORD, INT64_MAX - offset, messages)
    total = <int64_t>entry.count + (<int64_t>before.ledger_messages if at else 0)
    if messages < total or messages != total and follows:
        return fail(fault, MESSAGES, IN_RECORD, total, messages)
    total = <int64_t>entry.size + (<int64_t>before.ledger_bytes if at else 0)
    if not total <= size <= INT64_MAX - table.bytes_start or follows and size != total:
        return fail(fault, BYTES, IN_RECORD, total, size)
    entry.first = offset + messages - entry.count
    table.messages += entry.count
    table.end = offset + messages
    return 0


cdef Py_ssize_t read_headers(MessageTable table, int64_t offset, int64_t raw_max, Py_ssize_t *packed,
                             Fault *fault) noexcept nogil:
    """Return the number of good entries, and set that of compressed ones. The table ends before the entry, not the first
    one, with which compressed bodies would have more than `raw_max` bytes."""
    cdef Py_ssize_t i
    cdef int64_t raw = 0
    cdef MessageEntry *entry
    for i in range(table.count):
        entry = &table.entries[i]
        entry.record = table.batch.map + table.batch.offsets[i]
        entry.size = <uint32_t>value_length_of(entry.record)
        if not (<const RecordHead *>entry.record).form & FORM_LONG:
            fail(fault, LONG_FORM, IN_RECORD, FORM_LONG, (<const RecordHead *>entry.record).form)
            return i
        if i == 0:
            table.ledger = (<const LongHeader *>entry.record).ledger
        if read_header(entry, fault) < 0:
            return i
        raw += entry.raw_size if entry.codec else 0
        if i and raw > raw_max:
            table.count = i
            return i
        if read_totals(table, i, offset, fault) < 0:
            return i
        packed[0] += entry.codec != 0
    return table.count


cdef Py_ssize_t read_bodies(MessageTable table, Fault *fault) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(table.count):
        if table.entries[i].body != NULL and read_body(&table.entries[i], fault) < 0:
            return i
    return table.count


cdef MessageTable read_table(RecordBatch batch, int64_t offset, int64_t entries, int64_t size, decompress,
                             int64_t raw_max):
    """Return the entries of a batch of one ledger, before which the topic has these totals."""
    cdef MessageTable table = MessageTable.__new__(MessageTable)
    cdef Fault fault
    cdef Py_ssize_t i, packed = 0, good
    table.batch, table.bodies, table.ledger, table.end = batch, [], -1, offset
    table.entries_start, table.bytes_start, table.partition = entries, size, -1
    table.entries = <MessageEntry *>calloc(batch.count + 1, sizeof(MessageEntry))
    if table.entries == NULL:
        raise MemoryError
    table.count = batch.count
    good = read_headers(table, offset, raw_max, &packed, &fault)
    if good < table.count:
        raise refused(&table.entries[good], &fault)
    for i in range(table.count if packed else 0):
        if table.entries[i].codec:
            table.unpack(&table.entries[i], decompress)
    if table.messages >= RELEASE_GIL_FROM:
        with nogil:
            good = read_bodies(table, &fault)
    else:
        good = read_bodies(table, &fault)
    if good < table.count:
        raise refused(&table.entries[good], &fault)
    return table


cdef object refused(const MessageEntry *entry, const Fault *fault):
    return refusal(entry.record, fault.at, EXPECTED[fault.rule].format(fault.expected), fault.actual)


# ---- properties ------------------------------------------------------------------------------------------------

cdef dict properties_of(const MessageEntry *entry, int64_t i):
    """Return the properties of one message, whose bytes were checked; invalid UTF-8 in names is replaced."""
    cdef int64_t at, end
    cdef uint16_t name
    cdef uint32_t value
    cdef const uint8_t *p
    cdef dict out = {}
    if entry.body == NULL:
        return make_record(None, entry.record, 0, 0).properties
    if entry.property_ends == NULL:
        return out
    at = load_u32(entry.property_ends, i - 1) if i else 0
    end = load_u32(entry.property_ends, i)
    while at < end:
        p = entry.properties + at
        memcpy(&name, p, 2)
        value = load_u32(p + 2, 0)
        text = PyBytes_FromStringAndSize(<const char *>p + PROPERTY_HEADER, name).decode("utf-8", "replace")
        out[text] = PyBytes_FromStringAndSize(<const char *>p + PROPERTY_HEADER + name, value)
        at += PROPERTY_HEADER + name + <int64_t>value
    return out
