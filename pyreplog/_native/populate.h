/* Pages of a mapped file, faulted in for writing ahead of need; 0 or errno. Harmless on pages that are there.

   In huge pages where the file system has them: the first store into a page that was written back is a fault, and a
   huge page takes one where small ones take 512. The price: a sync writes whole huge pages. Logs that wait for syncs
   write with pwrite, which marks its blocks only, and are not populated. */
#ifndef REPLOG_POPULATE_H
#define REPLOG_POPULATE_H
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* map, size: the whole mapping. In pieces: who maps or unmaps memory meanwhile waits for one of them. EINVAL: a
   kernel before 5.14; then appends take the faults. */
static int replog_populate(uint8_t *map, int64_t size, int64_t offset, int64_t length) {
    const int64_t most = 4 << 20;
    madvise(map, (size_t)size, MADV_HUGEPAGE); /* refused by a kernel without them */
    for (; length > 0; offset += most, length -= most)
        if (madvise(map + offset, (size_t)(length < most ? length : most), MADV_POPULATE_WRITE) != 0)
            return errno == EINVAL ? 0 : errno;
    return 0;
}
#endif
