"""Histograms for Prometheus. They are native because a bookie counts twice for each commit."""

cimport cython


@cython.final
cdef class Histogram:
    """Counts of values up to each of `bounds` (ascending). One thread observes; any may read.

    `Histogram(bounds)`. total: the sum of all values.
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
        """Return (upper bound, number of values that are not above it) of each bucket, as Prometheus wants them."""
        cdef list rows = []
        cdef double seen = 0
        for bound, count in zip((*self.bounds, None), list(self.counts)):
            seen += count
            rows.append(("+Inf" if bound is None else f"{bound}", seen))
        return rows
