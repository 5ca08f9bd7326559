"""A lock that native code takes without a call of Python, which costs ten times as much; Python code uses `with`."""

cimport cython
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, NOWAIT_LOCK, WAIT_LOCK,
)

from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling

cdef Seam seam = scheduling.seam


@cython.final
cdef class Mutex:
    """A lock for short blocks: neither Ctrl-C nor a time-out ends the wait for it. Not reentrant."""

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

    def acquire(self, bint blocking=True, /):
        """Take the lock. Return False if it is not free, and the caller is not `blocking`. For a `Condition`."""
        if not blocking:
            return self.try_take()
        self.take()
        return True

    def release(self):
        """Give the lock back. For a `Condition`."""
        self.give()

    def locked(self):
        """Return whether a thread holds the lock."""
        if not self.try_take():
            return True
        self.give()
        return False

    cdef bint try_take(self) noexcept:
        """Take the lock if it is free. Return whether it was."""
        return PyThread_acquire_lock(self.lock, NOWAIT_LOCK)

    cdef int take(self) except -1:
        """Take the lock; the GIL is released while another thread holds it."""
        while not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            if seam.scheduler is None or not seam.scheduler.wait_while(self.locked):
                with nogil:
                    PyThread_acquire_lock(self.lock, WAIT_LOCK)
                return 0
        return 0

    cdef void give(self) noexcept:
        PyThread_release_lock(self.lock)
