/* CRC-32C kernels, and the choice of one when the library is loaded.
 *
 * A state is the CRC without the inversions before and after it: the message so far times x^32, modulo P, with bit 31
 * as the coefficient of x^0. It is linear, which everything here uses: the state after A and then B is (the state
 * after A, moved over |B| zero bytes) xor (the state after B alone, started from 0).
 *
 * The copying kernels store the very words that they take the CRC of, so that it is right for what was stored even when
 * somebody changes the source meanwhile. `copy` is a constant of every caller; without it `dst` is NULL. */
#include "crc32c.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
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
INLINE uint64_t step_few(step_fn step, uint64_t state, uint64_t v, size_t n)
{
    if (n >= 8) {
        state = step(state, v);
        v = 0;
        n -= 8;
        if (n == 0)
            return state;
    }
    return step(0, up(state ^ v, 8 - n)) ^ down(state, n);
}

/* Word after word: the kernel for short messages, and for what the others leave. */
INLINE uint32_t words(step_fn step, step_fn half_step, bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src,
                      size_t n, size_t pad)
{
    uint64_t state = crc, word, rest;
    if (n < 8) {
        rest = load_few(src, n);
        if (copy)
            store_few(dst, rest, n + pad);
        return (uint32_t)step_few(step, state, rest, n + pad);
    }
    do {
        word = load64(src);
        if (copy)
            store64(dst, word);
        state = step(state, word);
        advance(copy, &dst, &src, &n, 8);
    } while (n >= 8);
    if (n + pad == 0)
        return (uint32_t)state;
    if (n == 4 && pad == 0) { /* the end of every record header */
        uint32_t half = load32(src);
        if (copy)
            store32(dst, half);
        return (uint32_t)half_step(state, half);
    }
    rest = down(load64(src + n - 8), 8 - n);
    if (copy) {
        uint64_t last = down(word, n) | up(rest, 8 - n);
        store64(dst + n - 8, last);
        store64(dst + n + pad - 8, down(last, pad));
    }
    return (uint32_t)step_few(step, state, rest, n + pad);
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

static uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~words(step_portable, half_portable, false, ~crc, NULL, p, n, 0);
}

static uint32_t copy_portable(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    return ~words(step_portable, half_portable, true, ~crc, dst, src, n, pad);
}

#if defined(__x86_64__) || defined(__aarch64__)
#include "crc32c_streams.h"
#endif
#if defined(__x86_64__)
#include "crc32c_clmul.h"
#endif

replog_crc_kernel replog_crc_kernels[] = {
#if defined(__x86_64__)
    {"avx512", 0, crc_avx512, copy_avx512},
    {"avx2", 0, crc_avx2, copy_avx2},
    {"pclmul", 0, crc_pclmul, copy_pclmul},
    {"sse42", 0, crc_streams, copy_streams},
#elif defined(__aarch64__)
    {"armv8", 0, crc_streams, copy_streams},
#endif
    {"portable", 1, crc_portable, copy_portable},
};
const size_t replog_crc_kernel_count = sizeof replog_crc_kernels / sizeof *replog_crc_kernels;

replog_crc_fn replog_crc = crc_portable;
replog_crc_copy_fn replog_crc_copy = copy_portable;

static void detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int sse42 = __builtin_cpu_supports("sse4.2");
    int pclmul = sse42 && __builtin_cpu_supports("pclmul");
    int avx2 = pclmul && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("bmi2");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    replog_crc_kernels[0].supported = avx512;
    replog_crc_kernels[1].supported = avx2;
    replog_crc_kernels[2].supported = pclmul;
    replog_crc_kernels[3].supported = sse42;
#elif defined(__aarch64__)
    replog_crc_kernels[0].supported = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

/* The kernel that PYREPLOG_CRC32C names, when this CPU has it; else the fastest. */
static void choose(void)
{
    const char *wanted = getenv("PYREPLOG_CRC32C");
    const replog_crc_kernel *chosen = NULL;
    for (size_t i = 0; i < replog_crc_kernel_count; i++) {
        const replog_crc_kernel *kernel = &replog_crc_kernels[i];
        if (kernel->supported && (!chosen || (wanted && strcmp(wanted, kernel->name) == 0)))
            chosen = kernel;
    }
    replog_crc = chosen->crc;
    replog_crc_copy = chosen->copy;
}

__attribute__((constructor)) static void prepare(void)
{
    fill_slices();
#if defined(__x86_64__) || defined(__aarch64__)
    fill_overs();
#endif
#if defined(__x86_64__)
    fill_moves();
#endif
    detect();
    choose();
}
