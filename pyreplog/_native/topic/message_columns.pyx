"""Fills columns of messages, with one pass over their places for each."""

from libc.stdint cimport INT64_MIN
from libc.string cimport memcpy

from pyreplog._native.layout cimport LongHeader, RecordHead
from pyreplog._native.topic.message_entry cimport (
    deliver_at, event_time_at, key_size, key_start, origin_of, sequence_at, value_size, value_start,
)
from pyreplog._native.topic.murmur cimport murmur


cdef void gather(const MessageEntry *entries, const Place *places, Py_ssize_t count, int column,
                 int64_t *out) noexcept nogil:
    cdef Py_ssize_t i
    if column == COLUMN_OFFSET:
        for i in range(count):
            out[i] = entries[places[i].entry].first + places[i].number
    elif column == COLUMN_PUBLISH_TIME:
        for i in range(count):
            out[i] = (<const RecordHead *>entries[places[i].entry].record).time
    elif column == COLUMN_EVENT_TIME:
        for i in range(count):
            out[i] = event_time_at(&entries[places[i].entry], places[i].number)
    elif column == COLUMN_DELIVER_AT:
        for i in range(count):
            out[i] = deliver_at(&entries[places[i].entry], places[i].number)
    elif column == COLUMN_SEQUENCE:
        for i in range(count):
            out[i] = sequence_at(&entries[places[i].entry], places[i].number)
    elif column == COLUMN_SIZE:
        for i in range(count):
            out[i] = value_size(&entries[places[i].entry], places[i].number)
    else:
        for i in range(count):
            out[i] = key_size(&entries[places[i].entry], places[i].number)


cdef void gather_hashes(const MessageEntry *entries, const Place *places, Py_ssize_t count,
                        uint32_t *out) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t size
    cdef const MessageEntry *entry
    for i in range(count):
        entry = &entries[places[i].entry]
        size = key_size(entry, places[i].number)
        out[i] = murmur(entry.keys + key_start(entry, places[i].number), size) if size > 0 else 0


cdef int64_t origin_number(const MessageEntry *entry, int at, int64_t none) noexcept nogil:
    """Return the number at a position of an entry's origin attribute; `none` if it has no such attribute."""
    cdef int64_t length, number
    cdef const uint8_t *origin = origin_of(entry.record, &length)
    if origin == NULL:
        return none
    memcpy(&number, origin + at, 8)
    return number


cdef void gather_entries(MessageTable table, int column, int64_t *out) noexcept nogil:
    cdef Py_ssize_t i
    cdef const MessageEntry *entry
    cdef const LongHeader *header
    for i in range(table.count):
        entry = &table.entries[i]
        header = <const LongHeader *>entry.record
        if column == ENTRY_ID:
            out[i] = header.entry
        elif column == ENTRY_FIRST:
            out[i] = entry.first
        elif column == ENTRY_COUNT:
            out[i] = entry.count
        elif column == ENTRY_SIZE:
            out[i] = entry.size
        elif column == ENTRY_SEQUENCE:
            out[i] = entry.last_sequence
        elif column == ENTRIES_BEFORE:
            out[i] = entries_before(table, entry)
        elif column == ENTRY_ORIGIN_KEY:
            out[i] = origin_number(entry, 0, 0)
        elif column == ENTRY_ORIGIN_FIRST:
            out[i] = origin_number(entry, 8, -1)
        elif column == ENTRY_ORIGIN_PUBLISH_TIME:
            out[i] = origin_number(entry, 16, INT64_MIN)
        else:
            out[i] = bytes_before(table, entry)


cdef int64_t measure(const MessageEntry *entries, const Place *places, Py_ssize_t count, bint keys,
                     int64_t *starts) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t at = 0
    cdef const MessageEntry *entry
    for i in range(count):
        entry = &entries[places[i].entry]
        starts[i] = at
        at += max(key_size(entry, places[i].number), <int64_t>0) if keys else (
            value_size(entry, places[i].number))
    starts[count] = at
    return at


cdef void pack(const MessageEntry *entries, const Place *places, Py_ssize_t count, bint keys, const int64_t *starts,
               uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i = 0, stop
    cdef const Place *place
    cdef const MessageEntry *entry
    cdef const uint8_t *source
    while i < count:
        place = &places[i]
        stop = i + 1
        while stop < count and places[stop].entry == place.entry and (
                <Py_ssize_t>places[stop].number == <Py_ssize_t>place.number + stop - i):
            stop += 1
        entry = &entries[place.entry]
        source = entry.keys + key_start(entry, place.number) if keys else (
            entry.values + value_start(entry, place.number))
        if starts[stop] > starts[i]:
            memcpy(out + starts[i], source, starts[stop] - starts[i])
        i = stop
