"""epoll for a reactor that polls often and gets few events, and its clocks."""

import select

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport int64_t

cdef enum:
    FEW = 64        # events of one look: others come with the next


cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <time.h>
    static int64_t replog_now_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    static int64_t replog_wall_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    /* Look without sleeping, for so long. */
    static int replog_spin(int fd, struct epoll_event *events, int most, int64_t us) {
        int64_t until = replog_now_us() + us;
        int found;
        do {
            found = epoll_wait(fd, events, most, 0);
        } while (found == 0 && replog_now_us() < until);
        return found;
    }
    """
    ctypedef union epoll_data:
        int fd
    ctypedef struct epoll_event "struct epoll_event":
        unsigned int events
        epoll_data data
    int64_t now_us "replog_now_us"()
    int64_t real_us "replog_wall_us"()
    int epoll_wait(int fd, epoll_event *events, int most, int timeout_ms)
    int spin_on "replog_spin"(int fd, epoll_event *events, int most, int64_t us)


def monotonic_us():
    """Return microseconds since an arbitrary moment, which never go back. Native because each message needs it."""
    return now_us()


def wall_us():
    """Return microseconds since 1970-01-01 UTC, by the clock of this machine."""
    return real_us()


@cython.final
cdef class Epoll:
    """The part of `select.epoll` that a Reactor needs; `poll` can look for a while before it sleeps."""

    cdef object epoll

    def __cinit__(self):
        self.epoll = select.epoll()

    def register(self, int fd, int events, /):
        self.epoll.register(fd, events)

    def modify(self, int fd, int events, /):
        self.epoll.modify(fd, events)

    def unregister(self, int fd, /):
        self.epoll.unregister(fd)

    def close(self):
        self.epoll.close()

    @property
    def closed(self):
        return self.epoll.closed

    def poll(self, double timeout_s, int64_t spin_us, /):
        """Return a list of (fd, events); it is empty after `timeout_s` seconds, or a signal.

        For the first `spin_us` microseconds it looks without sleeping: that saves the wake-up of a core, and keeps the
        core busy. Raises ValueError if it is closed, OSError, and what the handler of a signal raises.
        """
        cdef epoll_event events[FEW]
        cdef int fd = self.epoll.fileno(), ready = 0, code = 0, i, timeout_ms
        if spin_us > 0 and timeout_s > 0:
            spin_us = min(spin_us, <int64_t>(timeout_s * 1e6))
            timeout_s -= spin_us / 1e6
            with nogil:
                ready = spin_on(fd, events, FEW, spin_us)
                code = errno
            PyErr_CheckSignals()    # one that came meanwhile ends no sleep to come
        if ready == 0:
            timeout_ms = <int>ceil(min(max(timeout_s, 0.0), 1e6) * 1e3)
            with nogil:
                ready = epoll_wait(fd, events, FEW, timeout_ms)
                code = errno
        if ready < 0:
            if code != EINTR:
                raise OSError(code, "epoll_wait")
            PyErr_CheckSignals()
            ready = 0
        return [(events[i].data.fd, events[i].events) for i in range(ready)]
