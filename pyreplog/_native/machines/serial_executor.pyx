"""Runs the queued steps of an object on one thread at a time; no thread waits for another.

Calls do not nest: if a step of one object queues steps of another, the thread runs them after the first step.
"""

from pyreplog.errors import InvalidArgumentError

cdef extern from *:
    """
    /* For each thread, the list of SerialExecutors that it still has to run; a frame of `go_on` owns the list. NULL:
    the thread runs none. */ static __thread void *replog_turns = NULL;
    """
    void *turns_of_thread "replog_turns"


def in_callback():
    """Return whether this thread runs a callback of a ledger.

    A callback must not wait: the step for which it waits may need its own thread.
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
            while mine:  # a callback raised a BaseException, such as KeyboardInterrupt
                (<SerialExecutor>mine.pop(0)).go_on()
        return 0
