# The ledger index of a sealed segment: a mapped file. Its layout is in FORMAT.md, "Ledger index", and in indexfile.pxd.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.ledgerlog.index cimport Pair
from pyreplog._native.ledgerlog.indexfile cimport IndexFileHeader, LedgerRun


# Why a lookup gave INDEX_DAMAGED; `SealedIndex.error` makes the exception of it.
ctypedef struct Damage:
    uint64_t position     # in the index file
    const char *what      # should have been `expected` and was `found`
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


# Offset of the record, INDEX_ABSENT or INDEX_DAMAGED (then `damage` says what). The caller keeps the index open.
cdef int64_t sealed_index_find(SealedIndex index, int64_t ledger, int64_t entry, Damage *damage) noexcept nogil
