#define _GNU_SOURCE
#include "quorum.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "crc32c.h"
#include "layout.h"
#include "limit.h"

static const uint32_t STAMP = 0x5eed5eed;
static const int64_t LEDGER = 7;

int64_t quorum_stride(int64_t size) { return (REPLOG_LONG_HEADER + size + REPLOG_ALIGN - 1) & ~(int64_t)(REPLOG_ALIGN - 1); }

static void put_record(const quorum_client *client, uint8_t *p, int64_t entry, int64_t lac, int64_t time_us) {
    const quorum_values *values = &client->values;
    const uint32_t length = (uint32_t)(REPLOG_LONG_HEADER + values->size);
    replog_long *record = (replog_long *)p;
    record->head.length = length;
    record->head.stamp = STAMP;
    record->head.kind = REPLOG_KIND_DATA;
    record->head.form = REPLOG_FORMAT_VERSION | REPLOG_FORM_LONG;
    record->head.key_length = 0;
    record->head.time = time_us;
    record->ledger = LEDGER;
    record->entry = entry;
    record->lac = lac;
    record->ledger_bytes = (uint64_t)((entry + 1) * values->size);
    record->ledger_messages = (uint64_t)entry + 1;
    uint32_t crc = replog_crc(length, p + REPLOG_CRC_FROM, REPLOG_LONG_HEADER - REPLOG_CRC_FROM);
    const uint8_t *value = values->start + (entry & (values->count - 1)) * values->size;
    record->head.crc = replog_crc_copy(crc, p + REPLOG_LONG_HEADER, value, (size_t)values->size,
                                       (size_t)(quorum_stride(values->size) - length));
}

/* What one batch takes; positions, and the ring, are in whole batches. */
static int64_t batch_bytes(const quorum_client *client) { return client->batch * quorum_stride(client->values.size); }

static void put_batch(quorum_client *client) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    const int64_t time_us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000, stride = quorum_stride(client->values.size);
    uint8_t *p = client->ring + client->written % client->ring_bytes;
    int64_t entry = client->written / stride;
    const int64_t lac = client->committed / stride - 1;
    for (int64_t i = 0; i < client->batch; i++, p += stride, entry++)
        put_record(client, p, entry, lac, time_us);
    client->written += batch_bytes(client);
}

static int64_t slowest(const quorum_client *client) {
    int64_t low = client->peers[0].acked;
    for (int i = 1; i < client->count; i++)
        if (client->peers[i].acked < low)
            low = client->peers[i].acked;
    return low;
}

/* The position that `quorum` bookies have acknowledged. */
static int64_t confirmed(const quorum_client *client) {
    int64_t best = 0;
    for (int i = 0; i < client->count; i++) {
        int have = 0;
        for (int k = 0; k < client->count; k++)
            have += client->peers[k].acked >= client->peers[i].acked;
        if (have >= client->quorum && client->peers[i].acked > best)
            best = client->peers[i].acked;
    }
    return best;
}

/* Frames hold whole records and do not go round the ring. */
static void begin_frame(const quorum_client *client, quorum_peer *peer) {
    const int64_t stride = quorum_stride(client->values.size), at = peer->sent % client->ring_bytes;
    int64_t size = client->written - peer->sent, most = QUORUM_FRAME_BYTES / stride * stride;
    if (most < stride)
        most = stride;
    if (size > most)
        size = most;
    if (size > client->ring_bytes - at)
        size = client->ring_bytes - at;
    const uint64_t position = (uint64_t)peer->sent;
    const uint32_t length = (uint32_t)size;
    memcpy(peer->header, &position, 8);
    memcpy(peer->header + 8, &length, 4);
    peer->header_left = QUORUM_FRAME_HEADER;
    peer->frame_end = peer->sent + size;
}

/* Send what the socket takes of at most four frames. Returns whether anything went, or -1. */
static int send_frames(quorum_client *client, quorum_peer *peer) {
    int went = 0;
    for (int frames = 0; frames < 4; frames++) {
        if (peer->sent == peer->frame_end && !peer->header_left) {
            if (peer->sent == client->written)
                break;
            begin_frame(client, peer);
        }
        struct iovec parts[2] = {
            {peer->header + QUORUM_FRAME_HEADER - peer->header_left, (size_t)peer->header_left},
            {client->ring + peer->sent % client->ring_bytes, (size_t)(peer->frame_end - peer->sent)},
        };
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t done = sendmsg(peer->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0)
            return errno == EAGAIN ? went : -1;
        went = 1;
        int of_header = done < peer->header_left ? (int)done : peer->header_left;
        peer->header_left -= of_header;
        peer->sent += done - of_header;
        if (peer->sent < peer->frame_end)
            break;
    }
    return went;
}

/* Returns whether acks came, or -1. */
static int take_acks(quorum_peer *peer) {
    ssize_t got = recv(peer->socket, peer->acks + peer->ack_bytes, sizeof(peer->acks) - (size_t)peer->ack_bytes, MSG_DONTWAIT);
    if (got == 0)
        errno = ECONNRESET;
    if (got <= 0)
        return got < 0 && errno == EAGAIN ? 0 : -1;
    peer->ack_bytes += (int)got;
    int whole = peer->ack_bytes / 8 * 8;
    if (whole)
        memcpy(&peer->acked, peer->acks + whole - 8, 8);
    peer->ack_bytes -= whole;
    memmove(peer->acks, peer->acks + whole, (size_t)peer->ack_bytes);
    return 1;
}

static int exchange(quorum_client *client) {
    int progress = 0;
    for (int i = 0; i < client->count; i++) {
        int sent = send_frames(client, &client->peers[i]), taken = sent < 0 ? -1 : take_acks(&client->peers[i]);
        if (taken < 0)
            return -1;
        progress |= sent | taken;
    }
    return progress;
}

static void sleep_until_ready(const quorum_client *client) {
    struct pollfd wanted[QUORUM_PEERS_MAX];
    for (int i = 0; i < client->count; i++) {
        int more = client->peers[i].sent < client->written || client->peers[i].header_left;
        wanted[i] = (struct pollfd){.fd = client->peers[i].socket, .events = (short)(POLLIN | (more ? POLLOUT : 0))};
    }
    poll(wanted, (nfds_t)client->count, 1000);
}

static int may_begin(const quorum_client *client) {
    if (client->in_turn && client->committed < client->written)
        return 0;
    int64_t low = slowest(client), after = client->written + batch_bytes(client);
    return client->in_turn ? after - low <= client->ring_bytes : after - low <= client->window;
}

int quorum_append(quorum_client *client, int64_t batches, int64_t *ns, int64_t *elapsed) {
    const int64_t size = batch_bytes(client), start = client->written, end = start + batches * size;
    const int64_t began = limit_now_ns();
    while (slowest(client) < end) {
        int progress = 0;
        while (client->written < end && may_begin(client)) {
            ns[(client->written - start) / size] = limit_now_ns();
            put_batch(client);
            progress = 1;
            if (client->written - client->peers[0].sent >= QUORUM_FRAME_BYTES)
                break;
        }
        int moved = exchange(client);
        if (moved < 0)
            return errno;
        int64_t before = client->committed, now;
        client->committed = confirmed(client);
        if (client->committed / size > before / size) {
            now = limit_now_ns();
            for (int64_t i = (before - start) / size; i < (client->committed - start) / size; i++)
                ns[i] = now - ns[i];
            *elapsed = now - began;
        } else if (!progress && !moved && !client->spin) {
            sleep_until_ready(client);
        }
    }
    return 0;
}
