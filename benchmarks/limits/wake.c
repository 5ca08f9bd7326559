#define _GNU_SOURCE
#include "limit.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t limit_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void limit_ring(limit_bell *bell) {
    bell->stamp = limit_now_ns();
    __atomic_add_fetch(&bell->rung, 1, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&bell->sleeping, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

int64_t limit_hear(limit_bell *bell, uint32_t seen) {
    while (__atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) == seen) {
        __atomic_store_n(&bell->sleeping, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &bell->rung, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
    return limit_now_ns() - bell->stamp;
}

int limit_set_slice(int64_t ns) {
    /* struct sched_attr of linux/sched/types.h, which does not go together with glibc's <sched.h> */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } wanted = {.size = sizeof wanted, .runtime = (uint64_t)ns};
    return syscall(SYS_sched_setattr, 0, &wanted, 0) != 0 ? errno : 0;
}
