# (ledger id, entry id) -> offset in one segment: the index in memory, and what it shares with `sealed`, the index in a
# file. The file's layout is in FORMAT.md, "Ledger index".
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    #ifndef REPLOG_LEDGER_INDEX
    #define REPLOG_LEDGER_INDEX
    #include "layout.h"

    enum {
        REPLOG_LEDGER_BLOCK = 4096, /* unit of checking: every block has its own CRC-32C */
        REPLOG_LEDGER_ROOTS = 992,
        REPLOG_LEDGER_CRC_FROM = 12, /* the header's CRC leaves out what is before this */
    };
    #define REPLOG_LEDGER_MAGIC 0x31304744454c5052ull /* "RPLEDG01" */
    /* Where runs can end at most, for the header's roots to cover their CRCs. */
    #define REPLOG_LEDGER_DATA_MAX ((uint64_t)REPLOG_LEDGER_ROOTS * (REPLOG_LEDGER_BLOCK / 4) * REPLOG_LEDGER_BLOCK)

    typedef struct {
        uint64_t magic;
        uint32_t crc;         /* CRC-32C of bytes [12, 4096) */
        uint16_t version;
        uint16_t min_reader;
        uint8_t uuid[16];     /* of the log */
        int64_t base;         /* of the segment */
        int64_t end;          /* offset of the first byte after the last record */
        uint32_t stamp;       /* of the segment */
        uint32_t ledgers;     /* runs in the directory */
        uint64_t entries;     /* items in all runs */
        uint64_t data_end;    /* offset in this file where the last run ends */
        uint8_t reserved[56]; /* zero */
        uint32_t roots[REPLOG_LEDGER_ROOTS]; /* CRC-32C of each block of the CRC table */
    } replog_ledger_index;

    typedef struct {
        int64_t ledger;
        int64_t first;    /* lowest entry id */
        int64_t last;     /* highest entry id */
        uint64_t bytes;   /* sum of the strides of all the ledger's records, copies included */
        uint64_t run;     /* offset in this file of the ledger's first item */
        uint32_t entries; /* items: distinct entry ids */
        uint32_t words;   /* u32 words of an item: 2, or 3 when last - first needs more than 32 bits */
    } replog_ledger_run;

    _Static_assert(sizeof(replog_ledger_index) == REPLOG_LEDGER_BLOCK, "ledger index header");
    _Static_assert(sizeof(replog_ledger_run) == 48, "ledger run");
    /* Record numbers + 1 fit into the 24 bits that a hash slot has for them. */
    _Static_assert((REPLOG_SEGMENT_MAX - REPLOG_SEGMENT_HEADER) / REPLOG_LONG_HEADER < 1 << 24, "records");
    /* The largest possible index, a run of one wide item per record, can be written. */
    _Static_assert(REPLOG_LEDGER_DATA_MAX >= (uint64_t)(sizeof(replog_ledger_run) + 12) << 24, "roots");
    #endif
    """
    enum:
        BLOCK "REPLOG_LEDGER_BLOCK"
        HEADER_CRC_FROM "REPLOG_LEDGER_CRC_FROM"
    const uint64_t LEDGER_MAGIC "REPLOG_LEDGER_MAGIC"
    const uint64_t DATA_MAX "REPLOG_LEDGER_DATA_MAX"

    ctypedef struct IndexFileHeader "replog_ledger_index":
        uint64_t magic
        uint32_t crc
        uint16_t version
        uint16_t min_reader
        uint8_t uuid[16]
        int64_t base
        int64_t end
        uint32_t stamp
        uint32_t ledgers
        uint64_t entries
        uint64_t data_end
        uint32_t roots[992]

    ctypedef struct LedgerRun "replog_ledger_run":
        int64_t ledger
        int64_t first
        int64_t last
        uint64_t bytes
        uint64_t run
        uint32_t entries
        uint32_t words


cdef enum IndexStatus:
    INDEX_OK = 0
    INDEX_ABSENT = -1     # definitely not in this segment
    INDEX_DAMAGED = -2    # the file is not what was written: unknown
    INDEX_REFUSED = -3    # a negative id, or not a place after the records added before
    INDEX_NO_MEMORY = -4


# A found entry; `place` is its record's offset / 8.
ctypedef struct Pair:
    int64_t entry
    int64_t place


cdef inline uint32_t words_of(int64_t first, int64_t last) noexcept nogil:
    """u32 words of an item: the entry's distance from the first one, and the place."""
    return 2 if last - first <= <int64_t>0xffffffff else 3


cdef inline uint64_t rounded(uint64_t size) noexcept nogil:
    return (size + BLOCK - 1) // BLOCK * BLOCK


