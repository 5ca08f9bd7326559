"""Ctrl-C put off until what must not stop half way is done. In native code because it is entered for every message."""

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
cdef class Uninterrupted:
    """`with uninterrupted:` a SIGINT that comes in the block is handled behind it. Any thread, nested or not.

    Each of the two exchanges of the handler is one C call: before the first nothing has begun, after the second all is
    done.
    """

    cdef int depth          # all of this is the main thread's
    cdef object handler, came

    def __enter__(self):
        if PyThread_get_thread_ident() != main_thread:
            return
        if self.depth == 0:
            self.came = None
            if not callable(get_handler(SIGINT)):   # ignored, or it kills the process, or is not Python's
                return
            self.handler = set_handler(SIGINT, self.note)
        self.depth += 1

    def __exit__(self, kind, error, trace, /):
        if self.depth == 0 or PyThread_get_thread_ident() != main_thread:
            return
        self.depth -= 1
        if self.depth == 0:
            handler, self.handler = self.handler, None
            set_handler(SIGINT, handler)
            if self.came is not None:
                handler(*self.came)

    def note(self, number, frame, /):
        """The handler meanwhile."""
        self.came = number, frame
