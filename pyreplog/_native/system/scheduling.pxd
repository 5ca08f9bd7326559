# Lets a test choose which thread runs next where native code is about to sleep.


cdef class Seam:
    cdef public object scheduler
