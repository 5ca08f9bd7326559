"""PositionWaiters: the futures of appends to a synced log, until the appends are synced.

As in a `Purgatory`, the thread that advances the position may hold locks, and settles no future: `drain` does so later.
There are no deadlines, and positions come in order, so a list of futures suffices.
"""

cimport cython
from cpython.object cimport PyObject

from pyreplog._native.log.future cimport AppendFuture, settle

cdef extern from "Python.h":
    int PyList_SetSlice(list target, Py_ssize_t low, Py_ssize_t high, PyObject *itemlist) except -1


@cython.final
cdef class PositionWaiters:
    """Futures in the order of the positions that they wait for. Any thread may call any method.

    Under the GIL each call is one step, except for callbacks of futures, which run in `drain` and `fail`: hold no lock
    that they take. asleep: the committing thread must be asked for a commit.
    """

    def __cinit__(self):
        self.waiting, self.ready, self.asleep = [], [], True

    cdef int add(self, int64_t position, AppendFuture future) except -1:
        """Complete a new future, which nothing waits for yet, when all before `position` is synced."""
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
        """Complete a new future when all before `position` is synced, or at once. It fails if a sync has failed."""
        self.add(position, future)

    def advance(self, int64_t position, /):
        """Note that all before `position` is synced; a lower position changes nothing.

        Then call `drain`, without locks.
        """
        cdef list waiting = self.waiting
        cdef Py_ssize_t count = 0
        cdef AppendFuture future
        if self.failure is not None or position <= self.synced:
            return  # after a failed sync a later one proves nothing
        self.synced = position
        for future in waiting:
            if future.position > position:
                break
            self.ready.append(future)
            count += 1
        PyList_SetSlice(waiting, 0, count, NULL)  # a Python slice object is tracked, and might run finalizers

    @property
    def is_due(self):
        """Whether `drain` has futures to complete."""
        return bool(self.ready)

    def restart(self, int64_t position, /):
        """Note that the log continues at `position`, all before it synced: later positions are used a second time."""
        self.synced = position

    def drain(self):
        """Complete the futures whose positions are synced."""
        cdef list fresh, ready
        if self.ready:
            fresh = []  # made first, because that may run finalizers
            ready, self.ready = self.ready, fresh
            settle(ready, None)

    def fail(self, error, /):
        """Fail the futures that are not synced, and later ones."""
        cdef list fresh = []
        cdef list waiting = self.waiting
        self.failure, self.waiting = error, fresh
        try:
            self.drain()
        finally:  # a callback may have raised a BaseException
            settle(waiting, error)
