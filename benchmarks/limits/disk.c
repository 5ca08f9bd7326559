#include "limit.h"

#include <errno.h>
#include <unistd.h>

int limit_synced_writes(int fd, const uint8_t *data, int64_t size, int64_t offset, int64_t count, int64_t *ns) {
    for (int64_t i = 0; i < count; i++, offset += size) {
        int64_t begin = limit_now_ns();
        ssize_t done = pwrite(fd, data, (size_t)size, offset);
        if (done != size)
            return done < 0 ? errno : EIO;
        if (fdatasync(fd) != 0)
            return errno;
        ns[i] = limit_now_ns() - begin;
    }
    return 0;
}
