"""The part of RemoteRuntime that runs for every append: sends ADDs to bookies in other processes, and waits for answers."""

from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.machines.serial_executor cimport check_may_wait
from pyreplog._native.net.pending_requests_base cimport leave_alone


cdef class RemoteRuntimeBase:
    """Base of RemoteRuntime: `add` and `wait` of `pyreplog.ledger.driver.Runtime`. The subclass has `send`.

    _adds: AddMergers by (bookie, ledger). _ready: channels by bookie. _unanswered_max: requests of a merger that may be
    unanswered. _now_us: clock of deadlines, which are `_request_timeout_us` ahead.
    """

    cdef public dict _adds, _ready
    cdef public Py_ssize_t _unanswered_max
    cdef public int64_t _request_timeout_us
    cdef public object _now_us, reactor

    def add(self, adds, /):
        """Send ADDs; those before which no other waits leave at once, from this thread."""
        cdef int64_t deadline_us = <int64_t>self._now_us() + self._request_timeout_us
        cdef Py_ssize_t at = 0
        while True:
            at = leave_alone(adds, at, self._adds, self._ready, self._unanswered_max, deadline_us)
            if at == len(adds):
                return
            self.send(*adds[at])
            at += 1

    def wait(self, AppendFuture future not None, timeout=None):
        """Wait for a future; the waiting thread drives the reactor, so that mostly no other thread has to wake it.

        Raises as `check_may_wait`, and the error of the future.
        """
        if not future.settled:
            check_may_wait()
        return self.reactor.wait(future, timeout)

    def send(self, bookie, request, on_reply, /):
        raise NotImplementedError
