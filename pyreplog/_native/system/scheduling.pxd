# Where native code is about to sleep, a test may have it ask who runs next.


cdef class Seam:
    cdef public object scheduler
