/* Bare limits: the bytes a log moves, moved by C alone. Same record layout (layout.h), same CRC kernels (crc32c.h). */
#ifndef BENCHMARK_LIMIT_H
#define BENCHMARK_LIMIT_H
#include <stddef.h>
#include <stdint.h>

/* Equal-sized values that are written over and over in turn; `count` is a power of two. */
typedef struct {
    const uint8_t **start;
    int64_t size;
    int64_t count;
} limit_values;

/* A mapped file written over and over: a recycled segment. Records begin at REPLOG_SEGMENT_HEADER. */
typedef struct {
    uint8_t *map;
    int64_t size;
    int64_t at;       /* where the next record goes */
    uint32_t written; /* records so far, which is the number of the next one */
} limit_area;

/* encode.c ---------------------------------------------------------------------------------------------------- */

/* Append `count` records: header, CRC and copy in one pass; the coarse clock is read every `per_clock` records. */
void limit_encode(limit_area *area, const limit_values *values, int64_t count, int64_t per_clock);

/* glibc memcpy of `count` values to where their records would lie. */
void limit_copy(limit_area *area, const limit_values *values, int64_t count);

/* Number of records (copies) of the last lap that are intact, or -1 when one is not. */
int64_t limit_check_encoded(const limit_area *area, const limit_values *values);
int64_t limit_check_copied(const limit_area *area, const limit_values *values);

/* Verify the CRC of each record in map[start, stop); how many, or -1 when one is not intact. */
int64_t limit_scan(const uint8_t *map, int64_t start, int64_t stop);

/* disk.c ------------------------------------------------------------------------------------------------------ */

/* `count` times pwrite of `size` bytes and fdatasync, one behind the other from `offset` on; nanoseconds of each.
 * Returns 0 or errno. */
int limit_synced_writes(int fd, const uint8_t *data, int64_t size, int64_t offset, int64_t count, int64_t *ns);

/* wake.c ------------------------------------------------------------------------------------------------------ */

/* One shared page between two processes. */
typedef struct {
    uint32_t rung;     /* futex word */
    uint32_t sleeping;
    int64_t stamp;     /* CLOCK_MONOTONIC, ns, when the bell was rung */
} limit_bell;

void limit_ring(limit_bell *bell);

/* Sleep until the bell is rung once more than `seen`; nanoseconds from the ringing to being awake. */
int64_t limit_hear(limit_bell *bell, uint32_t seen);

/* Ask the scheduler for slices of `ns` for this thread (Linux 6.12; before, it is ignored). Returns 0 or errno. */
int limit_set_slice(int64_t ns);

int64_t limit_now_ns(void);
#endif
