# (ledger id, entry id) -> offset in one segment: the index in memory, and what it shares with `sealed`, the index in a
# file. The file's layout is in FORMAT.md, "Ledger index".
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyreplog._native.extents cimport ExtentMap
from pyreplog._native.layout cimport ALIGN

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


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """SplitMix64's finalizer: every bit of `x` moves every bit of the result."""
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


@cython.final
cdef class LedgerIndex:
    cdef cython.pymutex lock
    cdef LedgerRow *rows
    cdef uint32_t *slots          # hash table of rows: number + 1, or 0; linear probing, load <= 0.7
    cdef uint32_t mask
    cdef uint32_t row_count, row_room
    cdef uint32_t recent          # row that was added to last
    cdef uint32_t ledgers_held    # rows with records
    cdef int64_t end              # offset after the last record

    # All of these run under `lock`.
    # The append path's door: records of consecutive entries, end to end from `offset`. INDEX_OK, or nothing was added.
    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, const uint32_t *strides,
                    uint32_t count) noexcept nogil
    # Keep the records that end at or below `offset`.
    cdef void cut(self, int64_t offset) noexcept nogil
    cdef int append_all(self, const int64_t **columns, int64_t count, int64_t *failed) noexcept nogil
    cdef int append_one(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil
    cdef LedgerRow *row_for(self, int64_t ledger) noexcept nogil
    cdef LedgerRow *row_of(self, int64_t ledger) noexcept nogil
    cdef uint32_t *slot_of(self, int64_t ledger) noexcept nogil
    cdef int grow(self) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, int64_t below, Pair **pairs) noexcept nogil
    cdef int directory(self, LedgerRun *runs, IndexFileHeader *header) noexcept nogil
    cdef void write_runs(self, uint8_t *image) noexcept nogil
    cdef bytes sorted_runs(self, IndexFileHeader *header)

    cdef int refuse(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) except -1
