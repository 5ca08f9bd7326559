"""The least that a group commit of many threads can do: one write and sync, and one system call that wakes them all."""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef extern from * nogil:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static void sleep_while(uint32_t *word, uint32_t seen) {
        while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == seen)
            syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    static void wake_all(uint32_t *word) {
        __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
    """
    void sleep_while(uint32_t *word, uint32_t seen)
    void wake_all(uint32_t *word)

cdef extern from "limit.h" nogil:
    int limit_synced_writes(int fd, const uint8_t *data, int64_t size, int64_t offset, int64_t count, int64_t *ns)


cdef class Turnstile:
    """Lets `threads` threads through together, each with a value of `size` bytes. The last one to come writes all of
    them to `fd` and syncs it (-1: there is no disk, they only sleep and wake)."""

    cdef int fd, threads, arrived
    cdef int64_t size
    cdef uint32_t word
    cdef uint8_t *stage

    def __init__(self, int fd, int64_t size, int threads):
        self.fd, self.size, self.threads = fd, size, threads
        self.stage = <uint8_t *>malloc(size * threads)
        if self.stage == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.stage)

    def append(self, bytes value not None):
        """Returns when the values of all threads are on disk."""
        cdef uint32_t seen = self.word
        cdef int64_t ns
        cdef int error = 0
        memcpy(self.stage + self.arrived * self.size, PyBytes_AS_STRING(value), self.size)
        self.arrived += 1
        if self.arrived < self.threads:
            with nogil:
                sleep_while(&self.word, seen)
            return
        self.arrived = 0
        with nogil:
            if self.fd >= 0:
                error = limit_synced_writes(self.fd, self.stage, self.size * self.threads, 0, 1, &ns)
            wake_all(&self.word)
        if error:
            raise OSError(error, os.strerror(error))

    @property
    def staged(self):
        """What was written last."""
        return self.stage[:self.size * self.threads]
