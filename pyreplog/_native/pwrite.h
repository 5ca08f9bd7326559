/* Writes all bytes at an offset, and goes on after signals and short writes; returns 0 or errno. */
#ifndef REPLOG_PWRITE_H
#define REPLOG_PWRITE_H
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

static int replog_pwrite(int fd, const uint8_t *data, int64_t length, int64_t offset) {
    while (length > 0) {
        ssize_t done = pwrite(fd, data, (size_t)length, offset);
        if (done < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        data += done;
        length -= done;
        offset += done;
    }
    return 0;
}
#endif
