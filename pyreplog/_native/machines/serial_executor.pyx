"""Runs the queued steps of an object on one thread at a time; no thread waits for another.

A thread that already runs steps of one object runs those of others when it is back there: calls do not nest, whatever
one step leads to.
"""

from pyreplog.errors import InvalidArgumentError

cdef extern from *:
    """
    /* Of each thread: a list of the SerialExecutor it has to go on with, kept by the frame that made it; NULL: it is at
    none. */ static __thread void *replog_turns = NULL;
    """
    void *turns_of_thread "replog_turns"


def in_callback():
    """Return whether this thread runs a callback of a ledger.

    A callback must not wait: its own thread may have to do what it waits for.
    """
    return turns_of_thread != NULL


cpdef int check_may_wait() except -1:
    """Raise InvalidArgumentError in a callback."""
    if turns_of_thread != NULL:
        raise InvalidArgumentError("a callback cannot wait for a ledger: use submit, and callbacks of what it gives")
    return 0


cdef class SerialExecutor:
    """Base of objects with steps. Subclasses have `_run()`, which runs all queued steps, unless another thread does."""

    def _run(self):
        raise NotImplementedError

    def _go_on(self):
        """Run the queued steps on this thread: now, or when it is back from the step that it runs."""
        self.go_on()

    cdef int run(self) except -1:
        self._run()
        return 0

    cdef int go_on(self) except -1:
        global turns_of_thread
        cdef list mine
        if turns_of_thread != NULL:
            mine = <list>turns_of_thread
            mine.append(self)
            return 0
        mine = [self]
        turns_of_thread = <void *>mine
        try:
            while mine:
                (<SerialExecutor>mine[0]).run()
                mine.pop(0)
        finally:
            turns_of_thread = NULL
            while mine:  # a callback raised what is no Exception
                (<SerialExecutor>mine.pop(0)).go_on()
        return 0
