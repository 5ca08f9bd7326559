/* The bare limit of a ledger: a client, a few bookies in processes of their own, loopback TCP, our long records. */
#ifndef BENCHMARK_QUORUM_H
#define BENCHMARK_QUORUM_H
#include <stdint.h>

enum { QUORUM_FRAME_HEADER = 12, QUORUM_FRAME_BYTES = 256 << 10, QUORUM_PEERS_MAX = 8, QUORUM_ACKS = 64 };

/* Equal-sized values end to end, written over and over in turn; `count` is a power of two. */
typedef struct {
    const uint8_t *start;
    int64_t size;
    int64_t count;
} quorum_values;

/* A frame is [u64 position][u32 size], then so many bytes of whole records; an ack is a u64, cumulative. */
typedef struct {
    int socket;
    int header_left; /* bytes of `header` that are not sent yet */
    int ack_bytes;   /* of `acks`: the last ack may have arrived in part */
    int64_t sent, frame_end, acked;
    uint8_t header[QUORUM_FRAME_HEADER];
    uint8_t acks[8 * QUORUM_ACKS];
} quorum_peer;

/* quorum_client.c --------------------------------------------------------------------------------------------- */

typedef struct {
    quorum_values values;
    quorum_peer peers[QUORUM_PEERS_MAX];
    int count, quorum; /* bookies, and how many acks commit a batch */
    int in_turn;       /* a batch is begun when the one before is committed */
    int spin;          /* never sleep */
    int64_t batch;     /* records */
    int64_t window;    /* bytes that some bookie has not acknowledged yet */
    uint8_t *ring;     /* of `ring_bytes`, whole batches, more than the window */
    int64_t ring_bytes;
    int64_t written, committed; /* positions */
} quorum_client;

int64_t quorum_stride(int64_t size);

/* Append so many batches; `ns[i]`: from before batch i was encoded until it was committed; `elapsed`: until all were.
 * Returns, with 0 or errno, when every bookie has everything. */
int quorum_append(quorum_client *client, int64_t batches, int64_t *ns, int64_t *elapsed);

/* quorum_bookie.c --------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *memory; /* written over and over, from REPLOG_SEGMENT_HEADER on */
    int64_t size, at;
    int64_t end;     /* position, which is acknowledged */
    int64_t records; /* received so far */
    int fd;          /* synced: `memory` is private, and written to this file; else -1 */
    int64_t synced;  /* offset */
} quorum_log;

/* Serve one client until it goes: every CRC is checked, acks are sent when the bytes are in the log (synced: on disk).
 * Returns 0 or errno; EBADMSG: a record was damaged. */
int quorum_serve(quorum_log *log, int socket, int spin);

/* How many records of the last lap `map` holds; -1: one of them is not what was written. */
int64_t quorum_check(const quorum_log *log, const uint8_t *map, const quorum_values *values);
#endif
