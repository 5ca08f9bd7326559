/* Part of crc32c.c: CRC-32C with carry-less products, for x86-64.
 *
 * moves[n] = x^(8n-33) mod P moves a state over n zero bytes: step(0, state * moves[n]) = state * x^8n. The exponent
 * is smaller by 33 because the step multiplies by x^32, and the bit order multiplies each product of two 32-bit
 * numbers by x.
 *
 * Folding moves 16-byte lanes of the message itself, without the step. A lane has the same effect as the lane
 * (its first half) * moves[n+8] + (its second half) * moves[n], which lies n bytes later. So the CPU adds this product
 * to the lane at that place. */
#ifndef REPLOG_CRC32C_CLMUL_H
#define REPLOG_CRC32C_CLMUL_H

#include "crc32c_words.h"
#include "crc32c_streams.h"

enum {
    STREAM_MAX = 512,
    MOVES = 2 * STREAM_MAX,
    FOLD_MAX = 256,  /* the longest distance, in bytes, over which a lane is folded */
    AVX2_MIN = 1024, /* this limit and those below are in bytes, and were found by measurement */
    VECTORS_MIN = 25,
    VECTORS_MAX = 256,
    STREAM_MIN = 32768,
};
_Static_assert(VECTORS_MAX + 7 <= MOVES && FOLD_MAX + 8 <= MOVES, "every distance has its multiplier");

static uint32_t moves[MOVES + 1];
static uint64_t folds[FOLD_MAX / 16 + 1][2]; /* folds[i] moves FOLD_MAX - 16i bytes; the last is 0 */

static void fill_moves(void)
{
    uint32_t power = 1u << 24; /* x^7, for n = 5; a smaller n would have a negative exponent */
    for (size_t n = 5; n <= MOVES; n++) {
        moves[n] = power;
        power = move_by_bytes(power, 1);
    }
    for (size_t n = 16; n <= FOLD_MAX; n += 16) {
        folds[(FOLD_MAX - n) / 16][0] = moves[n + 8];
        folds[(FOLD_MAX - n) / 16][1] = moves[n];
    }
}

/* Return the address of the multipliers for n bytes; those for n-16, n-32, ... bytes follow. */
INLINE const void *multipliers(size_t n) { return folds[(FOLD_MAX - n) / 16]; }

#define PCLMUL __attribute__((target("sse4.2,pclmul")))
#define AVX2 __attribute__((target("sse4.2,pclmul,bmi2,avx2,vpclmulqdq")))
#define AVX512 __attribute__((target("sse4.2,pclmul,bmi2,avx2,vpclmulqdq,avx512f,avx512vl,avx512dq,avx512bw")))

PCLMUL INLINE uint64_t product(uint64_t state, uint32_t by)
{
    __m128i a = _mm_cvtsi64_si128((long long)state), b = _mm_cvtsi32_si128((int)by);
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0));
}

/* Three streams of any equal length: most records take one round. Folding 16-byte vectors would be no faster: each
 * vector needs two products, and a CPU without wider vectors starts at most one product a cycle. */
PCLMUL INLINE uint32_t even_streams(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    while (n >= 3 * SHORT_STREAM) {
        size_t length = n < 3 * STREAM_MAX ? n / 24 * 8 : STREAM_MAX;
        states s = three(copy, crc, dst, src, length);
        crc = (uint32_t)(step(0, product(s.a, moves[2 * length]) ^ product(s.b, moves[length])) ^ s.c);
        advance(copy, &dst, &src, &n, 3 * length);
    }
    return words(step, half_step, copy, crc, dst, src, n, pad);
}

PCLMUL static uint32_t crc_pclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~even_streams(false, ~crc, NULL, p, n, 0);
}

PCLMUL static uint32_t copy_pclmul(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    return ~even_streams(true, ~crc, dst, src, n, pad);
}

/* Return the state after the last lane; `late` is a product that is added to the second half of the lane. */
PCLMUL INLINE uint32_t state_of(__m128i lane, uint64_t late)
{
    uint64_t state = step(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return (uint32_t)step(state, (uint64_t)_mm_extract_epi64(lane, 1) ^ late);
}

AVX2 INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }

