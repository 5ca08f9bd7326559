/* Faults in pages of a mapped file for writing, before they are needed. Pages that are already mapped do not change.

   Huge pages are used where the file system has them. The first store into a page after its writeback is a fault: one
   huge page has one fault where small pages have 512. In return, a sync writes whole huge pages. Logs that wait for
   syncs are not populated: they write with pwrite, which marks only the blocks that it writes. */
#ifndef REPLOG_POPULATE_H
#define REPLOG_POPULATE_H
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Fault in `length` bytes at `offset` of the mapping `map` of `size` bytes; return 0 or errno. This goes piece by
   piece, because a thread that maps or unmaps memory has to wait for the current piece. EINVAL comes from kernels
   before 5.14; there, appends take the faults. */
static int replog_populate(uint8_t *map, int64_t size, int64_t offset, int64_t length) {
    const int64_t most = 4 << 20;
    madvise(map, (size_t)size, MADV_HUGEPAGE); /* fails on a kernel without huge pages, without harm */
    for (; length > 0; offset += most, length -= most)
        if (madvise(map + offset, (size_t)(length < most ? length : most), MADV_POPULATE_WRITE) != 0)
            return errno == EINVAL ? 0 : errno;
    return 0;
}
#endif
