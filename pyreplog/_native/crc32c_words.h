/* Part of crc32c.c: what its kernels share. Words of the message, tables of a byte, and the kernel that goes word after
 * word. */
#ifndef REPLOG_CRC32C_WORDS_H
#define REPLOG_CRC32C_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of the message are loaded as little-endian numbers");

#define INLINE static inline __attribute__((always_inline))

#define POLYNOMIAL 0x82f63b78u

/* The state after one more word of 8 (or of 4) bytes. */
typedef uint64_t (*step_fn)(uint64_t state, uint64_t word);

static uint32_t slices[8][256]; /* slices[k][b]: the state after byte b and k zero bytes */

static uint32_t move_by_bit(uint32_t state) { return state >> 1 ^ (state & 1 ? POLYNOMIAL : 0); }

static uint32_t move_by_bytes(uint32_t state, size_t zeros)
{
    while (zeros--)
        state = state >> 8 ^ slices[0][state & 0xff];
    return state;
}

static void fill_slices(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        slices[0][byte] = byte;
        for (int bit = 0; bit < 8; bit++)
            slices[0][byte] = move_by_bit(slices[0][byte]);
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            slices[k][byte] = move_by_bytes(slices[k - 1][byte], 1);
}

INLINE uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store64(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }

INLINE void store32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

INLINE void advance(bool copy, uint8_t **dst, const uint8_t **src, size_t *n, size_t by)
{
    *src += by;
    *n -= by;
    if (copy)
        *dst += by;
}

/* Shifts by 0..8 bytes, in two halves because C leaves a shift by 64 bits undefined. */
INLINE uint64_t up(uint64_t v, size_t bytes) { return v << 4 * bytes << 4 * bytes; }
INLINE uint64_t down(uint64_t v, size_t bytes) { return v >> 4 * bytes >> 4 * bytes; }

/* n bytes, n < 8, as a number. */
INLINE uint64_t load_few(const uint8_t *p, size_t n)
{
    if (n >= 4)
        return load32(p) | (uint64_t)load32(p + n - 4) << 8 * (n - 4);
    if (n == 0)
        return 0;
    return p[0] | (uint64_t)p[n / 2] << 8 * (n / 2) | (uint64_t)p[n - 1] << 8 * (n - 1);
}

/* The n low bytes, n < 16, of v and of the zeros above it. */
INLINE void store_few(uint8_t *p, uint64_t v, size_t n)
{
    if (n >= 8) {
        store64(p, v);
        store64(p + n - 8, down(v, n - 8));
    } else if (n >= 4) {
        store32(p, (uint32_t)v);
        store32(p + n - 4, (uint32_t)(v >> 8 * (n - 4)));
    } else if (n > 0) {
        p[0] = (uint8_t)v;
        p[n / 2] = (uint8_t)(v >> 8 * (n / 2));
        p[n - 1] = (uint8_t)(v >> 8 * (n - 1));
    }
}

/* The state after the n low bytes, n < 16, of v (which is 0 above its message bytes) and of the zeros above it.
 *
 * n bytes are a word that begins with 8-n zero bytes, which leave a state of 0 as it is; the part of the state that
 * reaches beyond n bytes is added after the step. So any n takes one step and no branch. */
INLINE uint64_t step_few(step_fn by_word, uint64_t state, uint64_t v, size_t n)
{
    if (n >= 8) {
        state = by_word(state, v);
        v = 0;
        n -= 8;
        if (n == 0)
            return state;
    }
    return by_word(0, up(state ^ v, 8 - n)) ^ down(state, n);
}

/* Word after word: the kernel for short messages, and for what the others leave. */
INLINE uint32_t words(step_fn by_word, step_fn by_half, bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src,
                      size_t n, size_t pad)
{
    uint64_t state = crc, word, rest;
    if (n < 8) {
        rest = load_few(src, n);
        if (copy)
            store_few(dst, rest, n + pad);
        return (uint32_t)step_few(by_word, state, rest, n + pad);
    }
    do {
        word = load64(src);
        if (copy)
            store64(dst, word);
        state = by_word(state, word);
        advance(copy, &dst, &src, &n, 8);
    } while (n >= 8);
    if (n + pad == 0)
        return (uint32_t)state;
    if (n == 4 && pad == 0) { /* the end of every record header */
        uint32_t half = load32(src);
        if (copy)
            store32(dst, half);
        return (uint32_t)by_half(state, half);
    }
    rest = down(load64(src + n - 8), 8 - n);
    if (copy) {
        uint64_t last = down(word, n) | up(rest, 8 - n);
        store64(dst + n - 8, last);
        store64(dst + n + pad - 8, down(last, pad));
    }
    return (uint32_t)step_few(by_word, state, rest, n + pad);
}

INLINE uint64_t step_portable(uint64_t state, uint64_t word)
{
    uint64_t v = state ^ word;
    uint32_t sum = 0;
    for (int k = 0; k < 8; k++)
        sum ^= slices[7 - k][v >> 8 * k & 0xff];
    return sum;
}

INLINE uint64_t half_portable(uint64_t state, uint64_t half) { return step_portable(0, (state ^ half) << 32); }

#endif
