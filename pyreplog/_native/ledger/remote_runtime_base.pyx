"""What a client of bookies in other processes does for every append: its requests sent, and their answers waited for."""

from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.machines.serial_executor cimport check_may_wait
from pyreplog._native.net.pending_requests_base cimport leave_alone


cdef class RemoteRuntimeBase:
    """`add` and `wait` of what drivers share (`pyreplog.ledger.driver.Runtime`). To be subclassed, by what answers
    `send` and sets all of this.

    _adds: by bookie and ledger, their Lane. _ready: by bookie, its channel. _unanswered_max: requests of a lane. _now_us:
    the clock of deadlines, each `_request_timeout_us` ahead.
    """

    cdef public dict _adds, _ready
    cdef public Py_ssize_t _unanswered_max
    cdef public int64_t _request_timeout_us
    cdef public object _now_us, reactor

    def add(self, adds, /):
        """Those that nothing stands before leave at once."""
        cdef int64_t deadline_us = <int64_t>self._now_us() + self._request_timeout_us
        cdef Py_ssize_t at = 0
        while True:
            at = leave_alone(adds, at, self._adds, self._ready, self._unanswered_max, deadline_us)
            if at == len(adds):
                return
            self.send(*adds[at])
            at += 1

    def wait(self, AppendFuture future not None, timeout=None):
        """The thread that waits drives the reactor: nobody has to wake it, but who settles the ack without driving.

        Errors: as `check_may_wait`; those of the AppendFuture.
        """
        if not future.settled:
            check_may_wait()
        return self.reactor.wait(future, timeout)

    def send(self, bookie, request, on_reply, /):
        raise NotImplementedError
