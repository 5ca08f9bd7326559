#define _GNU_SOURCE
#include "adds.h"

#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "crc32c.h"
#include "layout.h"
#include "limit.h"

enum { BUFFER_BYTES = 256 << 10, REPLY_FRAME = ADDS_FRAME_HEADER + ADDS_REPLY_BYTES };

typedef struct {
    int socket;
    int64_t have;
    uint8_t data[BUFFER_BYTES];
} connection;

/* One request in a connection's buffer. */
typedef struct {
    const uint8_t *frame, *records;
    int64_t size; /* of the records */
    int64_t number, ledger, first, last, lac;
    uint8_t *place; /* in the log */
} request;

static int64_t get_i64(const uint8_t *p) {
    uint64_t big;
    memcpy(&big, p, 8);
    return (int64_t)be64toh(big);
}

static void put_i64(uint8_t *p, int64_t value) {
    const uint64_t big = htobe64((uint64_t)value);
    memcpy(p, &big, 8);
}

void adds_init(adds_log *log, uint8_t *memory, int64_t size, enum adds_locked locked) {
    memset(log, 0, sizeof(*log));
    pthread_mutex_init(&log->lock, NULL);
    log->memory = memory;
    log->size = size;
    log->at = REPLOG_SEGMENT_HEADER;
    log->locked = locked;
}

/* ---- a request, without the lock ------------------------------------------------------------------------------- */

/* Bytes of the first frame of p[0, size), or 0: it is not complete. */
static int64_t frame_bytes(const uint8_t *p, int64_t size) {
    uint32_t length;
    if (size < ADDS_FRAME_HEADER)
        return 0;
    memcpy(&length, p + 8, 4);
    const int64_t bytes = ADDS_FRAME_HEADER + (int64_t)be32toh(length);
    return bytes <= size ? bytes : 0;
}

/* As `parse_add` of pyreplog's fast path, for one record. Returns 0 or errno. */
static int parse(const uint8_t *frame, int64_t bytes, int check_crc, request *found) {
    const uint8_t *p = frame + ADDS_FRAME_HEADER;
    replog_long record;
    found->frame = frame;
    found->number = get_i64(frame);
    found->size = bytes - ADDS_FRAME_HEADER - ADDS_REQUEST_BYTES;
    if (found->size < REPLOG_LONG_HEADER || p[0] != ADDS_KIND_ADD || p[2] != 1 || p[3] != 1 || p[1] & ~ADDS_FLAG_UNSYNCED)
        return EPROTO;
    found->ledger = get_i64(p + ADDS_AT_LEDGER);
    found->first = get_i64(p + ADDS_AT_FIRST);
    found->last = get_i64(p + ADDS_AT_LAST);
    found->records = p + ADDS_REQUEST_BYTES;
    memcpy(&record, found->records, sizeof(record));
    if (record.ledger != found->ledger || record.entry != found->first || found->first != found->last ||
        record.lac < -1 || record.lac >= record.entry || record.head.kind != REPLOG_KIND_DATA ||
        ((record.head.length + REPLOG_ALIGN - 1u) & ~(REPLOG_ALIGN - 1u)) != found->size)
        return EPROTO;
    found->lac = record.lac;
    if (check_crc && replog_crc(record.head.length, found->records + REPLOG_CRC_FROM,
                                (size_t)(found->size - REPLOG_CRC_FROM)) != record.head.crc)
        return EBADMSG;
    return 0;
}

/* ---- the bookie, under the lock -------------------------------------------------------------------------------- */

static adds_ledger *ledger_of(adds_log *log, const request *wanted) {
    for (int i = 0; i < log->count; i++)
        if (log->ledgers[i].ledger == wanted->ledger)
            return &log->ledgers[i];
    if (log->count == ADDS_LEDGERS_MAX)
        return NULL;
    adds_ledger *made = &log->ledgers[log->count++];
    made->ledger = wanted->ledger;
    made->last = made->lac = -1;
    memcpy(made->key, wanted->frame + ADDS_FRAME_HEADER + ADDS_AT_KEY, ADDS_KEY_BYTES);
    return made;
}

