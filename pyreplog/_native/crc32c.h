/* CRC-32C (Castagnoli) by the fastest kernel of this CPU, alone or in one pass with a copy. */
#ifndef REPLOG_CRC32C_H
#define REPLOG_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* Return the CRC of p[0..n), continued from `crc` (0 to start), as the crc32c package and zlib.crc32 do. */
typedef uint32_t (*replog_crc_fn)(uint32_t crc, const uint8_t *p, size_t n);

/* Copy src[0..n) to dst, append `pad` (0..7) zero bytes, and return the CRC of both. */
typedef uint32_t (*replog_crc_copy_fn)(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad);

typedef struct {
    const char *name;
    int supported; /* whether this CPU can run it; set when the library is loaded */
    replog_crc_fn crc;
    replog_crc_copy_fn copy;
} replog_crc_kernel;

/* Fastest first; the last one is portable and always supported. */
extern replog_crc_kernel replog_crc_kernels[];
extern const size_t replog_crc_kernel_count;

/* The fastest supported kernel, chosen when the library is loaded. */
extern replog_crc_fn replog_crc;
extern replog_crc_copy_fn replog_crc_copy;
#endif
