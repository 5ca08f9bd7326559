"""What a call from Python costs, and a stopwatch that keeps its histogram in C."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset


cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <time.h>

    static inline int64_t clock_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }

    /* The time-stamp counter costs a third of clock_gettime; elsewhere the clock itself counts. */
    #if defined(__x86_64__)
    #include <x86intrin.h>
    static inline uint64_t ticks(void) { return __rdtsc(); }
    #else
    static inline uint64_t ticks(void) { return (uint64_t)clock_ns(); }
    #endif

    static double ticks_per_ns(void) {
        int64_t begin_ns = clock_ns(), end_ns;
        uint64_t begin = ticks();
        do end_ns = clock_ns(); while (end_ns - begin_ns < 10 * 1000 * 1000);
        return (double)(ticks() - begin) / (double)(end_ns - begin_ns);
    }

    /* 64 buckets per power of two: 1.6 % wide. */
    #define BUCKETS (59 * 64)
    static inline unsigned bucket_of(uint64_t t) {
        if (t < 64)
            return (unsigned)t;
        unsigned shift = 57 - (unsigned)__builtin_clzll(t);
        return (shift + 1) * 64 + (unsigned)((t >> shift) & 63);
    }
    static inline uint64_t bucket_start(unsigned i) {
        return i < 64 ? i : (uint64_t)(64 + (i & 63)) << (i / 64 - 1);
    }
    """
    uint64_t ticks()
    double ticks_per_ns()
    unsigned bucket_of(uint64_t t)
    uint64_t bucket_start(unsigned i)
    enum:
        BUCKETS

cdef extern from "Python.h":
    object PyObject_CallOneArg(object call, object argument)


@cython.final
cdef class Empty:
    """The least that a method taking bytes and returning an int can do."""

    cdef int64_t count

    def append(self, bytes value not None):
        self.count += 1
        return self.count


@cython.final
cdef class Stopwatch:
    """Times calls of `call`, one argument each. `time(argument)` does the call and notes how long it took.

    A pause of more than a microsecond between two calls counts to the first: that is where another thread took the
    GIL, or another process the core, and it is the caller who waited.
    """

    cdef object call
    cdef uint64_t histogram[BUCKETS]
    cdef uint64_t ended, pending, gap
    cdef double rate

    def __init__(self, call):
        self.call = call
        self.rate = ticks_per_ns()
        self.gap = <uint64_t>(1000 * self.rate)
        self.reset()

    def reset(self):
        """Forget all."""
        memset(self.histogram, 0, sizeof(self.histogram))
        self.ended = self.pending = 0

    def time(self, argument):
        cdef uint64_t begin = ticks(), between
        if self.ended:
            between = begin - self.ended
            self.histogram[bucket_of(self.pending + (between if between > self.gap else 0))] += 1
            begin = ticks()
        result = PyObject_CallOneArg(self.call, argument)
        self.ended = ticks()
        self.pending = self.ended - begin
        return result

    def pause(self):
        """What follows is not part of the measurement until the next `time`."""
        if self.ended:
            self.histogram[bucket_of(self.pending)] += 1
        self.ended = 0

    @property
    def count(self):
        """Calls noted."""
        cdef uint64_t total = 0
        cdef int i
        for i in range(BUCKETS):
            total += self.histogram[i]
        return total

    def longer_than(self, double ns):
        """How many calls took longer."""
        cdef uint64_t found = 0
        cdef int i
        for i in range(BUCKETS - 1, -1, -1):
            if bucket_start(i) <= ns * self.rate:
                break
            found += self.histogram[i]
        return found

    def quantile(self, double q):
        """Nanoseconds that a share `q` of the calls did not exceed (upper edge of the bucket)."""
        cdef uint64_t wanted = <uint64_t>(q * self.count), seen = 0
        cdef int i
        for i in range(BUCKETS):
            seen += self.histogram[i]
            if seen > wanted:
                return bucket_start(i + 1) / self.rate
        return 0.0
