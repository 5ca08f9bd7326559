"""Sets of offsets as ranges: millions of ranges, 16 bytes each, with all loops over many of them in C.

FORMAT.md, "Range set", has the bytes. Threads: everything runs under the GIL, which makes each call one step.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free

from pyreplog._native.topic.ranges cimport (
    OFFSET_MAX, Known, check_range, int64s, ranges_add, ranges_between, ranges_cut, ranges_known, ranges_mask,
    ranges_missing,
)
from pyreplog._native.topic.rows cimport Rows, Spot, rows_at, rows_before, rows_bytes, rows_clear, rows_until
from pyreplog._native.topic.varint cimport Out, get_varint, put_varint
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError

OFFSET_END = OFFSET_MAX


@cython.final
cdef class RangeSet:
    """A set of offsets from 0 to 2**62 - 1, as ranges [start, end) that ascend and do not touch. Empty at first.

    `len()` is the number of ranges, `total` that of members, `nbytes` their memory. Methods raise InvalidArgumentError
    for a range unless 0 <= start <= end <= 2**62, and WrongTypeError for an array unless it is int64 of one dimension.
    """

    cdef Rows rows
    cdef readonly int64_t total

    def __cinit__(self):
        self.rows.width = 2

    def __dealloc__(self):
        rows_clear(&self.rows)

    def __len__(self):
        return self.rows.count

    def __bool__(self):
        return self.rows.count > 0

    def __contains__(self, int64_t offset, /):
        return ranges_known(&self.rows, offset).present

    @property
    def nbytes(self):
        return rows_bytes(&self.rows)

    @property
    def first(self):
        """The lowest member; None: the set is empty."""
        return self.next_present(0)

    @property
    def last(self):
        """The highest member; None: the set is empty."""
        cdef Spot spot = rows_until(&self.rows, OFFSET_MAX)
        cdef const int64_t *row = rows_before(&self.rows, &spot)
        return row[1] - 1 if row != NULL else None

    def add(self, int64_t start, int64_t end):
        """Add [start, end); return the number of new members."""
        check_range(start, end)
        return self.put(start, end)

    def remove(self, int64_t start, int64_t end):
        """Remove [start, end); return the number of removed members."""
        check_range(start, end)
        return self.cut(start, end)

    def add_offsets(self, offsets):
        """Add int64 `offsets`; return the number of new members. Any order; fastest when they ascend."""
        return self.each(int64s(offsets, "offsets"), True)

    def remove_offsets(self, offsets):
        """Remove int64 `offsets`; return the number of removed members. Any order; fastest when they ascend."""
        return self.each(int64s(offsets, "offsets"), False)

    def add_ranges(self, starts, ends):
        """Add the ranges [starts[i], ends[i]); return the number of new members."""
        return self.each_range(int64s(starts, "starts"), int64s(ends, "ends"), True)

    def remove_ranges(self, starts, ends):
        """Remove the ranges [starts[i], ends[i]); return the number of removed members."""
        return self.each_range(int64s(starts, "starts"), int64s(ends, "ends"), False)

    def clear(self):
        rows_clear(&self.rows)
        self.total = 0

    def covers(self, int64_t start, int64_t end):
        """Return whether all of [start, end) are members."""
        check_range(start, end)
        cdef Known known = ranges_known(&self.rows, start)
        return start == end or known.present and known.stop >= end

    def missing(self, int64_t start, int64_t end):
        """Return how many of [start, end) are no members."""
        check_range(start, end)
        return ranges_missing(&self.rows, start, end)

    def next_present(self, int64_t at):
        """Return the lowest member from `at` on; None: there is none."""
        cdef Known known = ranges_known(&self.rows, at)
        if known.present:
            return at
        return known.stop if known.stop != INT64_MAX else None

    def pop_first(self, int64_t most=OFFSET_MAX):
        """Remove the lowest range, or its first `most` members; return (start, end), or None if the set is empty."""
        cdef Spot spot
        cdef const int64_t *row
        cdef int64_t start, end
        if most < 1:
            raise InvalidArgumentError(f"most: expected 1 or more, found {most}")
        spot.chunk, spot.row = 0, 0
        row = rows_at(&self.rows, &spot)
        if row == NULL:
            return None
        start, end = row[0], row[0] + min(most, row[1] - row[0])
        self.cut(start, end)
        return start, end

    def mask(self, offsets):
        """Return bool[n]: which of int64 `offsets` are members. Any order; fastest when they ascend."""
        import numpy
        cdef const int64_t[::1] wanted = int64s(offsets, "offsets")
        cdef uint8_t[::1] mask
        mask_array = numpy.empty(wanted.shape[0], numpy.uint8)
        if wanted.shape[0]:
            mask = mask_array
            ranges_mask(&self.rows, &wanted[0], wanted.shape[0], &mask[0])
        return mask_array.view(numpy.bool_)

    def intersect(self, int64_t start=0, int64_t end=OFFSET_MAX, int64_t most=OFFSET_MAX):
        """Return (starts int64[m], ends int64[m]) of the first `most` ranges, cut to [start, end)."""
        check_range(start, end)
        return ranges_between(&self.rows, start, end, most)

    def chunks(self, int64_t most=4096):
        """Yield all ranges as (starts, ends) of at most `most` each; changes meanwhile may be seen or not."""
        cdef int64_t at = 0
        while True:
            starts, ends = ranges_between(&self.rows, at, OFFSET_MAX, most)
            if not len(starts):
                return
            at = ends[len(ends) - 1]
            yield starts, ends

    def dump(self):
        """Return the set as bytes."""
        cdef Out out
        cdef Spot spot
        cdef const int64_t *row
        cdef int64_t at = 0
        cdef int status = 0
        out.data, out.used, out.room = NULL, 0, 0
        spot.chunk, spot.row = 0, 0
        row = rows_at(&self.rows, &spot)
        while row != NULL and status == 0:
            status = put_varint(&out, row[0] - at)
            if status == 0:
                status = put_varint(&out, row[1] - row[0])
            at = row[1]
            spot.row += 1
            row = rows_at(&self.rows, &spot)
        try:
            if status < 0:
                raise MemoryError
            return PyBytes_FromStringAndSize(<char *>out.data, out.used)
        finally:
            free(out.data)

    @classmethod
    def load(cls, data):
        """Return the set that `dump` encoded. Raises InvalidRecordsError if the bytes are malformed."""
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        cdef RangeSet ranges = RangeSet()
        cdef Py_ssize_t size = view.shape[0]
        cdef const uint8_t *begin = &view[0] if size else NULL
        cdef const uint8_t *at = begin
        cdef int64_t end = 0, gap, length
        while at < begin + size:
            gap = get_varint(&at, begin + size)
            length = get_varint(&at, begin + size)
            if gap < (1 if end else 0) or length < 1 or gap > OFFSET_MAX - end or length > OFFSET_MAX - end - gap:
                raise InvalidRecordsError(at - begin, "a gap and a length of ranges that ascend", f"{gap}, {length}")
            ranges.put(end + gap, end + gap + length)
            end += gap + length
        return ranges

    cdef int64_t put(self, int64_t start, int64_t end) except -1:
        cdef int64_t new = ranges_add(&self.rows, start, end) if start < end else 0
        if new < 0:
            raise MemoryError
        self.total += new
        return new

    cdef int64_t cut(self, int64_t start, int64_t end) except -1:
        cdef int64_t removed = ranges_cut(&self.rows, start, end) if start < end else 0
        if removed < 0:
            raise MemoryError
        self.total -= removed
        return removed

    cdef int64_t each(self, const int64_t[::1] offsets, bint present) except -1:
        """Add or remove offsets; runs of consecutive ones as one range."""
        cdef Py_ssize_t count = offsets.shape[0], i, stop = 0
        cdef int64_t changed = 0
        for i in range(count):
            if not 0 <= offsets[i] < OFFSET_MAX:
                raise InvalidArgumentError(f"offset: expected 0 to {OFFSET_MAX - 1}, found {offsets[i]}")
        while stop < count:
            i = stop
            stop += 1
            while stop < count and offsets[stop] == offsets[stop - 1] + 1:
                stop += 1
            changed += (self.put(offsets[i], offsets[stop - 1] + 1) if present
                        else self.cut(offsets[i], offsets[stop - 1] + 1))
        return changed

    cdef int64_t each_range(self, const int64_t[::1] starts, const int64_t[::1] ends, bint present) except -1:
        cdef Py_ssize_t i
        cdef int64_t changed = 0
        if starts.shape[0] != ends.shape[0]:
            raise InvalidArgumentError(f"ends: expected {starts.shape[0]} of them, found {ends.shape[0]}")
        for i in range(starts.shape[0]):
            check_range(starts[i], ends[i])
        for i in range(starts.shape[0]):
            changed += self.put(starts[i], ends[i]) if present else self.cut(starts[i], ends[i])
        return changed