cdef inline uint64_t image_size(uint64_t data_end) noexcept nogil:
    """Bytes of a file whose runs end at `data_end`: header, data and CRC table, each in whole blocks."""
    return rounded(data_end) + rounded((rounded(data_end) // BLOCK - 1) * 4)


cdef int check_ids(int64_t ledger, int64_t entry) except -1
# (entry ids, offsets) as numpy int64 arrays.
cdef tuple columns(const Pair *pairs, int64_t count)
# LedgerRun structures as a numpy table of what they say about ledgers.
cdef object ledger_table(bytes runs)


# An indexed record; 24 bytes. Records lie in an array in log order, so that truncation cuts its tail.
ctypedef struct Node:
    int64_t entry
    uint32_t row          # of its ledger
    uint32_t place        # offset / 8
    uint32_t stride       # / 8
    uint32_t previous     # number + 1 of the record of this ledger added before; 0: none


ctypedef struct LedgerRow:
    int64_t ledger
    int64_t first
    int64_t last
    uint64_t bytes
    uint32_t entries      # distinct entry ids
    uint32_t records      # copies included
    uint32_t newest       # number + 1
    bint unordered        # entry ids did not only increase


# A hash table: open addressing, linear probing, load <= 0.7. A slot is 0, or holds number + 1 of what it refers to in
# its low 24 bits and 8 bits of the hash above them, which spare nearly all reads of what is not the key sought.
ctypedef struct Slots:
    uint32_t *slot
    uint32_t mask


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """SplitMix64's finalizer: every bit of `x` moves every bit of the result."""
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline uint64_t hash_of(uint32_t row, int64_t entry) noexcept nogil:
    return mix(<uint64_t>entry + <uint64_t>row * <uint64_t>0x9e3779b97f4a7c15)


cdef inline uint32_t slot_for(uint64_t hash, uint32_t number) noexcept nogil:
    return <uint32_t>(hash >> 56) << 24 | (number + 1)


cdef inline uint32_t number_in(uint32_t slot) noexcept nogil:
    return (slot & 0xffffff) - 1


cdef inline bint alike(uint32_t slot, uint64_t hash) noexcept nogil:
    return slot >> 24 == hash >> 56


cdef inline bint crowded(const Slots *slots, uint32_t used) noexcept nogil:
    return <uint64_t>used * 10 >= (<uint64_t>slots.mask + 1) * 7


cdef inline int widen(Slots *slots) noexcept nogil:
    """Twice the slots (64 at first), all empty; the caller fills them again."""
    cdef uint32_t count = (slots.mask + 1) * 2 if slots.slot != NULL else 64
    cdef uint32_t *fresh = <uint32_t *>calloc(count, sizeof(uint32_t))
    if fresh == NULL:
        return INDEX_NO_MEMORY
    free(slots.slot)
    slots.slot, slots.mask = fresh, count - 1
    return INDEX_OK


@cython.final
cdef class LedgerIndex:
    cdef cython.pymutex lock
    cdef Node *nodes
    cdef LedgerRow *rows
    cdef Slots node_slots, row_slots
    cdef uint32_t records, node_capacity, row_count, row_capacity
    cdef uint32_t entries_held    # distinct (ledger, entry)
    cdef int64_t end              # offset after the last record

    # All of these run under `lock`.
    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil
    cdef void cut(self, int64_t offset) noexcept nogil
    cdef int reserve(self) noexcept nogil
    cdef void link(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil
    cdef LedgerRow *row_for(self, int64_t ledger) noexcept nogil
    cdef LedgerRow *row_of(self, int64_t ledger) noexcept nogil
    cdef uint32_t *row_slot(self, int64_t ledger) noexcept nogil
    cdef uint32_t *node_slot(self, uint32_t row, int64_t entry) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs) noexcept nogil
    cdef int64_t look_up(self, const LedgerRow *row, int64_t start, int64_t last, Pair *pairs) noexcept nogil
    cdef int64_t gather(self, const LedgerRow *row, int64_t start, int64_t last, Pair *pairs) noexcept nogil
    cdef void distribute(self, Pair *pairs, uint32_t *filled) noexcept nogil
    cdef uint64_t directory(self, LedgerRun *runs) noexcept nogil
    cdef int write(self, uint8_t *image, const LedgerRun *runs) noexcept nogil

    cdef int refuse(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) except -1


# The append path's doors. They take the index's lock; any thread may call them, with or without the GIL.
cdef int ledger_index_add(LedgerIndex index, int64_t ledger, int64_t entry, int64_t offset,
                          int64_t stride) noexcept nogil
# All or nothing; on failure `failed` is the number of the row refused.
cdef int ledger_index_add_batch(LedgerIndex index, int64_t count, const int64_t *ledgers, const int64_t *entries,
                                const int64_t *offsets, const int64_t *strides, int64_t *failed) noexcept nogil
# Offset of the record, or INDEX_ABSENT.
cdef int64_t ledger_index_find(LedgerIndex index, int64_t ledger, int64_t entry) noexcept nogil
