"""Batches of entries that tasks of event loops submit: those of one round of a loop are sent and settled together.

Threads: any. Under the GIL each call is one step, but for the call of a loop, and the callbacks of futures.
"""

from asyncio import _get_running_loop

cimport cython
from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport AppendFuture, settle


@cython.final
cdef class LoopBatch:
    """The futures of one round of a loop. position: of the last entry, for which all of them wait."""

    cdef readonly int64_t position
    cdef list acks

    def __cinit__(self):
        self.acks = []

    def settle(self, AppendFuture whole not None, /):
        """Settle all futures as `whole`, which is settled: its callback."""
        settle(self.acks, whole.error)


@cython.final
cdef class LoopBatches:
    """The batches of the rounds that have begun, by loop.

    `LoopBatches(end)`: each loop calls `end(loop)` when its round is over.
    """

    cdef dict begun
    cdef object end

    def __init__(self, end, /):
        self.begun, self.end = {}, end

    def add(self, int64_t position, AppendFuture future not None, /):
        """Add a future to the batch of this round; it waits for `position`, which is higher than those before.

        Returns False if no loop runs in this thread; then nothing was done.
        """
        cdef LoopBatch batch
        cdef object loop = _get_running_loop()
        if loop is None:
            return False
        batch = self.begun.get(loop)
        if batch is not None:
            batch.position = position
            batch.acks.append(future)
            return True
        batch = LoopBatch()
        batch.position = position
        batch.acks.append(future)
        self.begun[loop] = batch
        try:
            loop.call_soon(self.end, loop)
        except BaseException:  # nobody would end it
            self.begun.pop(loop, None)
            raise
        return True

    def take(self, loop, /):
        """Remove the batch of a loop, which ends its round, and return it; None: another thread took it before."""
        return self.begun.pop(loop, None)

    def loops(self):
        """Return the loops whose rounds have begun."""
        return list(self.begun)
