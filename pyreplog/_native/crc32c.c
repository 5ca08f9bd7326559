/* CRC-32C kernels, and the choice of one when the library is loaded.
 *
 * A state is the CRC without the inversions before and after it: the message so far times x^32, modulo P, with bit 31
 * as the coefficient of x^0. It is linear, which everything here uses: the state after A and then B is (the state
 * after A, moved over |B| zero bytes) xor (the state after B alone, started from 0).
 *
 * The copying kernels store the very words that they take the CRC of, so that it is right for what was stored even when
 * somebody changes the source meanwhile. `copy` is a constant of every caller; without it `dst` is NULL. */
#include "crc32c.h"

#include <stdlib.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "crc32c_words.h"

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
