"""Futures of what tasks of event loops submit: those of one round of a loop are sent, and settled, together.

Threads: any. Under the GIL each call is one step, but for the call of a loop, and the callbacks of futures.
"""

from asyncio import _get_running_loop

cimport cython
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture, settle


@cython.final
cdef class LoopBatch:
    """What was submitted in one round of a loop. `position`: of the last one, which all wait for."""

    cdef readonly int64_t position
    cdef list acks

    def __cinit__(self):
        self.acks = []

    def settle(self, AppendFuture whole not None, /):
        """All of them as `whole`, which is settled: for its callback."""
        settle(self.acks, whole.error)


@cython.final
cdef class LoopBatches:
    """The rounds that have begun, by their loops. `LoopBatches(end)`: each loop calls `end(loop)` when its round is
    over."""

    cdef dict begun
    cdef object end

    def __init__(self, end, /):
        self.begun, self.end = {}, end

    def add(self, int64_t position, AppendFuture future not None, /):
        """Have an ack wait for `position`, which is beyond those before it, with the others of this round; False: no
        loop runs here, nothing was done."""
        cdef LoopBatch there
        cdef object loop = _get_running_loop()
        if loop is None:
            return False
        there = self.begun.get(loop)
        if there is not None:
            there.position = position
            there.acks.append(future)
            return True
        there = LoopBatch()
        there.position = position
        there.acks.append(future)
        self.begun[loop] = there
        try:
            loop.call_soon(self.end, loop)
        except BaseException:  # nobody would end it
            self.begun.pop(loop, None)
            raise
        return True

    def take(self, loop, /):
        """The round of a loop, which is over by that; None: another thread took it before."""
        return self.begun.pop(loop, None)

    def loops(self):
        """A list of those whose rounds have begun."""
        return list(self.begun)
