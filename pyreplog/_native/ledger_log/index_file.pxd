# The layout of a ledger index file; FORMAT.md, "Ledger index", describes it.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from *:
    """
    #ifndef REPLOG_LEDGER_INDEX
    #define REPLOG_LEDGER_INDEX
    #include "layout.h"

    enum {
        REPLOG_LEDGER_BLOCK = 4096, /* each block of so many bytes has its own CRC-32C */
        REPLOG_LEDGER_ROOTS = 992,
        REPLOG_LEDGER_CRC_FROM = 12, /* the header's CRC covers the bytes from here on */
    };
    #define REPLOG_LEDGER_MAGIC 0x31304744454c5052ull /* "RPLEDG01" */
    /* No run ends beyond this offset, so that the header has a root for each block of CRCs. */
    #define REPLOG_LEDGER_DATA_MAX ((uint64_t)REPLOG_LEDGER_ROOTS * (REPLOG_LEDGER_BLOCK / 4) * REPLOG_LEDGER_BLOCK)

    typedef struct {
        uint64_t magic;
        uint32_t crc;         /* CRC-32C of bytes [12, 4096) */
        uint16_t version;
        uint16_t min_reader;
        uint8_t uuid[16];     /* of the log */
        int64_t base;         /* of the segment */
        int64_t end;          /* offset behind the last record of the segment */
        uint32_t stamp;       /* of the segment */
        uint32_t ledgers;     /* runs in the directory */
        uint64_t entries;     /* items in all runs */
        uint64_t data_end;    /* offset in this file behind the last run */
        uint8_t reserved[56]; /* zero */
        uint32_t roots[REPLOG_LEDGER_ROOTS]; /* CRC-32C of each block of the CRC table */
    } replog_ledger_index;

    typedef struct {
        int64_t ledger;
        int64_t first;    /* lowest entry id */
        int64_t last;     /* highest entry id */
        uint64_t bytes;   /* sum of the strides of the ledger's records, copies included */
        uint64_t run;     /* offset in this file of the ledger's first item */
        uint32_t entries; /* items: distinct entry ids */
        uint32_t words;   /* u32 words of an item: 2, or 3 when last - first needs more than 32 bits */
    } replog_ledger_run;

    _Static_assert(sizeof(replog_ledger_index) == REPLOG_LEDGER_BLOCK, "ledger index header");
    _Static_assert(sizeof(replog_ledger_run) == 48, "ledger run");
    _Static_assert((REPLOG_SEGMENT_MAX - REPLOG_SEGMENT_HEADER) / REPLOG_LONG_HEADER < 1 << 24, "records");
    /* The largest possible index has a run with one wide item for each record. The roots suffice for it. */
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


cdef inline uint32_t words_of(int64_t first, int64_t last) noexcept nogil:
    """Return the number of u32 words of an item: the distance from the first entry, and the place."""
    return 2 if last - first <= <int64_t>0xffffffff else 3


cdef inline uint64_t rounded(uint64_t size) noexcept nogil:
    return (size + BLOCK - 1) // BLOCK * BLOCK


cdef inline uint64_t image_size(uint64_t data_end) noexcept nogil:
    """Return the size of a file whose runs end at `data_end`: header, data and CRC table, each in whole blocks."""
    return rounded(data_end) + rounded((rounded(data_end) // BLOCK - 1) * 4)


# Set the fields of an empty header that identify the segment. Raise InvalidArgumentError if the uuid has another size.
cdef int begin_header(IndexFileHeader *header, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1
# Write the CRC table, its roots and the header's own CRC.
cdef void seal(uint8_t *image) noexcept nogil
# Return LedgerRun structures as a numpy table with one row for each ledger.
cdef object ledger_table(bytes runs)
