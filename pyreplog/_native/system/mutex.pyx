"""A lock that native code takes without a call of Python's, which costs ten times as much, and Python code by `with`."""

cimport cython
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, NOWAIT_LOCK, WAIT_LOCK,
)

from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling

cdef Seam seam = scheduling.seam


@cython.final
cdef class Mutex:
    """`with mutex:` of what is done soon: neither Ctrl-C nor anything else ends a thread's wait for it. Not reentrant."""

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def __enter__(self):
        self.take()

    def __exit__(self, kind, error, trace, /):
        self.give()

    def locked(self):
        """Whether a thread has it."""
        if not self.try_take():
            return True
        self.give()
        return False

    cdef bint try_take(self) noexcept:
        """False: a thread has it."""
        return PyThread_acquire_lock(self.lock, NOWAIT_LOCK)

    cdef int take(self) except -1:
        """Others run meanwhile."""
        while not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            if seam.scheduler is None or not seam.scheduler.wait_while(self.locked):
                with nogil:
                    PyThread_acquire_lock(self.lock, WAIT_LOCK)
                return 0
        return 0

    cdef void give(self) noexcept:
        PyThread_release_lock(self.lock)
