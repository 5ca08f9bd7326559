/* The AVX-512 instructions that crc32c_clmul.h uses, in plain C and for AVX2: so that its widest kernel runs, and is
 * checked, on CPUs that have none (nor does QEMU emulate them). Included before anything else: -include. */
#include <immintrin.h>
#include <stddef.h>

typedef long long lanes __attribute__((vector_size(64)));

/* Who asked for the wide instructions gets what is here. */
#define __m512i lanes
#define target(features) target("sse4.2,pclmul,bmi2,avx2,vpclmulqdq")
#define __builtin_cpu_supports(feature) \
    (__builtin_strncmp(feature, "avx512", 6) == 0 || __builtin_cpu_supports(feature))
#define SHIM static inline __attribute__((always_inline, target("sse4.2,pclmul,bmi2,avx2,vpclmulqdq")))

SHIM lanes shim_load(const void *p)
{
    lanes x;
    __builtin_memcpy(&x, p, 64);
    return x;
}

SHIM void shim_store(void *p, lanes x) { __builtin_memcpy(p, &x, 64); }

/* Streaming stores need an address that is a multiple of 64. */
SHIM void shim_stream(void *p, lanes x)
{
    if ((size_t)p % 64)
        __builtin_trap();
    shim_store(p, x);
}

SHIM lanes shim_maskz_load(unsigned long long mask, const void *p)
{
    unsigned char bytes[64];
    for (int i = 0; i < 64; i++)
        bytes[i] = mask >> i & 1 ? ((const unsigned char *)p)[i] : 0;
    return shim_load(bytes);
}

SHIM void shim_mask_store(void *p, unsigned long long mask, lanes x)
{
    unsigned char bytes[64];
    shim_store(bytes, x);
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1)
            ((unsigned char *)p)[i] = bytes[i];
}

SHIM __m128i shim_lane(lanes x, int i) { return _mm_set_epi64x(x[2 * i + 1], x[2 * i]); }

SHIM lanes shim_of(__m128i a, __m128i b, __m128i c, __m128i d)
{
    return (lanes){a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]};
}

#define SHIM_EACH(operation, x, y, ...) \
    shim_of(operation(shim_lane(x, 0), shim_lane(y, 0), __VA_ARGS__), operation(shim_lane(x, 1), shim_lane(y, 1), __VA_ARGS__), \
            operation(shim_lane(x, 2), shim_lane(y, 2), __VA_ARGS__), operation(shim_lane(x, 3), shim_lane(y, 3), __VA_ARGS__))

#define _mm512_loadu_si512(p) shim_load(p)
#define _mm512_storeu_si512(p, x) shim_store(p, x)
#define _mm512_stream_si512(p, x) shim_stream(p, x)
#define _mm512_maskz_loadu_epi8(mask, p) shim_maskz_load(mask, p)
#define _mm512_mask_storeu_epi8(p, mask, x) shim_mask_store(p, mask, x)
#define _mm512_clmulepi64_epi128(x, y, which) SHIM_EACH(_mm_clmulepi64_si128, x, y, which)
#define _mm512_ternarylogic_epi64(x, y, z, table) ((x) ^ (y) ^ (z)) /* 0x96, the only table there is */
#define _mm512_castsi512_si256(x) _mm256_set_m128i(shim_lane(x, 1), shim_lane(x, 0))
#define _mm512_extracti64x4_epi64(x, half) _mm256_set_m128i(shim_lane(x, 2 * half + 1), shim_lane(x, 2 * half))
#define _mm512_extracti64x2_epi64(x, i) shim_lane(x, i)
#define _mm512_broadcast_i32x4(x) shim_of(x, x, x, x)
#define _mm512_setzero_si512() ((lanes){0})
#define _mm512_zextsi128_si512(x) ((lanes){(x)[0], (x)[1]})
