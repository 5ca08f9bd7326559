"""One round of a reactor: until when it sleeps, and whom it calls back behind that. In native code because all that is
sent and received goes through it: the only Python code that runs for a round is what is called back.

Threads: the one that drives; others may append to `_soon` at any time.
"""

import logging
from collections import deque

from libc.stdint cimport int64_t

from pyreplog._native.interrupts cimport Uninterrupted

from pyreplog._native import interrupts

cdef enum:
    LOOK_EVERY = 16     # while one descriptor keeps it busy, timers are looked at in every so many rounds only

cdef Uninterrupted put_off = interrupts.uninterrupted
cdef object logger = logging.getLogger("pyreplog.net.reactor")


cdef class Rounds:
    """What a Reactor does again and again. To be subclassed, by what has `unregister`, and sets all of this but `_callbacks`,
    `_soon` and `_asleep`.

    _callbacks: by descriptor, what is called with the events. _soon: calls handed over. _timers, clock, _epoll,
    _busy_poll_us, _bell (None: closed), _bell_fd: a Reactor's. _asleep: the driver is about to block, or does: what it
    should see needs a wake-up.
    """

    cdef public dict _callbacks
    cdef public object _soon, _timers, clock, _epoll, _bell
    cdef public int64_t _busy_poll_us
    cdef public int _bell_fd
    cdef public bint _asleep
    cdef unsigned int round

    def __cinit__(self):
        self._callbacks, self._soon = {}, deque()

    def _step(self, double timeout_s, /):
        """Wait for events at most so long, and call back."""
        timeout_s = self.before(timeout_s)
        try:
            events = self._epoll.poll(timeout_s, self._busy_poll_us)
        finally:
            self._asleep = False
        self.after(events)

    def _before(self, double timeout_s, /):
        """Seconds to sleep. From here on, whoever has something for the driver wakes it."""
        return self.before(timeout_s)

    def _after(self, list events not None, /):
        """Call back. Ctrl-C in a thread that drives while it waits for something of its own comes behind that: half a
        frame sent, or received, would cost the connection."""
        self.after(events)

    def _call_those_handed_over(self):
        """A call leaves the queue after it was made: Ctrl-C loses none."""
        self.call_handed_over()

    cdef double before(self, double timeout_s) except -1:
        cdef object next_us
        self._asleep = True
        if self._soon:
            return 0.0
        next_us = self._timers.next_us
        if next_us is not None:
            timeout_s = min(timeout_s, (<int64_t>next_us - <int64_t>self.clock.monotonic_us()) / 1e6)
        return max(timeout_s, 0.0)

    cdef int after(self, list events) except -1:
        put_off.enter()
        try:
            self.call_back(events)
            if self._soon:
                self.call_handed_over()
        finally:
            put_off.leave()
        return 0

    cdef int call_back(self, list events) except -1:
        cdef bint only_one = len(events) == 1
        for fd, mask in events:
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback(mask)
                except Exception:
                    logger.exception("a callback raised; its descriptor is not looked at any more")
                    self.unregister(fd)
            elif fd == self._bell_fd:
                only_one = False
                bell = self._bell
                if bell is not None:
                    bell.hush()
        self.round += 1
        if not only_one or self.round % LOOK_EVERY == 0:
            for timer in self._timers.due():
                self._soon.append(timer.call)
        return 0

    cdef int call_handed_over(self) except -1:
        cdef object soon = self._soon
        cdef Py_ssize_t i
        for i in range(len(soon)):
            try:
                soon[0]()
            except Exception:
                logger.exception("a call handed over to the reactor raised")
            soon.popleft()
        return 0
