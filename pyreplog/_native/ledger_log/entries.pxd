# Encoded entries of ledgers, for the module `entries` and for the log that stores them.
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.layout cimport FORM_LONG, KIND_CONTROL, LongHeader
from pyreplog._native.log.record cimport RECORD_FORM, RECORD_IDS


cdef extern from *:
    """
    /* Ledger ids are below this limit. The control records of a ledger are indexed under its id plus this limit. */
    #define REPLOG_LEDGERS (INT64_C(1) << 62)
    """
    const int64_t LEDGERS "REPLOG_LEDGERS"


cdef inline int64_t index_ledger(const uint8_t *p) noexcept nogil:
    """Return the ledger id under which a record is indexed."""
    cdef const LongHeader *header = <const LongHeader *>p
    return header.ledger + LEDGERS if header.head.kind == KIND_CONTROL else header.ledger


cdef inline int64_t check_ids(const uint8_t *p, int64_t stride) noexcept nogil:
    """Return `stride` if an otherwise intact record has the long form and possible ids, else a negative status."""
    cdef const LongHeader *header = <const LongHeader *>p
    if not header.head.form & FORM_LONG:
        return RECORD_FORM
    if not 0 <= header.ledger < LEDGERS or not 0 <= header.entry < INT64_MAX or header.lac < -1:
        return RECORD_IDS
    return stride


# Return the stride of an intact record of the long form, with any stamp, or a negative status.
cdef int64_t check_entry(const uint8_t *p, int64_t space) noexcept nogil

# Raise InvalidRecordsError for the bad record at p + offset.
cdef int refuse(const uint8_t *p, int64_t offset, int64_t length, int64_t fault) except -1


cdef class Entries:
    cdef uint8_t *bytes
    cdef Py_ssize_t size          # of the memory at `bytes`
    cdef uint32_t *starts         # offset of each record, and of the end of the last one
    cdef readonly int64_t ledger
    cdef readonly int64_t first
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t ledger_bytes
    cdef readonly uint64_t ledger_messages


# Encode entries, with the arguments of `encode_entries`.
cdef Entries encode(values, keys, event_times, int64_t ledger, int64_t first, int64_t lac, int64_t time,
                    uint64_t ledger_bytes, uint64_t ledger_messages, int64_t size_max, messages, attributes)
