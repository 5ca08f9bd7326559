#define _GNU_SOURCE
#include "quorum.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "layout.h"
#include "limit.h"

static const int64_t GROUP_BYTES = 1 << 20;
static const int64_t SPIN_NS = 10 * 1000 * 1000; /* then it sleeps: the other side may be measured now */

static int wait_for_input(int socket, int ms) {
    struct pollfd wanted = {.fd = socket, .events = POLLIN};
    return poll(&wanted, 1, ms) == 1;
}

/* 1: read; 0: the peer has gone, at a frame's border if `at_border`; -1: errno says why. */
static int read_all(int socket, uint8_t *p, int64_t size, int spin, int at_border) {
    const int64_t began = spin ? limit_now_ns() : 0;
    for (int64_t got = 0; got < size;) {
        ssize_t n = recv(socket, p + got, (size_t)(size - got), spin ? MSG_DONTWAIT : 0);
        if (n > 0) {
            got += n;
        } else if (n == 0) {
            errno = ECONNRESET;
            return at_border && got == 0 ? 0 : -1;
        } else if (errno == EAGAIN) {
            if (limit_now_ns() - began > SPIN_NS)
                wait_for_input(socket, -1);
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 1;
}

static int sync_log(quorum_log *log) {
    ssize_t size = log->at - log->synced;
    if (size == 0)
        return 0;
    if (pwrite(log->fd, log->memory + log->synced, (size_t)size, log->synced) != size || fdatasync(log->fd) != 0)
        return -1;
    log->synced = log->at;
    return 0;
}

/* Room for `size` bytes at `at`, at the front again if need be. */
static int make_room(quorum_log *log, int64_t size) {
    if (log->at + size <= log->size)
        return 0;
    if (log->fd >= 0 && sync_log(log) < 0)
        return -1;
    log->at = log->synced = REPLOG_SEGMENT_HEADER;
    if (log->at + size > log->size) {
        errno = EFBIG;
        return -1;
    }
    return 0;
}

static int take_frame(quorum_log *log, int socket, int64_t size, int spin) {
    if (make_room(log, size) < 0 || read_all(socket, log->memory + log->at, size, spin, 0) < 0)
        return -1;
    int64_t count = limit_scan(log->memory, log->at, log->at + size);
    if (count < 0) {
        errno = EBADMSG;
        return -1;
    }
    log->at += size;
    log->end += size;
    log->records += count;
    return 0;
}

int quorum_serve(quorum_log *log, int socket, int spin) {
    uint8_t header[QUORUM_FRAME_HEADER];
    int got;
    while ((got = read_all(socket, header, sizeof(header), spin, 1)) > 0) {
        uint64_t position;
        uint32_t size;
        memcpy(&position, header, 8);
        memcpy(&size, header + 8, 4);
        if (position != (uint64_t)log->end)
            return EPROTO;
        if (take_frame(log, socket, size, spin) < 0)
            return errno;
        if (log->fd >= 0) {
            if (log->at - log->synced < GROUP_BYTES && wait_for_input(socket, 0))
                continue; /* one sync for all that is there */
            if (sync_log(log) < 0)
                return errno;
        }
        if (send(socket, &log->end, sizeof(log->end), MSG_NOSIGNAL) != sizeof(log->end))
            return errno;
    }
    return got < 0 ? errno : 0;
}

int64_t quorum_check(const quorum_log *log, const uint8_t *map, const quorum_values *values) {
    const int64_t stride = quorum_stride(values->size), count = (log->at - REPLOG_SEGMENT_HEADER) / stride;
    if (limit_scan(map, REPLOG_SEGMENT_HEADER, log->at) != count)
        return -1;
    for (int64_t i = 0; i < count; i++) {
        const replog_long *record = (const replog_long *)(map + REPLOG_SEGMENT_HEADER + i * stride);
        const int64_t entry = log->records - count + i;
        const uint8_t *value = values->start + (entry & (values->count - 1)) * values->size;
        if (record->entry != entry || memcmp(record + 1, value, (size_t)values->size) != 0)
            return -1;
    }
    return count;
}
