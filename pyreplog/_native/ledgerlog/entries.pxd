# What encoded entries are, for `entries` and for the log that takes them.
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.layout cimport FORM_LONG, KIND_CONTROL, LongHeader
from pyreplog._native.log.record cimport RECORD_FORM, RECORD_IDS


cdef extern from *:
    """
    /* Ledger ids are below this; beside them lie the control records. */
    #define REPLOG_LEDGERS (INT64_C(1) << 62)
    """
    const int64_t LEDGERS "REPLOG_LEDGERS"


cdef inline int64_t index_ledger(const uint8_t *p) noexcept nogil:
    """The ledger under which a record is indexed."""
    cdef const LongHeader *header = <const LongHeader *>p
    return header.ledger + LEDGERS if header.head.kind == KIND_CONTROL else header.ledger


cdef inline int64_t check_ids(const uint8_t *p, int64_t stride) noexcept nogil:
    """`stride` when an otherwise intact record is of the long form and its ids are possible, else a status."""
    cdef const LongHeader *header = <const LongHeader *>p
    if not header.head.form & FORM_LONG:
        return RECORD_FORM
    if not 0 <= header.ledger < LEDGERS or not 0 <= header.entry < INT64_MAX or header.lac < -1:
        return RECORD_IDS
    return stride


# Stride of an intact record of the long form with any stamp, or a negative status.
cdef int64_t check_entry(const uint8_t *p, int64_t space) noexcept nogil

# Raise InvalidRecordsError for the bad record at p + offset.
cdef int refuse(const uint8_t *p, int64_t offset, int64_t length, int64_t fault) except -1


cdef class Entries:
    cdef uint8_t *bytes
    cdef Py_ssize_t size          # of that block
    cdef uint32_t *starts         # offset of each record, and where the last one ends
    cdef readonly int64_t ledger
    cdef readonly int64_t first
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t ledger_bytes
    cdef readonly uint64_t ledger_messages


# As `encode_entries`.
cdef Entries encode(values, keys, event_times, int64_t ledger, int64_t first, int64_t lac, int64_t time,
                    uint64_t ledger_bytes, uint64_t ledger_messages, int64_t size_max, messages)
