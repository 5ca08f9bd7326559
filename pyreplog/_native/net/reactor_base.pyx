"""One round of a reactor: it sleeps until there are events, and calls back.

It is native because everything that is sent and received goes through it: the callbacks are the only Python code of a
round. Threads: the one that drives; others may append to `_soon` at any time.
"""

import logging
import time

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.system.interrupts cimport DeferSigint

from pyreplog._native.system import interrupts
from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, ReplogError

cdef enum:
    LOOK_EVERY = 16     # while one descriptor keeps it busy, timers are looked at in every so many rounds only

cdef double FOREVER_S = 3600.0

DRIVER = "driver"
"""Key in the holder of a driver lock; the value is the ident of the thread that drives."""

cdef DeferSigint put_off = interrupts.defer_sigint
cdef object logger = logging.getLogger("pyreplog.net.reactor")


cdef bint is_over(object done) except -1:
    return (<AppendFuture>done).settled if isinstance(done, AppendFuture) else bool(done())


def look_again():
    """Do nothing: the driver, which this call has woken, checks the outcome that it waits for."""


cdef class DriverLockBase:
    """Base of DriverLock, which has `_wake` and `ring`.

    holder: ident of the thread that drives, by DRIVER. waiting: Waiters, as keys. _borrowed: whether another thread has
    driven since the owner last looked. _resting: whether the owner sleeps.
    """

    cdef public dict holder, waiting
    cdef public bint _borrowed, _resting

    def __cinit__(self):
        self.holder, self.waiting = {}, {}

    def given_back(self):
        """Wake one thread that waits, and the owner. Called when the holder has deleted itself."""
        self.give_back()

    cdef int give_back(self) except -1:
        self._borrowed = True
        if self.waiting and DRIVER not in self.holder:
            self._wake(1)
        if self._resting:
            self.ring()
        return 0

    def _wake(self, count, /):
        raise NotImplementedError

    def ring(self):
        raise NotImplementedError


