"""The rows of the ledgers in one segment's index, in a hash table. No Python objects. The caller's lock guards it."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pyreplog._native.ledger_log.extents cimport extents_bytes, extents_cut, extents_free, make_room


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """SplitMix64's finalizer: every bit of `x` moves every bit of the result."""
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef uint32_t *slot_of(const LedgerRows *ledgers, int64_t ledger) noexcept nogil:
    """Return the slot of the ledger's row, or the empty slot where it belongs."""
    cdef uint32_t i = <uint32_t>mix(ledger) & ledgers.mask
    while ledgers.slots[i] and ledgers.rows[ledgers.slots[i] - 1].ledger != ledger:
        i = (i + 1) & ledgers.mask
    return &ledgers.slots[i]


cdef int ledgers_grow(LedgerRows *ledgers) noexcept nogil:
    cdef uint32_t count = (ledgers.mask + 1) * 2 if ledgers.slots != NULL else 64, i
    cdef uint32_t *slots = <uint32_t *>calloc(count, sizeof(uint32_t))
    if slots == NULL:
        return -1
    free(ledgers.slots)
    ledgers.slots, ledgers.mask = slots, count - 1
    for i in range(ledgers.count):
        slot_of(ledgers, ledgers.rows[i].ledger)[0] = i + 1
    return 0


cdef LedgerRow *ledgers_row(LedgerRows *ledgers, int64_t ledger) noexcept nogil:
    cdef uint32_t *slot
    if ledgers.recent < ledgers.count and ledgers.rows[ledgers.recent].ledger == ledger:
        return &ledgers.rows[ledgers.recent]
    slot = slot_of(ledgers, ledger)
    if not slot[0]:
        if (<uint64_t>ledgers.count + 1) * 10 > (<uint64_t>ledgers.mask + 1) * 7:
            if ledgers_grow(ledgers) < 0:
                return NULL
            slot = slot_of(ledgers, ledger)
        if make_room(<void **>&ledgers.rows, ledgers.count + 1, &ledgers.room, sizeof(LedgerRow)) < 0:
            return NULL
        memset(&ledgers.rows[ledgers.count], 0, sizeof(LedgerRow))
        ledgers.rows[ledgers.count].ledger = ledger
        ledgers.count += 1
        slot[0] = ledgers.count
    ledgers.recent = slot[0] - 1
    return &ledgers.rows[ledgers.recent]


cdef LedgerRow *ledgers_find(const LedgerRows *ledgers, int64_t ledger) noexcept nogil:
    cdef uint32_t slot = slot_of(ledgers, ledger)[0]
    return &ledgers.rows[slot - 1] if slot and ledgers.rows[slot - 1].entries.numbers else NULL


cdef void ledgers_free(LedgerRows *ledgers) noexcept nogil:
    cdef uint32_t i
    for i in range(ledgers.count):
        extents_free(&ledgers.rows[i].entries)
        free(ledgers.rows[i].places)
    free(ledgers.rows)
    free(ledgers.slots)


cdef uint64_t ledgers_bytes(const LedgerRows *ledgers) noexcept nogil:
    cdef uint64_t size = ledgers.room * sizeof(LedgerRow) + (<uint64_t>ledgers.mask + 1) * sizeof(uint32_t)
    cdef uint32_t i
    for i in range(ledgers.count):
        size += ledgers.rows[i].room * sizeof(Place) + extents_bytes(&ledgers.rows[i].entries)
    return size


cdef void cut_row(LedgerRow *row, int64_t offset) noexcept nogil:
    cdef uint32_t keep = row.entries.numbers
    while keep and end_of_record(row, keep - 1) > offset:
        keep -= 1
        row.bytes -= <uint64_t>row.places[keep].stride * ALIGN
    extents_cut(&row.entries, keep)


cdef uint32_t records_below(const LedgerRow *row, int64_t below) noexcept nogil:
    cdef uint32_t low = 0, high = row.entries.numbers, middle
    if high and <int64_t>row.places[high - 1].offset * ALIGN < below:
        return high
    while low < high:
        middle = (low + high) // 2
        if <int64_t>row.places[middle].offset * ALIGN < below:
            low = middle + 1
        else:
            high = middle
    return low
