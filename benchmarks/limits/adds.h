/* Plain ADDs of the bookie protocol: a client in C, and the shortest path of a bookie with several I/O threads. */
#ifndef BENCHMARK_ADDS_H
#define BENCHMARK_ADDS_H
#include <pthread.h>
#include <stdint.h>

enum {
    /* FORMAT.md, "Bookie protocol" */
    ADDS_FRAME_HEADER = 12,
    ADDS_REQUEST_BYTES = 48,
    ADDS_REPLY_BYTES = 40,
    ADDS_KEY_BYTES = 16,
    ADDS_AT_LEDGER = 8,
    ADDS_AT_FIRST = 16,
    ADDS_AT_LAST = 24,
    ADDS_AT_KEY = 32,
    ADDS_REPLY_AT_LAC = 32,
    ADDS_KIND_ADD = 1,
    ADDS_FLAG_UNSYNCED = 4,

    ADDS_WINDOW_MAX = 64,
    ADDS_LEDGERS_MAX = 8,
};

/* What is done under the lock besides the checks; each leaves out more than the one before. */
enum adds_locked {
    ADDS_CRC,   /* records are checked while they are copied */
    ADDS_COPY,  /* they are copied; they were checked before */
    ADDS_PLACE, /* their place is reserved; they are copied afterwards, and shown in the order of their places */
};

/* Equal-sized values end to end; entry n of a ledger has number n % count. */
typedef struct {
    const uint8_t *start;
    int64_t size;
    int64_t count;
} adds_values;

int64_t adds_stride(int64_t size);

/* adds_client.c ----------------------------------------------------------------------------------------------- */

/* The writer of one ledger. */
typedef struct {
    adds_values values;
    int socket; /* blocking, behind the handshake */
    int64_t ledger, next;
    uint8_t key[ADDS_KEY_BYTES];
    uint8_t *frames; /* room for ADDS_WINDOW_MAX requests */
} adds_client;

/* Add so many entries, `window` requests at a time without a reply. Returns 0 or errno; EPROTO: a reply is not the OK of
 * the request whose turn it is. */
int adds_append(adds_client *client, int64_t count, int window);

/* adds_bookie.c ----------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t ledger, last, lac;
    int fenced;
    uint8_t key[ADDS_KEY_BYTES];
} adds_ledger;

/* The log of a bookie, and the state of its ledgers, for any number of threads. */
typedef struct {
    pthread_mutex_t lock; /* guards all that follows but `shown` and what is constant */
    enum adds_locked locked;
    uint8_t *memory; /* written over and over, from REPLOG_SEGMENT_HEADER on */
    int64_t size, at, records;
    int64_t end;     /* position behind the last place that is taken */
    int64_t shown;   /* atomic: all places before this position are filled; no reply leaves before that */
    adds_ledger ledgers[ADDS_LEDGERS_MAX];
    int count;
    int64_t held_ns, takings; /* how long the lock was held, and how often it was taken */
} adds_log;

/* Called once for each receive that completed requests, before their replies leave. */
typedef void (*adds_round)(void *context);

void adds_init(adds_log *log, uint8_t *memory, int64_t size, enum adds_locked locked);

/* Serve so many connections in this thread until all have gone. round: NULL: none. Returns 0 or errno; EBADMSG: a record
 * was damaged; EPROTO: a request is no plain ADD that the bookie may take. */
int adds_serve(adds_log *log, const int *sockets, int count, adds_round round, void *context);

/* How many records the last lap has, where the entries of each ledger follow each other up to its last; -1: one of them
 * is not what was written. */
int64_t adds_check(const adds_log *log, const adds_values *values);
#endif
