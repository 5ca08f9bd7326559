# Counts observed values by size.


cdef class Histogram:
    cdef list bounds, counts
    cdef readonly double total

    cpdef observe(self, double value)
