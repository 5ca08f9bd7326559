/* CRC-32C (Castagnoli), fastest kernel of this CPU, and copy + CRC in one pass. */
#ifndef REPLOG_CRC32C_H
#define REPLOG_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* CRC of p[0..n) continued from `crc` (0 to start): same convention as the crc32c package and zlib.crc32. */
typedef uint32_t (*replog_crc_fn)(uint32_t crc, const uint8_t *p, size_t n);

/* The same while copying src[0..n) to dst, then `pad` (0..7) zero bytes, which are part of the CRC. */
typedef uint32_t (*replog_crc_copy_fn)(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad);

typedef struct {
    const char *name;
    int supported; /* on this CPU; filled in when the library is loaded */
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
