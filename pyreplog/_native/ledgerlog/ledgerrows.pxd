# The records of one segment, ledger by ledger: rows, which a hash table finds.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyreplog._native.layout cimport ALIGN
from pyreplog._native.ledgerlog.extents cimport ExtentMap


# A record, in the order of adding; both in units of 8 bytes.
ctypedef struct Place:
    uint32_t offset
    uint32_t stride


# Rows stay when truncation leaves them without records.
ctypedef struct LedgerRow:
    int64_t ledger
    uint64_t bytes        # sum of the strides
    ExtentMap entries     # entry id -> number of its place
    Place *places
    uint32_t room


cdef inline int64_t end_of_record(const LedgerRow *row, uint32_t number) noexcept nogil:
    return (<int64_t>row.places[number].offset + row.places[number].stride) * ALIGN


# All zero before `ledgers_grow` was called first.
ctypedef struct LedgerRows:
    LedgerRow *rows
    uint32_t *slots       # hash table of rows: number + 1, or 0; linear probing, load <= 0.7
    uint32_t mask
    uint32_t count, room  # rows; that there is memory for
    uint32_t recent       # row that was asked for last by `ledgers_row`


# Twice the slots; 64 at first. 0; -1: no memory.
cdef int ledgers_grow(LedgerRows *ledgers) noexcept nogil
# The ledger's row, which is added when there is none; NULL: no memory.
cdef LedgerRow *ledgers_row(LedgerRows *ledgers, int64_t ledger) noexcept nogil
# The row of a ledger that has records, or NULL.
cdef LedgerRow *ledgers_find(const LedgerRows *ledgers, int64_t ledger) noexcept nogil
cdef void ledgers_free(LedgerRows *ledgers) noexcept nogil
# Bytes allocated.
cdef uint64_t ledgers_bytes(const LedgerRows *ledgers) noexcept nogil
# Keep the row's records that end at or below `offset`.
cdef void cut_row(LedgerRow *row, int64_t offset) noexcept nogil
# How many of the row's records begin before offset `below`.
cdef uint32_t records_below(const LedgerRow *row, int64_t below) noexcept nogil
