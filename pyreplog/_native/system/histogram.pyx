"""How large what happens is, counted for Prometheus. In native code because a bookie counts twice for every commit."""

cimport cython


@cython.final
cdef class Histogram:
    """How often values up to each of `bounds` (ascending) were seen. One thread observes; any may read.

    `Histogram(bounds)`. total: of all values.
    """

    def __init__(self, bounds, /):
        self.bounds = [float(bound) for bound in bounds]
        self.counts = [0] * (len(self.bounds) + 1)

    cpdef observe(self, double value):
        cdef Py_ssize_t place = 0
        while place < len(self.bounds) and value > <double>self.bounds[place]:
            place += 1
        self.counts[place] += 1
        self.total += value

    def buckets(self):
        """(upper bound, how many values are not above it), as Prometheus wants them."""
        cdef list found = []
        cdef double seen = 0
        for bound, count in zip((*self.bounds, None), list(self.counts)):
            seen += count
            found.append(("+Inf" if bound is None else f"{bound}", seen))
        return found