/* Wait until all places before a position are filled. */
static void wait_shown(adds_log *log, int64_t position) {
    while (__atomic_load_n(&log->shown, __ATOMIC_ACQUIRE) < position)
        sched_yield();
}

/* Fence, key and order are looked at before anything changes. */
static int take(adds_log *log, request *wanted, int64_t *lac) {
    adds_ledger *ledger = ledger_of(log, wanted);
    if (ledger == NULL || ledger->fenced || wanted->first <= ledger->last ||
        memcmp(ledger->key, wanted->frame + ADDS_FRAME_HEADER + ADDS_AT_KEY, ADDS_KEY_BYTES) != 0)
        return EPROTO;
    if (log->at + wanted->size > log->size)
        log->at = REPLOG_SEGMENT_HEADER;
    wanted->place = log->memory + log->at;
    if (log->locked == ADDS_COPY) {
        memcpy(wanted->place, wanted->records, (size_t)wanted->size);
    } else if (log->locked == ADDS_CRC) {
        replog_record head;
        memcpy(&head, wanted->records, sizeof(head));
        memcpy(wanted->place, wanted->records, REPLOG_CRC_FROM);
        if (replog_crc_copy(head.length, wanted->place + REPLOG_CRC_FROM, wanted->records + REPLOG_CRC_FROM,
                            (size_t)(wanted->size - REPLOG_CRC_FROM), 0) != head.crc)
            return EBADMSG;
    }
    log->at += wanted->size;
    log->end += wanted->size;
    log->records++;
    ledger->last = wanted->last;
    if (wanted->lac > ledger->lac)
        ledger->lac = wanted->lac;
    *lac = ledger->lac;
    return 0;
}

static void put_ok(uint8_t *p, const request *answered, int64_t lac) {
    const uint32_t size = htobe32(ADDS_REPLY_BYTES);
    put_i64(p, answered->number);
    memcpy(p + 8, &size, 4);
    p += ADDS_FRAME_HEADER;
    memset(p, 0, 8);
    put_i64(p + ADDS_AT_LEDGER, answered->ledger);
    put_i64(p + ADDS_AT_FIRST, answered->first);
    put_i64(p + ADDS_AT_LAST, answered->last);
    put_i64(p + ADDS_REPLY_AT_LAC, lac);
}

static int take_all(adds_log *log, request *requests, int count, uint8_t *replies) {
    int error = 0, taken = 0;
    pthread_mutex_lock(&log->lock);
    const int64_t began = limit_now_ns(), start = log->end;
    while (taken < count) {
        int64_t lac = -1;
        if ((error = take(log, &requests[taken], &lac)) != 0)
            break;
        put_ok(replies + taken * REPLY_FRAME, &requests[taken], lac);
        taken++;
    }
    const int64_t end = log->end;
    log->held_ns += limit_now_ns() - began;
    log->takings++;
    if (log->locked != ADDS_PLACE)
        __atomic_store_n(&log->shown, end, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&log->lock);
    if (log->locked == ADDS_PLACE) { /* a crash must find no gap before an entry that was acknowledged */
        for (int i = 0; i < taken; i++)
            memcpy(requests[i].place, requests[i].records, (size_t)requests[i].size);
        wait_shown(log, start);
        __atomic_store_n(&log->shown, end, __ATOMIC_RELEASE);
    }
    return error;
}

/* ---- connections ----------------------------------------------------------------------------------------------- */

