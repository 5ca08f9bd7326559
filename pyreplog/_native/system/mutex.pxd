# A lock that native code takes without calling Python.
from cpython.pythread cimport PyThread_type_lock


cdef class Mutex:
    cdef PyThread_type_lock lock

    cdef bint try_take(self) noexcept
    cdef int take(self) except -1
    cdef void give(self) noexcept
