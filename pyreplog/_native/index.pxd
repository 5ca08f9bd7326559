# (ledger id, entry id) -> offset in one segment. The persisted layout is in FORMAT.md, "Ledger index".
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef REPLOG_LEDGER_INDEX
    #define REPLOG_LEDGER_INDEX
    #include "layout.h"

    enum {
        REPLOG_LEDGER_BLOCK = 4096,  /* unit of checking: every block has its own CRC-32C */
        REPLOG_LEDGER_ROOTS = 992,
    };
    #define REPLOG_LEDGER_MAGIC 0x31304744454c5052ull /* "RPLEDG01" */

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
    /* The roots cover the CRC table of the largest possible index: a run of one wide item per record. */
    _Static_assert((uint64_t)REPLOG_LEDGER_ROOTS * 1024 * REPLOG_LEDGER_BLOCK >=
                   (uint64_t)(sizeof(replog_ledger_run) + 12) << 24, "roots");
    #endif
    """
    enum:
        BLOCK "REPLOG_LEDGER_BLOCK"
        ROOTS "REPLOG_LEDGER_ROOTS"
    const uint64_t LEDGER_MAGIC "REPLOG_LEDGER_MAGIC"

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
    INDEX_IDS = -3        # a negative ledger or entry id
    INDEX_PLACE = -4      # not a place after the records added before
    INDEX_NO_MEMORY = -5


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


# Open addressing, linear probing, load <= 0.7. A slot is 0 or holds number + 1 of what it refers to in its low 24 bits
# and 8 bits of the hash above them, which spare nearly all reads of what is not the key sought.
ctypedef struct Slots:
    uint32_t *slot
    uint32_t mask


ctypedef struct Pair:
    int64_t entry
    int64_t place


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
    cdef int64_t find(self, int64_t ledger, int64_t entry) noexcept nogil
    cdef void cut(self, int64_t offset) noexcept nogil
    cdef int reserve(self) noexcept nogil
    cdef void link(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil
    cdef uint32_t row_for(self, int64_t ledger) noexcept nogil
    cdef uint32_t *row_slot(self, int64_t ledger) noexcept nogil
    cdef uint32_t *node_slot(self, uint32_t row, int64_t entry) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs) noexcept nogil
    cdef int64_t gather(self, const LedgerRow *row, Pair *pairs) noexcept nogil
    cdef void distribute(self, Pair *pairs, uint32_t *filled) noexcept nogil
    cdef void directory(self, LedgerRun *runs) noexcept nogil
    cdef uint64_t runs_end(self) noexcept nogil
    cdef int write(self, uint8_t *image, uint64_t data_end) noexcept nogil
    cdef object refusal(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride)


# The append path's doors. They take the index's lock; any thread may call them, with or without the GIL.
cdef int ledger_index_add(LedgerIndex index, int64_t ledger, int64_t entry, int64_t offset,
                          int64_t stride) noexcept nogil
# All or nothing; on failure `failed` is the number of the row refused.
cdef int ledger_index_add_batch(LedgerIndex index, int64_t count, const int64_t *ledgers, const int64_t *entries,
                                const int64_t *offsets, const int64_t *strides, int64_t *failed) noexcept nogil
# Offset of the record, or INDEX_ABSENT.
cdef int64_t ledger_index_find(LedgerIndex index, int64_t ledger, int64_t entry) noexcept nogil


# Why a lookup in a file gave INDEX_DAMAGED; `SealedIndex.error` makes the exception of it.
cdef enum DamageKind:
    DAMAGED_BLOCK
    DAMAGED_RUN
    DAMAGED_OFFSET


ctypedef struct Damage:
    DamageKind kind
    uint64_t position     # in the index file
    uint64_t expected
    uint64_t found


@cython.final
cdef class SealedIndex:
    cdef const uint8_t *image     # the mapped file; NULL: closed
    cdef const IndexFileHeader *header
    cdef uint64_t size
    cdef uint64_t table           # offset of the CRC table
    cdef uint8_t *proven          # one byte per block: its CRC was right
    cdef bint is_open
    cdef int users                # calls that run without the GIL; the last one unmaps a closed file
    cdef object path

    cdef int map_file(self, object path) except -1
    cdef int adopt(self, object path, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1
    cdef int check_open(self) except -1
    cdef void unmap(self) noexcept
    cdef bint intact(self, uint64_t start, uint64_t stop, Damage *damage) noexcept nogil
    cdef bint check(self, uint64_t block, uint32_t expected, Damage *damage) noexcept nogil
    cdef int find_run(self, int64_t ledger, const LedgerRun **run, Damage *damage) noexcept nogil
    cdef bint plausible(self, const LedgerRun *run, Damage *damage) noexcept nogil
    cdef int64_t lower_bound(self, const LedgerRun *run, uint64_t delta, Damage *damage) noexcept nogil
    cdef int64_t place_of(self, const LedgerRun *run, int64_t i, Damage *damage) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs,
                         Damage *damage) noexcept nogil
    cdef object error(self, const Damage *damage)


# Offset of the record, INDEX_ABSENT or INDEX_DAMAGED (then `damage` says what). The caller keeps the index open.
cdef int64_t sealed_index_find(SealedIndex index, int64_t ledger, int64_t entry, Damage *damage) noexcept nogil