AVX2 INLINE __m256i fold256(__m256i x, __m256i by)
{
    return _mm256_clmulepi64_epi128(x, by, 0x00) ^ _mm256_clmulepi64_epi128(x, by, 0x11);
}

AVX2 INLINE __m256i take256(bool copy, uint8_t *dst, const uint8_t *src, size_t at)
{
    __m256i x = load256(src + at);
    if (copy)
        _mm256_storeu_si256((__m256i_u *)(dst + at), x);
    return x;
}

AVX2 INLINE uint32_t blocks128(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    if (n >= AVX2_MIN) {
        const __m256i by = _mm256_broadcastsi128_si256(_mm_loadu_si128(multipliers(128)));
        __m256i a = take256(copy, dst, src, 0), b = take256(copy, dst, src, 32);
        __m256i c = take256(copy, dst, src, 64), d = take256(copy, dst, src, 96);
        a ^= _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc));
        while (advance(copy, &dst, &src, &n, 128), n >= 128) {
            a = fold256(a, by) ^ take256(copy, dst, src, 0);
            b = fold256(b, by) ^ take256(copy, dst, src, 32);
            c = fold256(c, by) ^ take256(copy, dst, src, 64);
            d = fold256(d, by) ^ take256(copy, dst, src, 96);
        }
        __m256i sum = fold256(a, load256(multipliers(112))) ^ fold256(b, load256(multipliers(80))) ^
                      fold256(c, load256(multipliers(48))) ^ fold256(d, load256(multipliers(16)));
        __m128i lane = _mm256_castsi256_si128(sum) ^ _mm256_extracti128_si256(sum, 1);
        crc = state_of(lane ^ _mm256_extracti128_si256(d, 1), 0);
    }
    return even_streams(copy, crc, dst, src, n, pad);
}

AVX2 static uint32_t crc_avx2(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~blocks128(false, ~crc, NULL, p, n, 0);
}

AVX2 static uint32_t copy_avx2(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    return ~blocks128(true, ~crc, dst, src, n, pad);
}

AVX512 INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

enum store { NONE, CACHED, STREAMED };

AVX512 INLINE __m512i take512(enum store store, uint8_t *dst, const uint8_t *src, size_t at)
{
    __m512i x = load512(src + at);
    if (store == CACHED)
        _mm512_storeu_si512(dst + at, x);
    else if (store == STREAMED)
        _mm512_stream_si512((__m512i *)(dst + at), x);
    return x;
}

/* Fold x, and add the lanes `there`. */
AVX512 INLINE __m512i fold512(__m512i x, __m512i by, __m512i there)
{
    const __m512i second = _mm512_clmulepi64_epi128(x, by, 0x11);
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), second, there, 0x96);
}

/* Fold all lanes of x into one lane; `sum` was already folded to the place of the last lane. */
AVX512 INLINE __m128i last_lane(__m512i x, __m512i sum)
{
    sum = fold512(x, load512(multipliers(48)), sum);
    __m256i half = _mm512_castsi512_si256(sum) ^ _mm512_extracti64x4_epi64(sum, 1);
    return _mm256_castsi256_si128(half) ^ _mm256_extracti128_si256(half, 1) ^ _mm512_extracti64x2_epi64(x, 3);
}

/* A masked load or store touches no byte outside its mask, so its address may lie `before` bytes in front of the
 * buffer. */
AVX512 INLINE __m512i load_masked(const uint8_t *p, size_t before, __mmask64 mask)
{
    return _mm512_maskz_loadu_epi8(mask, (const void *)((uintptr_t)p - before));
}

AVX512 INLINE void store_masked(uint8_t *p, size_t before, __mmask64 mask, __m512i x)
{
    _mm512_mask_storeu_epi8((void *)((uintptr_t)p - before), mask, x);
}

