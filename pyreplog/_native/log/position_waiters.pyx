"""The acks of what was submitted to a synced log, until it is synced.

As in a `Purgatory`, whoever moves the position on may hold locks and tells nobody: `drain` does, later. There are no
deadlines here and positions come in order, so a line of futures is all it takes.
"""

cimport cython
from cpython.object cimport PyObject

from pyreplog._native.log.future cimport AppendFuture, settle

cdef extern from "Python.h":
    int PyList_SetSlice(list target, Py_ssize_t low, Py_ssize_t high, PyObject *itemlist) except -1


@cython.final
cdef class PositionWaiters:
    """Futures in the order of the positions that they wait for. Any thread may call anything: under the GIL each call
    is one step, but for the callbacks of futures, which run inside `drain` and `fail`; hold no lock that they take.

    asleep: the committing thread has to be asked.
    """

    def __cinit__(self):
        self.waiting, self.ready, self.asleep = [], [], True

    cdef int add(self, int64_t position, AppendFuture future) except -1:
        """Complete the future when all before `position` is synced. One that is new: nobody waits for it yet."""
        cdef list waiting = self.waiting
        cdef Py_ssize_t place = len(waiting)
        if position <= self.synced:
            future.publish(future.value, None)
        elif self.failure is not None:
            future.publish(future.value, self.failure)
        else:
            future.position = position
            while place and (<AppendFuture>waiting[place - 1]).position > position:
                place -= 1
            waiting.insert(place, future)
        return 0

    def watch(self, int64_t position, AppendFuture future not None, /):
        """Complete a new ack when all before `position` is synced; at once, if it is. What has failed fails it."""
        self.add(position, future)

    def advance(self, int64_t position, /):
        """All before `position` is synced; a lower one than before changes nothing. Call `drain`, without locks."""
        cdef list waiting = self.waiting
        cdef Py_ssize_t count = 0
        cdef AppendFuture future
        if self.failure is not None or position <= self.synced:
            return  # after a failed sync no later one proves anything
        self.synced = position
        for future in waiting:
            if future.position > position:
                break
            self.ready.append(future)
            count += 1
        PyList_SetSlice(waiting, 0, count, NULL)  # a slice of Python's might run finalizers: its object is collected

    @property
    def is_due(self):
        """Whether `drain` has something to do."""
        return bool(self.ready)

    def restart(self, int64_t position, /):
        """The log goes on at `position`, all before it synced: positions beyond will come a second time."""
        self.synced = position

    def drain(self):
        """Complete those whose positions are synced."""
        cdef list fresh, ready
        if self.ready:
            fresh = []  # first: making it may run finalizers
            ready, self.ready = self.ready, fresh
            settle(ready, None)

    def fail(self, error, /):
        """Fail those that are not synced, and later ones."""
        cdef list fresh = []
        cdef list waiting = self.waiting
        self.failure, self.waiting = error, fresh
        try:
            self.drain()
        finally:  # a callback may have raised what is no Exception
            settle(waiting, error)
