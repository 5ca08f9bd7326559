# The records of one segment by ledger: one row for each ledger, which a hash table finds.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyreplog._native.layout cimport ALIGN
from pyreplog._native.ledger_log.extents cimport ExtentMap


# A record; both fields are in units of 8 bytes.
ctypedef struct Place:
    uint32_t offset
    uint32_t stride


# The records of one ledger. The row remains if truncation removes all of them.
ctypedef struct LedgerRow:
    int64_t ledger
    uint64_t bytes        # sum of the strides
    ExtentMap entries     # from entry id to index in `places`
    Place *places         # in the order of adding
    uint32_t room


cdef inline int64_t end_of_record(const LedgerRow *row, uint32_t number) noexcept nogil:
    return (<int64_t>row.places[number].offset + row.places[number].stride) * ALIGN


# All fields are zero until `ledgers_grow` is called for the first time.
ctypedef struct LedgerRows:
    LedgerRow *rows
    uint32_t *slots       # hash table, linear probing, load <= 0.7: number of a row + 1, or 0
    uint32_t mask
    uint32_t count, room  # number of rows; number of rows that fit into the memory
    uint32_t recent       # row that `ledgers_row` returned last


# Double the slots, from 64 at first. Return 0, or -1 for lack of memory.
cdef int ledgers_grow(LedgerRows *ledgers) noexcept nogil
# Return the row of a ledger, and add it if it is missing; NULL for lack of memory.
cdef LedgerRow *ledgers_row(LedgerRows *ledgers, int64_t ledger) noexcept nogil
# Return the row of a ledger, or NULL if the ledger has no records.
cdef LedgerRow *ledgers_find(const LedgerRows *ledgers, int64_t ledger) noexcept nogil
cdef void ledgers_free(LedgerRows *ledgers) noexcept nogil
# Return the number of allocated bytes.
cdef uint64_t ledgers_bytes(const LedgerRows *ledgers) noexcept nogil
# Keep only the records of the row that end at or below `offset`.
cdef void cut_row(LedgerRow *row, int64_t offset) noexcept nogil
# Return how many records of the row begin before offset `below`.
cdef uint32_t records_below(const LedgerRow *row, int64_t below) noexcept nogil