/* The CRC of a message of up to VECTORS_MAX bytes, in whole vectors: zeros fill the first one from the left, and the
 * last one ends with the padding. Most calls are for records of varying size, where a mispredicted branch costs as much
 * as 100 bytes. So the number of vectors is the only branch, and only the last step waits for the state `crc`. */
AVX512 INLINE uint32_t vectors(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    const __m512i by = _mm512_broadcast_i32x4(_mm_loadu_si128(multipliers(64)));
    const size_t length = n + pad, before = -length % 64;
    const __mmask64 first = ~0ull << before, last = ~0ull >> pad;
    __m512i x = load_masked(src, before, length <= 64 ? first & last : first);
    if (copy)
        store_masked(dst, before, first, x);
    if (length > 64) {
        size_t at = 64 - before;
        for (; at < length - 64; at += 64)
            x = fold512(x, by, take512(copy ? CACHED : NONE, dst, src, at));
        __m512i there = _mm512_maskz_loadu_epi8(last, src + at);
        if (copy)
            _mm512_storeu_si512(dst + at, there);
        x = fold512(x, by, there);
    }
    return state_of(last_lane(x, _mm512_setzero_si512()), product(crc, moves[length]));
}

AVX512 INLINE uint32_t short_message(bool copy, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    if (n >= VECTORS_MIN)
        return vectors(copy, crc, dst, src, n, pad);
    return words(step, half_step, copy, crc, dst, src, n, pad);
}

AVX512 INLINE uint32_t long_message(enum store store, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    const __m512i by = _mm512_broadcast_i32x4(_mm_loadu_si128(multipliers(256)));
    __m512i a = take512(store, dst, src, 0), b = take512(store, dst, src, 64);
    __m512i c = take512(store, dst, src, 128), d = take512(store, dst, src, 192);
    a ^= _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
    while (advance(store != NONE, &dst, &src, &n, 256), n >= 256) {
        a = fold512(a, by, take512(store, dst, src, 0));
        b = fold512(b, by, take512(store, dst, src, 64));
        c = fold512(c, by, take512(store, dst, src, 128));
        d = fold512(d, by, take512(store, dst, src, 192));
    }
    __m512i sum = fold512(a, load512(multipliers(240)), _mm512_setzero_si512());
    sum = fold512(b, load512(multipliers(176)), sum);
    sum = fold512(c, load512(multipliers(112)), sum);
    crc = state_of(last_lane(d, sum), 0);
    return n + pad ? short_message(store != NONE, crc, dst, src, n, pad) : crc;
}

/* Not inlined: inlined, each short message would pay for saving the registers of the long path. */
AVX512 __attribute__((noinline)) static uint32_t crc_long(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~long_message(NONE, ~crc, NULL, p, n, 0);
}

AVX512 __attribute__((noinline)) static uint32_t copy_long(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n,
                                                           size_t pad)
{
    return ~long_message(CACHED, ~crc, dst, src, n, pad);
}

/* Stores that bypass the cache. A log goes to memory that is not in the cache, and a bypassing store of a whole cache
 * line does not fetch the line first. From STREAM_MIN bytes on this is faster, although a reader that follows at once
 * has to read from memory. */
AVX512 __attribute__((noinline)) static uint32_t copy_streamed(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n,
                                                               size_t pad)
{
    const size_t head = -(uintptr_t)dst % 64;
    crc = short_message(true, ~crc, dst, src, head, 0);
    crc = ~long_message(STREAMED, crc, dst + head, src + head, n - head, pad);
    _mm_sfence();
    return crc;
}

AVX512 static uint32_t crc_avx512(uint32_t crc, const uint8_t *p, size_t n)
{
    return n > VECTORS_MAX ? crc_long(crc, p, n) : ~short_message(false, ~crc, NULL, p, n, 0);
}

AVX512 static uint32_t copy_avx512(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad)
{
    if (n <= VECTORS_MAX)
        return ~short_message(true, ~crc, dst, src, n, pad);
    return n < STREAM_MIN ? copy_long(crc, dst, src, n, pad) : copy_streamed(crc, dst, src, n, pad);
}

#endif
