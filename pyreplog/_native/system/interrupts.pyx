"""Defers Ctrl-C until a block that must not stop half way is done. It is native because each message enters it."""

import _signal  # not signal: its enums cost ten times what the calls do
import os
import threading

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident

cdef int SIGINT = _signal.SIGINT
cdef object get_handler = _signal.getsignal, set_handler = _signal.signal
cdef unsigned long main_thread = threading.main_thread().ident


def _forked():
    global main_thread
    main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_forked)


@cython.final
cdef class DeferSigint:
    """A context manager: a SIGINT that arrives in the block is handled behind it. For any thread, nested or not.

    Each exchange of the handler is one C call: nothing has begun before the first, and all is done after the second.
    """

    def __enter__(self):
        self.enter()

    def __exit__(self, kind, error, trace, /):
        self.leave()

    cdef int enter(self) except -1:
        if PyThread_get_thread_ident() != main_thread:
            return 0
        if self.depth == 0:
            self.came = None
            if not callable(get_handler(SIGINT)):   # ignored, or it kills the process, or is not Python's
                return 0
            self.handler = set_handler(SIGINT, self.note)
        self.depth += 1
        return 0

    cdef int leave(self) except -1:
        if self.depth == 0 or PyThread_get_thread_ident() != main_thread:
            return 0
        self.depth -= 1
        if self.depth == 0:
            handler, self.handler = self.handler, None
            set_handler(SIGINT, handler)
            if self.came is not None:
                handler(*self.came)
        return 0

    def note(self, number, frame, /):
        """Note a signal: the handler in the block."""
        self.came = number, frame


defer_sigint = DeferSigint()
"""The only instance; see `pyreplog.defer_sigint`."""
