#define _GNU_SOURCE
#include "adds.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "crc32c.h"
#include "layout.h"

enum { REPLY_FRAME = ADDS_FRAME_HEADER + ADDS_REPLY_BYTES };

int64_t adds_stride(int64_t size) { return (REPLOG_LONG_HEADER + size + REPLOG_ALIGN - 1) & ~(int64_t)(REPLOG_ALIGN - 1); }

static void put_i64(uint8_t *p, int64_t value) {
    const uint64_t big = htobe64((uint64_t)value);
    memcpy(p, &big, 8);
}

static int64_t get_i64(const uint8_t *p) {
    uint64_t big;
    memcpy(&big, p, 8);
    return (int64_t)be64toh(big);
}

static void put_record(const adds_client *client, uint8_t *p, int64_t entry, int64_t time_us) {
    const adds_values *values = &client->values;
    replog_long record = {
        .head = {
            .length = (uint32_t)(REPLOG_LONG_HEADER + values->size),
            .kind = REPLOG_KIND_DATA,
            .form = REPLOG_FORMAT_VERSION | REPLOG_FORM_LONG,
            .time = time_us,
        },
        .ledger = client->ledger,
        .entry = entry,
        .lac = entry - 1,
        .ledger_bytes = (uint64_t)((entry + 1) * values->size),
        .ledger_messages = (uint64_t)entry + 1,
    };
    const uint8_t *head = (const uint8_t *)&record;
    uint32_t crc = replog_crc(record.head.length, head + REPLOG_CRC_FROM, REPLOG_LONG_HEADER - REPLOG_CRC_FROM);
    record.head.crc = replog_crc_copy(crc, p + REPLOG_LONG_HEADER, values->start + entry % values->count * values->size,
                                      (size_t)values->size, (size_t)(adds_stride(values->size) - record.head.length));
    memcpy(p, &record, REPLOG_LONG_HEADER); /* a frame does not align it */
}

static int64_t put_request(const adds_client *client, uint8_t *p, int64_t entry, int64_t time_us) {
    const int64_t stride = adds_stride(client->values.size);
    const uint32_t size = htobe32((uint32_t)(ADDS_REQUEST_BYTES + stride));
    put_i64(p, entry); /* the correlation id */
    memcpy(p + 8, &size, 4);
    p += ADDS_FRAME_HEADER;
    memset(p, 0, ADDS_REQUEST_BYTES);
    p[0] = ADDS_KIND_ADD;
    p[1] = ADDS_FLAG_UNSYNCED;
    p[2] = p[3] = 1; /* run, step */
    put_i64(p + ADDS_AT_LEDGER, client->ledger);
    put_i64(p + ADDS_AT_FIRST, entry);
    put_i64(p + ADDS_AT_LAST, entry);
    memcpy(p + ADDS_AT_KEY, client->key, ADDS_KEY_BYTES);
    put_record(client, p + ADDS_REQUEST_BYTES, entry, time_us);
    return ADDS_FRAME_HEADER + ADDS_REQUEST_BYTES + stride;
}

static int send_all(int socket, const uint8_t *p, int64_t size) {
    while (size > 0) {
        ssize_t sent = send(socket, p, (size_t)size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return -1;
        if (sent > 0) {
            p += sent;
            size -= sent;
        }
    }
    return 0;
}

static int is_ok(const adds_client *client, const uint8_t *p, int64_t entry) {
    const uint8_t *reply = p + ADDS_FRAME_HEADER;
    return get_i64(p) == entry && reply[0] == 0 && get_i64(reply + ADDS_AT_LEDGER) == client->ledger &&
           get_i64(reply + ADDS_AT_FIRST) == entry && get_i64(reply + ADDS_AT_LAST) == entry &&
           get_i64(reply + ADDS_REPLY_AT_LAC) >= entry - 1;
}

/* Take whole replies from p[0, size); `acked`: the entry whose turn it is. Returns the bytes that were taken, or -1. */
static int64_t take_replies(const adds_client *client, const uint8_t *p, int64_t size, int64_t *acked) {
    int64_t at = 0;
    while (size - at >= ADDS_FRAME_HEADER) {
        uint32_t length;
        memcpy(&length, p + at + 8, 4);
        length = be32toh(length);
        if (length == 0) { /* a heartbeat */
            at += ADDS_FRAME_HEADER;
            continue;
        }
        if (length != ADDS_REPLY_BYTES)
            return -1;
        if (size - at < REPLY_FRAME)
            break;
        if (!is_ok(client, p + at, *acked))
            return -1;
        (*acked)++;
        at += REPLY_FRAME;
    }
    return at;
}

int adds_append(adds_client *client, int64_t count, int window) {
    uint8_t replies[ADDS_WINDOW_MAX * REPLY_FRAME];
    const int64_t end = client->next + count;
    int64_t acked = client->next, have = 0;
    if (window < 1 || window > ADDS_WINDOW_MAX)
        return EINVAL;
    while (acked < end) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME_COARSE, &t);
        const int64_t time_us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
        int64_t bytes = 0;
        while (client->next < end && client->next - acked < window)
            bytes += put_request(client, client->frames + bytes, client->next++, time_us);
        if (send_all(client->socket, client->frames, bytes) < 0)
            return errno;
        ssize_t got = recv(client->socket, replies + have, sizeof(replies) - (size_t)have, 0);
        if (got == 0)
            return ECONNRESET;
        if (got < 0 && errno != EINTR)
            return errno;
        have += got > 0 ? got : 0;
        const int64_t taken = take_replies(client, replies, have, &acked);
        if (taken < 0)
            return EPROTO;
        memmove(replies, replies + taken, (size_t)(have - taken));
        have -= taken;
    }
    return have ? EPROTO : 0;
}
