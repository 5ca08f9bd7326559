# The ledger index of a sealed segment, in a mapped file. FORMAT.md, "Ledger index", and index_file.pxd have its layout.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.ledger_log.index cimport Pair
from pyreplog._native.ledger_log.index_file cimport IndexFileHeader, LedgerRun


# The reason of INDEX_DAMAGED; `SealedIndex.error` makes an exception of it.
ctypedef struct Damage:
    uint64_t position     # of the damage in the index file
    const char *subject      # the name of the value that is not as expected
    uint64_t expected
    uint64_t actual


@cython.final
cdef class SealedIndex:
    cdef const uint8_t *image     # the mapped file; NULL: closed
    cdef const IndexFileHeader *header
    cdef uint64_t size
    cdef uint64_t table           # offset of the CRC table
    cdef uint8_t *proven          # a byte for each block; 1: its CRC was checked and is right
    cdef bint is_open
    cdef int users                # calls that run without the GIL; if the file was closed, the last of them unmaps it
    cdef object path

    cdef int adopt(self, object path, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1
    cdef int check_open(self) except -1
    cdef void unmap(self) noexcept
    cdef object error(self, const Damage *damage)
    cdef bint intact(self, uint64_t start, uint64_t stop, Damage *damage) noexcept nogil
    cdef bint check(self, uint64_t block, uint32_t expected, Damage *damage) noexcept nogil
    cdef int find_run(self, int64_t ledger, const LedgerRun **run, Damage *damage) noexcept nogil
    cdef bint plausible(self, const LedgerRun *run, Damage *damage) noexcept nogil
    cdef int64_t lower_bound(self, const LedgerRun *run, uint64_t delta, Damage *damage) noexcept nogil
    cdef int64_t place_of(self, const LedgerRun *run, int64_t i, Damage *damage) noexcept nogil
    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs,
                         Damage *damage) noexcept nogil


# Return the offset of the record, INDEX_ABSENT, or INDEX_DAMAGED with the reason in `damage`. The caller keeps the
# index open.
cdef int64_t sealed_index_find(SealedIndex index, int64_t ledger, int64_t entry, Damage *damage) noexcept nogil
