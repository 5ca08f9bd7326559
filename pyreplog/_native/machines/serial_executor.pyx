"""Whose turn it is: things with steps that one thread at a time takes, and that threads never wait for.

A thread that is at one of them already, further out, goes on with others when it is back there: what one step leads to
does not nest, however many there are.
"""

from pyreplog.errors import InvalidArgumentError

cdef extern from *:
    """
    /* Of each thread: a list of the SerialExecutor it has to go on with, kept by the frame that made it; NULL: it is at
    none. */ static __thread void *replog_turns = NULL;
    """
    void *turns_of_thread "replog_turns"


def in_callback():
    """Whether this is a callback of something that ledgers do: it must not wait, since what it waits for may be its own
    thread's to do."""
    return turns_of_thread != NULL


cpdef int check_may_wait() except -1:
    """InvalidArgumentError, in a callback."""
    if turns_of_thread != NULL:
        raise InvalidArgumentError("a callback cannot wait for a ledger: use submit, and callbacks of what it gives")
    return 0


cdef class SerialExecutor:
    """To be subclassed: `_run()` takes all steps there are, unless another thread is at it; that one takes them all."""

    def _run(self):
        raise NotImplementedError

    def _go_on(self):
        """Have the steps taken, by this thread: now, or when it is back from where it is at."""
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
