# An index from (ledger id, entry id) to the offset in one segment, in memory. `sealed` has the same index in a file,
# and uses the declarations at the top.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.ledger_log.index_file cimport IndexFileHeader, LedgerRun
from pyreplog._native.ledger_log.ledger_rows cimport LedgerRows


cdef enum IndexStatus:
    INDEX_OK = 0
    INDEX_ABSENT = -1     # the entry is not in this segment
    INDEX_DAMAGED = -2    # the file is damaged; whether the entry is in the segment is unknown
    INDEX_REFUSED = -3    # a negative id, or an offset before the end of the records added so far
    INDEX_NO_MEMORY = -4


# An entry that was found; `place` is the offset of its record, divided by 8.
ctypedef struct Pair:
    int64_t entry
    int64_t place


cdef int check_ids(int64_t ledger, int64_t entry) except -1
# Return (entry ids, offsets) as int64 arrays.
cdef tuple columns(const Pair *pairs, int64_t count)


@cython.final
cdef class LedgerIndex:
    cdef cython.pymutex lock
    cdef LedgerRows table         # rows of all ledgers that have or had records
    cdef uint32_t ledgers_held    # rows with records
    cdef int64_t end              # offset after the last record

    # These methods run under `lock`.
    # Add records of consecutive entries, which lie end to end from `offset` on; the append path calls this. On another
    # status than INDEX_OK nothing was added.
    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, const uint32_t *strides,
                    uint32_t count) noexcept nogil
    # Keep the records that end at or below `offset`.
    cdef void cut(self, int64_t offset) noexcept nogil
    cdef int append_all(self, const int64_t **columns, int64_t count, int64_t *failed) noexcept nogil
    cdef int append_one(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, int64_t below, Pair **pairs) noexcept nogil
    cdef int directory(self, LedgerRun *runs, IndexFileHeader *header) noexcept nogil
    cdef void write_runs(self, uint8_t *image) noexcept nogil
    cdef bytes sorted_runs(self, IndexFileHeader *header)

    cdef int refuse(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) except -1
