/* Checks every CRC-32C kernel of this CPU against a CRC taken bit by bit, and prints "<kernel> ok" for each that ran.
 *
 * The messages lie flush against pages that cannot be read or written, at their end and at their beginning, so that a
 * kernel that touches one byte outside of them ends the program. */
#define _GNU_SOURCE
#include "crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EVERY_LENGTH = 4096, LARGEST = 300 * 1000, PAD = 7, GUARD = 0xa5, GUARDED = 64 };

typedef struct {
    uint8_t *begin, *end;
} region;

static uint8_t message[LARGEST];
static uint32_t expected[LARGEST + 1]; /* expected[n]: the CRC of the first n bytes, continued from `initial` */
static uint32_t initial;

static uint32_t next_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static uint32_t one_byte_more(uint32_t crc, uint8_t byte)
{
    crc = ~crc ^ byte;
    for (int bit = 0; bit < 8; bit++)
        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    return ~crc;
}

static void expect_from(uint32_t crc)
{
    initial = expected[0] = crc;
    for (size_t n = 0; n < LARGEST; n++)
        expected[n + 1] = one_byte_more(expected[n], message[n]);
}

/* At least `size` bytes between two pages without access. */
static region between_guards(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (size + page - 1) / page * page;
    uint8_t *base = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page, inside, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    return (region){base + page, base + page + inside};
}

static void fail(const char *kernel, const char *what, size_t n, size_t pad)
{
    fprintf(stderr, "%s: wrong %s, n = %zu, pad = %zu, initial = %#x\n", kernel, what, n, pad, initial);
    exit(1);
}

static int all(const uint8_t *begin, const uint8_t *end, uint8_t byte)
{
    for (; begin < end; begin++)
        if (*begin != byte)
            return 0;
    return 1;
}

static const uint8_t *below(const uint8_t *p, region r) { return p - r.begin < GUARDED ? r.begin : p - GUARDED; }
static const uint8_t *above(const uint8_t *p, region r) { return r.end - p < GUARDED ? r.end : p + GUARDED; }

static void check_at(const replog_crc_kernel *kernel, const uint8_t *src, uint8_t *dst, region to, size_t n, size_t pad)
{
    if (kernel->crc(initial, src, n) != expected[n])
        fail(kernel->name, "crc", n, pad);

    uint32_t crc = expected[n];
    for (size_t i = 0; i < pad; i++)
        crc = one_byte_more(crc, 0);
    uint8_t *end = dst + n + pad;
    memset((uint8_t *)below(dst, to), GUARD, (size_t)(above(end, to) - below(dst, to)));
    if (kernel->copy(initial, dst, src, n, pad) != crc)
        fail(kernel->name, "crc of the copy", n, pad);
    if (memcmp(dst, src, n) != 0 || !all(dst + n, end, 0))
        fail(kernel->name, "copy", n, pad);
    if (!all(below(dst, to), dst, GUARD) || !all(end, above(end, to), GUARD))
        fail(kernel->name, "bytes around the copy", n, pad);
}

static void check_length(const replog_crc_kernel *kernel, region from, region to, size_t n, size_t pad)
{
    memcpy(from.end - n, message, n);
    check_at(kernel, from.end - n, to.begin, to, n, pad);
    memcpy(from.begin, message, n);
    check_at(kernel, from.begin, to.end - n - pad, to, n, pad);
    size_t at = GUARDED + next_random() % 64;
    memcpy(from.begin + at, message, n);
    check_at(kernel, from.begin + at, to.begin + GUARDED + next_random() % 64, to, n, pad);
}

static void check(const replog_crc_kernel *kernel, region from, region to)
{
    if (kernel->crc(0, (const uint8_t *)"123456789", 9) != 0xe3069283u)
        fail(kernel->name, "check value", 9, 0);
    for (size_t n = 0; n <= EVERY_LENGTH; n++)
        check_length(kernel, from, to, n, n < 300 ? 0 : (n + n / 8) % (PAD + 1));
    for (size_t n = 0; n < 300; n++)
        for (size_t pad = 1; pad <= PAD; pad++)
            check_length(kernel, from, to, n, pad);
    for (int i = 0; i < 12; i++)
        check_length(kernel, from, to, next_random() % (LARGEST + 1), next_random() % (PAD + 1));
    printf("%s ok\n", kernel->name);
}

int main(void)
{
    region from = between_guards(LARGEST + 4 * GUARDED), to = between_guards(LARGEST + 4 * GUARDED);
    for (size_t i = 0; i < LARGEST; i++)
        message[i] = (uint8_t)next_random();
    for (size_t i = 0; i < replog_crc_kernel_count; i++)
        if (replog_crc_kernels[i].supported) {
            expect_from(i == 0 ? 0 : next_random());
            check(&replog_crc_kernels[i], from, to);
        }
    return 0;
}
