/* Part of crc32c.c: CRC-32C with the CPU's own instruction, on three streams. The instruction takes three cycles, but
 * the CPU can start one in each cycle. So three neighbouring parts of the message are computed at the same time. */
#ifndef REPLOG_CRC32C_STREAMS_H
#define REPLOG_CRC32C_STREAMS_H

#include "crc32c_words.h"

enum { LONG_STREAM = 512, SHORT_STREAM = 64 }; /* bytes, found by measurement */

static uint32_t over_long[4][256]; /* over_long[k][b]: the state whose byte k is b, after LONG_STREAM zeros */
static uint32_t over_short[4][256];

static void fill_over(uint32_t over[4][256], size_t zeros)
{
    uint32_t moved = move_by_bytes(1u << 31, zeros);
    for (int k = 3; k >= 0; k--) {
        for (uint32_t bit = 0x80; bit > 0; bit >>= 1, moved = move_by_bit(moved))
            over[k][bit] = moved;
        for (uint32_t byte = 1; byte < 256; byte++)
            over[k][byte] = over[k][byte & (byte - 1)] ^ over[k][byte & -byte];
    }
}

static void fill_overs(void)
{
    fill_over(over_long, LONG_STREAM);
    fill_over(over_short, SHORT_STREAM);
}

#if defined(__x86_64__)
#define STEPPING __attribute__((target("sse4.2")))
STEPPING INLINE uint64_t step(uint64_t state, uint64_t word) { return _mm_crc32_u64(state, word); }
STEPPING INLINE uint64_t half_step(uint64_t state, uint64_t half)
{
    return _mm_crc32_u32((uint32_t)state, (uint32_t)half);
}
#else
#define STEPPING __attribute__((target("+crc")))
STEPPING INLINE uint64_t step(uint64_t state, uint64_t word) { return __crc32cd((uint32_t)state, word); }
STEPPING INLINE uint64_t half_step(uint64_t state, uint64_t half)
{
    return __crc32cw((uint32_t)state, (uint32_t)half);
}
#endif

typedef struct {
    uint64_t a, b, c;
} states;

/* Return three states, each after `length` bytes: the first part continues from `crc`, the second and the third start
 * from 0. */
STEPPING INLINE states three(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t length)
{
    states s = {crc, 0, 0};
    for (size_t i = 0, j = length, k = 2 * length; i < length; i += 8, j += 8, k += 8) {
        uint64_t x = load64(src + i), y = load64(src + j), z = load64(src + k);
        if (copy) {
            store64(dst + i, x);
            store64(dst + j, y);
            store64(dst + k, z);
        }
        s.a = step(s.a, x);
        s.b = step(s.b, y);
        s.c = step(s.c, z);
    }
    return s;
}

INLINE uint32_t moved(uint32_t over[4][256], uint64_t state)
{
    return over[0][state & 0xff] ^ over[1][state >> 8 & 0xff] ^ over[2][state >> 16 & 0xff] ^ over[3][state >> 24];
}

STEPPING INLINE uint32_t streams(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    while (n >= 3 * LONG_STREAM) {
        states s = three(copy, crc, dst, src, LONG_STREAM);
        crc = moved(over_long, moved(over_long, s.a) ^ s.b) ^ (uint32_t)s.c;
        advance(copy, &dst, &src, &n, 3 * LONG_STREAM);
    }
    while (n >= 3 * SHORT_STREAM) {
        states s = three(copy, crc, dst, src, SHORT_STREAM);
        crc = moved(over_short, moved(over_short, s.a) ^ s.b) ^ (uint32_t)s.c;
        advance(copy, &dst, &src, &n, 3 * SHORT_STREAM);
    }
    return words(step, half_step, copy, crc, dst, src, n, pad);
}

STEPPING static uint32_t crc_streams(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~streams(false, ~crc, NULL, p, n, 0);
}

STEPPING static uint32_t copy_streams(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    return ~streams(true, ~crc, dst, src, n, pad);
}

#endif