cdef class ReactorBase:
    """Base of Reactor, which is a Handle, has `unregister`, `call_soon` and `_driver_left`, and sets the other attributes.

    _callbacks: callbacks by descriptor; they get the events. _soon: calls that were handed over. _asleep: whether the
    driver sleeps or is about to, so that it needs a wake-up.
    """

    cdef public dict _callbacks
    cdef readonly list _soon
    cdef public object _timers, clock, _epoll, _wakeup
    cdef public DriverLockBase _driver_lock
    cdef public int64_t _busy_poll_us
    cdef public int _bell_fd
    cdef public bint _asleep
    cdef unsigned int round

    def __cinit__(self):
        self._callbacks, self._soon = {}, []

    def drive(self, done, timeout=None):
        """Wait until `done()` is true, for at most `timeout` seconds (None: no limit), and drive meanwhile.

        done: a cheap call that does not block, and stays true. Any thread that drives calls it, after events. Of
        several threads one drives; the others sleep until their outcome is known. The reactor's own thread drives again
        2 ms after the last of them has left; until then no thread drives.

        Returns the last result of `done`. Raises InvalidArgumentError if a callback of this reactor calls it, and
        ClosedError if the reactor is closed before.
        """
        return self.drive_until(done, timeout)

    def wait(self, AppendFuture future not None, timeout=None):
        """Return the result of a future, and drive until it is known.

        Raises the error of the future, OutcomeUnknownError after `timeout` seconds, and the errors of `drive`.
        """
        if not future.settled:
            future.add_done_callback(self._look_up)
            if not self.drive_until(future, timeout):
                raise OutcomeUnknownError(f"no outcome within {timeout} s")
        return future.outcome()

    def _look_up(self, _, /):
        """Wake the driver, if another thread has settled the future."""
        if self._driver_lock.holder.get(DRIVER) != PyThread_get_thread_ident():
            try:
                self.call_soon(look_again)
            except ReplogError:  # it was closed: nobody drives
                return

    def in_driver(self):
        """Return whether this thread drives; then it is in a callback."""
        return self._driver_lock.holder.get(DRIVER) == PyThread_get_thread_ident()

    cdef bint drive_until(self, object done, object timeout) except -1:
        """Drive until `done`, a call or an AppendFuture, is true."""
        cdef DriverLockBase driver_lock = self._driver_lock
        cdef object me = PyThread_get_thread_ident()
        cdef dict holder = driver_lock.holder
        cdef double left_s = FOREVER_S, deadline_s = 0
        if is_over(done):
            return True
        if self._error is not None:
            raise self._error
        if holder.get(DRIVER) == me:
            raise InvalidArgumentError("a callback of a reactor cannot wait for it")
        if timeout is not None:
            deadline_s = time.monotonic() + timeout
        try:
            while True:
                if timeout is not None:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return is_over(done)
                if self._error is not None:
                    if is_over(done):  # completed by the thread that closed the reactor
                        return True
                    raise self._error
                if holder.setdefault(DRIVER, me) == me:
                    self.step(left_s)
                    if driver_lock.waiting:
                        driver_lock.wake_done()
                else:
                    driver_lock.wait(done.done if isinstance(done, AppendFuture) else done, left_s, self._wake)
                if is_over(done):
                    return True
        finally:
            if holder.get(DRIVER) == me:
                del holder[DRIVER]
            if self._error is None:
                driver_lock.give_back()
            else:
                self._driver_left()

    cdef int step(self, double timeout_s) except -1:
        """Wait for events for at most `timeout_s` seconds, and call back."""
        timeout_s = self.before(timeout_s)
        try:
            events = self._epoll.poll(timeout_s, self._busy_poll_us)
        finally:
            self._asleep = False
        self.after(events)
        return 0

    def _call_those_handed_over(self):
        """Make the calls that were handed over. A call leaves the queue behind it, so that Ctrl-C loses none."""
        self.call_handed_over()

    cdef bint begin_round(self, double longest_s, double *timeout_s, int64_t *busy_poll_us) except -1:
        """Set how long to sleep, and to look without sleep. Return False if it is to drive no more."""
        if not self._running:
            return False
        timeout_s[0], busy_poll_us[0] = self.before(longest_s), self._busy_poll_us
        return True

    cdef int end_round(self, list events) except -1:
        self._asleep = False
        return self.after(events)

    cdef double before(self, double timeout_s) except -1:
        """Return how many seconds to sleep. From here on, other threads wake the driver."""
        cdef object next_us
        self._asleep = True
        if self._soon:
            return 0.0
        next_us = self._timers.next_us
        if next_us is not None:
            timeout_s = min(timeout_s, (<int64_t>next_us - <int64_t>self.clock.monotonic_us()) / 1e6)
        return max(timeout_s, 0.0)

    cdef int after(self, list events) except -1:
        """Call back for events.

        Ctrl-C in the thread that drives is handled behind it: half a frame would cost the connection.
        """
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
                wakeup = self._wakeup
                if wakeup is not None:
                    wakeup.clear()
        self.round += 1
        if not only_one or self.round % LOOK_EVERY == 0:
            next_us = self._timers.next_us
            if next_us is not None and <int64_t>next_us <= <int64_t>self.clock.monotonic_us():
                for timer in self._timers.due():
                    self._soon.append(timer.call)
        return 0

    cdef int call_handed_over(self) except -1:
        cdef list soon = self._soon
        cdef Py_ssize_t i
        for i in range(len(soon)):
            try:
                soon[0]()
            except Exception:
                logger.exception("a call handed over to the reactor raised")
            del soon[0]
        return 0


def drive_until_wanted(ref, DriverLockBase driver_lock not None, epoll, double longest_s, /):
    """Drive a reactor until another thread wants to. It sleeps for at most `longest_s` seconds at a time.

    ref: weak reference to the Reactor; epoll: its own. No reference to it is held during sleep, so that a forgotten
    reactor is collected.
    """
    cdef ReactorBase reactor
    cdef double timeout_s
    cdef int64_t busy_poll_us
    while True:
        PyErr_CheckSignals()    # one that came before the sleep does not end it
        reactor = ref()
        if reactor is None or driver_lock.waiting or not reactor.begin_round(longest_s, &timeout_s, &busy_poll_us):
            return
        reactor = None
        events = epoll.poll(timeout_s, busy_poll_us)
        reactor = ref()
        if reactor is None:
            return
        reactor.end_round(events)