static int answer(int socket, const uint8_t *replies, int64_t size) {
    while (size > 0) {
        ssize_t sent = send(socket, replies, (size_t)size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return errno;
        if (sent > 0) {
            replies += sent;
            size -= sent;
        }
    }
    return 0;
}

/* Receive once, and answer all that is complete. Returns 0 or errno; `gone`: the peer has closed. */
static int receive(adds_log *log, connection *from, adds_round round, void *context, int *gone) {
    uint8_t replies[ADDS_WINDOW_MAX * REPLY_FRAME];
    request requests[ADDS_WINDOW_MAX];
    ssize_t got = recv(from->socket, from->data + from->have, sizeof(from->data) - (size_t)from->have, MSG_DONTWAIT);
    if (got <= 0) {
        *gone = got == 0;
        return got == 0 ? (from->have ? EPROTO : 0) : (errno == EAGAIN || errno == EINTR ? 0 : errno);
    }
    from->have += got;
    int64_t at = 0, bytes;
    int more = 1;
    while (more) {
        int count = 0;
        while (count < ADDS_WINDOW_MAX && (bytes = frame_bytes(from->data + at, from->have - at)) > 0) {
            int error = parse(from->data + at, bytes, log->locked != ADDS_CRC, &requests[count++]);
            if (error)
                return error;
            at += bytes;
        }
        more = count == ADDS_WINDOW_MAX;
        if (!count)
            break;
        int error = take_all(log, requests, count, replies);
        if (error)
            return error;
        if (round != NULL)
            round(context);
        if ((error = answer(from->socket, replies, (int64_t)count * REPLY_FRAME)) != 0)
            return error;
    }
    memmove(from->data, from->data + at, (size_t)(from->have - at));
    from->have -= at;
    return from->have == sizeof(from->data) ? EMSGSIZE : 0;
}

static int serve(adds_log *log, connection *all, int count, int poller, adds_round round, void *context) {
    struct epoll_event events[ADDS_LEDGERS_MAX];
    for (int left = count; left > 0;) {
        int ready = epoll_wait(poller, events, ADDS_LEDGERS_MAX, -1);
        if (ready < 0 && errno != EINTR)
            return errno;
        for (int i = 0; i < ready; i++) {
            connection *from = &all[events[i].data.u32];
            int gone = 0, error = receive(log, from, round, context, &gone);
            if (error)
                return error;
            if (gone) {
                epoll_ctl(poller, EPOLL_CTL_DEL, from->socket, NULL);
                left--;
            }
        }
    }
    return 0;
}

int adds_serve(adds_log *log, const int *sockets, int count, adds_round round, void *context) {
    connection *all = calloc((size_t)count, sizeof(*all));
    int poller = epoll_create1(EPOLL_CLOEXEC), error = all == NULL ? ENOMEM : poller < 0 ? errno : 0;
    for (int i = 0; i < count && !error; i++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        all[i].socket = sockets[i];
        if (epoll_ctl(poller, EPOLL_CTL_ADD, sockets[i], &wanted) < 0)
            error = errno;
    }
    if (!error)
        error = serve(log, all, count, poller, round, context);
    if (poller >= 0)
        close(poller);
    free(all);
    return error;
}

/* ---- what was stored ------------------------------------------------------------------------------------------- */

int64_t adds_check(const adds_log *log, const adds_values *values) {
    const int64_t stride = adds_stride(values->size), count = (log->at - REPLOG_SEGMENT_HEADER) / stride;
    int64_t next[ADDS_LEDGERS_MAX], total = 0;
    if (limit_scan(log->memory, REPLOG_SEGMENT_HEADER, log->at) != count)
        return -1;
    for (int k = 0; k < log->count; k++) {
        next[k] = log->ledgers[k].last;
        total += log->ledgers[k].last + 1;
    }
    for (int64_t i = count - 1; i >= 0; i--) { /* backwards: the last lap ends with the last entries */
        const replog_long *record = (const replog_long *)(log->memory + REPLOG_SEGMENT_HEADER + i * stride);
        const uint8_t *value = values->start + record->entry % values->count * values->size;
        int k = 0;
        while (k < log->count && log->ledgers[k].ledger != record->ledger)
            k++;
        if (k == log->count || record->entry != next[k] || memcmp(record + 1, value, (size_t)values->size) != 0)
            return -1;
        next[k]--;
    }
    return total == log->records ? count : -1;
}
