"""Stripes: what of a ledger's entries, and of a batch of encoded ones, goes to one bookie of the ensemble.

Which entries those are repeats every E entries; the arithmetic is in quorum.pxd. Wrong arguments raise
InvalidArgumentError. Threads: any; large copies release the GIL.
"""

cimport cython
from cpython.buffer cimport (
    Py_buffer, PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyreplog._native.quorum.quorum cimport (
    ENTRY_LIMIT, Quorums, distance, entry_of, members_below, next_member, quorums_of, within,
)
from pyreplog.errors import InvalidArgumentError

cdef int64_t RELEASE_GIL_FROM = 1 << 18  # bytes; below, waiting for the GIL again costs more than others gain meanwhile
cdef int64_t BAD_OFFSETS = -1


ctypedef struct Stripe:
    int64_t entry           # the first that the bookie stores
    int64_t count           # of those that it stores
    int index, ensemble, write


cdef Stripe stripe_of(object index, object start, object stop, object ensemble_size, object write_quorum) except *:
    """Return the stripe of the entries [start, stop) that one bookie stores."""
    cdef Quorums q = quorums_of(ensemble_size, write_quorum, 1)
    cdef int64_t low = entry_of(start, "start"), high = entry_of(stop, "stop")
    cdef Stripe stripe
    if low > high:
        raise InvalidArgumentError(f"entries: expected a start of at most {high}, found {low}")
    stripe.index, stripe.ensemble, stripe.write = within(index, 0, q.ensemble - 1, "index"), q.ensemble, q.write
    stripe.entry = next_member(low, stripe.index, q.ensemble, q.write)
    stripe.count = (members_below(high, stripe.index, q.ensemble, q.write)
                    - members_below(low, stripe.index, q.ensemble, q.write))
    return stripe


def member_count(index, start, stop, ensemble_size, write_quorum, /):
    """Return how many entries of [start, stop) bookie `index` of the ensemble stores."""
    return stripe_of(index, start, stop, ensemble_size, write_quorum).count


def members(index, start, stop, ensemble_size, write_quorum, /):
    """Return the entries of [start, stop) that bookie `index` stores: ascending, a read-only int64 array."""
    import numpy
    cdef Stripe stripe = stripe_of(index, start, stop, ensemble_size, write_quorum)
    cdef int64_t entry = stripe.entry, i
    cdef int left = distance(entry, stripe.index, stripe.ensemble)  # in the run of adjacent entries
    if stripe.count > INT64_MAX // 16:
        raise MemoryError(f"no memory for {stripe.count} entry ids")
    cdef bytes column = PyBytes_FromStringAndSize(NULL, stripe.count * sizeof(int64_t))
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(column)
    for i in range(stripe.count):
        out[i] = entry
        entry += 1
        left -= 1
        if left < 0:
            entry += stripe.ensemble - stripe.write
            left = stripe.write - 1
    return numpy.frombuffer(column, numpy.int64)


@cython.final
cdef class _Batch:
    """A batch of encoded records, of which one bookie is to get its part. Holds the buffers meanwhile."""
    cdef object source
    cdef Py_buffer data, offsets
    cdef bint wide
    cdef int64_t first, stop            # its entries
    cdef int64_t start, end             # the first run of adjacent entries that the bookie stores
    cdef int run, gap                   # entries of every other run, and between two

    def __cinit__(self, source, offsets, int64_t first, int index, int ensemble, int write):
        self.source, self.first = source, first
        PyObject_GetBuffer(source, &self.data, PyBUF_SIMPLE)
        PyObject_GetBuffer(offsets, &self.offsets, PyBUF_ND | PyBUF_FORMAT)
        cdef char code = self.offsets.format[0] if self.offsets.format[1] == 0 else 0
        self.wide = code in (c"l", c"q")
        if self.offsets.ndim != 1 or not (self.wide or code == c"I"):
            raise InvalidArgumentError(f"offsets: expected an array of int64 or uint32, found {offsets!r:.80}")
        if not 1 <= self.offsets.shape[0] <= ENTRY_LIMIT - first + 1:
            raise InvalidArgumentError(
                f"offsets: expected one more than records, up to entry {ENTRY_LIMIT}, found {self.offsets.shape[0]}"
            )
        self.stop = first + self.offsets.shape[0] - 1
        self.start = next_member(first, index, ensemble, write)
        self.end = self.start + distance(self.start, index, ensemble) + 1
        self.run, self.gap = write, ensemble - write
        if self.gap == 0:
            self.end = self.stop

    def __dealloc__(self):
        PyBuffer_Release(&self.offsets)
        PyBuffer_Release(&self.data)

    cdef int64_t offset(self, int64_t entry) noexcept nogil:
        cdef int64_t i = entry - self.first
        return (<const int64_t *>self.offsets.buf)[i] if self.wide else (<const uint32_t *>self.offsets.buf)[i]

    cdef object adjacent(self):
        """Return a view of the part, if its records lie side by side; None: they must be put together."""
        if self.start >= self.stop or self.end + self.gap < self.stop:
            return None
        begin_at, end_at = self.offset(self.start), self.offset(min(self.end, self.stop))
        if not 0 <= begin_at <= end_at <= self.data.len:
            raise self.refusal()
        return memoryview(self.source).cast("B")[begin_at:end_at]

    cdef int64_t copy(self, uint8_t *out, int64_t room) noexcept nogil:
        """Put the part together, a run of records at a time; bytes copied, or BAD_OFFSETS. Without `out`, only adds up.

        Offsets are checked as they are used, both times: they may lie in memory that another thread writes to.
        """
        cdef int64_t entry = self.start, end = self.end, begin_at, end_at = 0, copied = 0
        while entry < self.stop:
            begin_at = self.offset(entry)
            if begin_at < end_at:
                return BAD_OFFSETS
            end_at = self.offset(min(end, self.stop))
            if not (begin_at <= end_at <= self.data.len and end_at - begin_at <= room - copied):
                return BAD_OFFSETS
            if out != NULL:
                memcpy(out + copied, <const uint8_t *>self.data.buf + begin_at, end_at - begin_at)
            copied += end_at - begin_at
            entry = end + self.gap
            end = entry + self.run
        return copied

    cdef object refusal(self):
        return InvalidArgumentError(f"offsets: expected ascending ones of at most {self.data.len} bytes, found others")


def gather(buffer, offsets, first_entry, index, ensemble_size, write_quorum, /):
    """Return the records of an encoded batch that bookie `index` stores: bytes, or a view of `buffer`.

    buffer: bytes-like, the records one after the other. offsets: int64 or uint32 array, one more than there are
    records: record k, of entry first_entry + k, is buffer[offsets[k]:offsets[k + 1]]. Records that lie side by side
    are not copied but viewed: all, when the write quorum is the ensemble. Large copies release the GIL. Nobody may
    write to `buffer` during the call, or as long as a view of it is in use.
    """
    cdef Quorums q = quorums_of(ensemble_size, write_quorum, 1)
    cdef int bookie = within(index, 0, q.ensemble - 1, "index")
    cdef _Batch batch = _Batch(buffer, offsets, entry_of(first_entry, "first_entry"), bookie, q.ensemble, q.write)
    part = batch.adjacent()
    if part is not None:
        return part
    cdef int64_t size = batch.copy(NULL, INT64_MAX), copied
    if size == BAD_OFFSETS:
        raise batch.refusal()
    cdef bytes copy = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(copy)
    if size >= RELEASE_GIL_FROM:
        with nogil:
            copied = batch.copy(out, size)
    else:
        copied = batch.copy(out, size)
    if copied != size:                      # offsets were written to meanwhile
        raise batch.refusal()
    return copy
