"""Reading single entries: entry number -> segment -> sparse index -> record, in one native call.

`LogViewBase` is the base of the writer's CommitLog and of the read-only LogReader. Both are Python classes that keep
the table of segments up to date, and implement `_open_segment` and `_load_index`.
"""

import operator

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_CheckExact
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from pyreplog._native.layout cimport KIND_BATCH, RecordHead, SEGMENT_HEADER, SHORT_HEADER, ShortHeader
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.segment cimport pin
from pyreplog._native.log.sparse cimport SparseIndex
from pyreplog._native.log.tail_page cimport load, load32
from pyreplog.errors import OutOfRangeError, TrimmedError, UnnumberedError, WrongTypeError


cdef class LogViewBase:
    """A table of segments, and lookup by entry number. Not for use by itself."""

    def __cinit__(self, *args, **kwargs):
        self.segments = []

    def __dealloc__(self):
        free(self.bases)
        free(self.firsts)

    # ---- the table, kept by the subclass -----------------------------------------------------------------------

    def _use_tail(self, Tail tail, *, bint trusted):
        """Read the visible end from the tail page; if it is not trusted, from `_set_visible_entry`."""
        self.tail = tail
        self.live = trusted

    def _set_visible_entry(self, int64_t entry):
        self.own_visible_entry = entry

    @property
    def truncation_count(self):
        """Number of the log's truncations, as the tail page tells it."""
        return load32(&self.tail.page.truncations) if self.live else 0

    cdef int64_t visible_entry(self) noexcept:
        """Return the number of the first entry that readers may not read yet."""
        return load(&self.tail.page.visible_entry) if self.live else self.own_visible_entry

    @property
    def _own_visible_entry(self):
        return self.own_visible_entry

    def _unmap(self, Py_ssize_t row):
        """Drop the mapping of a row; it is mapped again when needed."""
        self.segments[row] = None

    def _adopt(self, Segment segment not None):
        """Put a Segment into the row of its base, unless another thread was quicker. Return that of the row."""
        cdef Py_ssize_t row = self.segment_of(self.bases, segment.base)
        if row < 0 or self.bases[row] != segment.base:
            raise TrimmedError(f"the segment at {segment.base} was removed")
        if self.segments[row] is None:
            self.segments[row] = segment
        return self.segments[row]

    def _unmap_if_unpinned(self, Py_ssize_t row):
        """Drop the mapping of a row that nobody pins. Return whether the row is not mapped now. The GIL is not released."""
        self.located = None
        if self.segments[row] is not None and not (<Segment>self.segments[row]).pins:
            self.segments[row] = None
        return self.segments[row] is None

    def _unmap_unpinned(self):
        """Drop the mappings of all rows that nobody pins. Return how many rows stay mapped.

        The GIL is not released, so that nobody pins a segment in between.
        """
        cdef Py_ssize_t row, left = 0
        self.located = None
        for row in range(self.count):
            if self.segments[row] is not None:
                if (<Segment>self.segments[row]).pins:
                    left += 1
                else:
                    self.segments[row] = None
        return left

    def _set_segments(self, list table not None, truncations=None):
        """Replace the table: (base, first entry, Segment or None), ascending.

        truncations: the log's count when the table was made (None: now).
        """
        cdef Py_ssize_t i, count = len(table)
        self._set_capacity(count)
        if self.live:
            self.truncations = load32(&self.tail.page.truncations) if truncations is None else truncations
        for i in range(count):
            self.bases[i] = table[i][0]
            self.firsts[i] = table[i][1]
        self.segments = [row[2] for row in table]
        self.count = count
        self.located = None

    def _push_segment(self, Segment segment not None):
        """Add a row at the end."""
        self._set_capacity(self.count + 1)
        self.bases[self.count] = segment.base
        self.firsts[self.count] = segment.first_entry
        self.segments.append(segment)
        self.count += 1

    def _drop_segments(self, Py_ssize_t count):
        """Remove rows from the front. Return their Segments (None: not mapped)."""
        dropped = self.segments[:count]
        self.segments = self.segments[count:]
        self.count -= count
        memmove(self.bases, self.bases + count, self.count * sizeof(int64_t))
        memmove(self.firsts, self.firsts + count, self.count * sizeof(int64_t))
        return dropped

    def _set_capacity(self, Py_ssize_t count):
        cdef int64_t *grown = <int64_t *>realloc(self.bases, (count + 1) * sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        self.bases = grown
        grown = <int64_t *>realloc(self.firsts, (count + 1) * sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        self.firsts = grown

    def _segment_table(self):
        """Return the table in the form of `_set_segments`."""
        return [(self.bases[i], self.firsts[i], self.segments[i]) for i in range(self.count)]

    def hold_segment(self, int64_t position):
        """Return (pin, Segment) of the segment with a position; of the last one if the position is after it.

        The segment is not recycled while the pin lives. Raises TrimmedError if the position is before the first
        segment.
        """
        cdef Py_ssize_t row
        cdef Segment segment
        self.check_table()
        row = self.segment_of(self.bases, position)
        if row < 0:
            self.check_open()
            raise TrimmedError(f"position {position} was removed; the log begins at {self.bases[0] if self.count else 0}")
        segment = self.mapped(row)
        return pin(segment), segment

    def _open_segment(self, base):
        raise NotImplementedError

    def _rebuild(self):
        """Make a new table, after the log was truncated."""
        raise NotImplementedError

    def check_open(self):
        """Raise ClosedError or ForkedError if the handle cannot be used."""
        raise NotImplementedError

    def _wait_for(self, follower, deadline):
        raise NotImplementedError

    cdef bint poll_for(self, object follower, object deadline) except -1:
        """Wait until a follower that no writer wakes may continue.

        Returns False when `deadline` (seconds of the monotonic clock, None: none) has passed.
        """
        return self._wait_for(follower, deadline)

    def _load_index(self, segment, entry):
        """Make `segment.index` cover `entry`, or change the table so that another segment has it."""
        raise NotImplementedError

    cdef Py_ssize_t segment_of(self, const int64_t *keys, int64_t key) noexcept:
        cdef Py_ssize_t low = 0, high = self.count, middle
        if high and keys[high - 1] <= key:
            return high - 1
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _check_numbered(self):
        """Raise UnnumberedError if the log has no entry numbers."""
        if self.count and self.firsts[0] < 0:
            raise UnnumberedError(self.path)

    cdef Segment mapped(self, Py_ssize_t i):
        """Return the Segment of a row.

        Mapping it releases the GIL, and rows may move meanwhile: row numbers are invalid afterwards.
        """
        cdef int64_t base = self.bases[i]
        segment = self.segments[i]
        if segment is None:
            segment = self._open_segment(base)
            i = self.segment_of(self.bases, base)
            if i < 0 or self.bases[i] != base:
                self.check_open()  # if the log was closed meanwhile, nothing was removed
                raise TrimmedError(f"the segment at {base} was removed; the log begins at {self.bases[0] if self.count else 0}")
            if self.segments[i] is None:
                self.segments[i] = segment
            segment = self.segments[i]
        return <Segment>segment

    cdef int check_table(self) except -1:
        """Raise if the handle was closed, and make a new table if the log was truncated."""
        if not self.count:
            self.check_open()
        if self.live and load32(&self.tail.page.truncations) != self.truncations:
            self._rebuild()
        return 0

    # ---- lookup ------------------------------------------------------------------------------------------------

    cdef const uint8_t *locate(self, int64_t entry) except NULL:
        """Return the address of the verified record of an entry; set `found`.

        From the use of the index to the caller's pin the GIL must not be released, or the housekeeper could recycle the
        segment in between. Setting `found` may free the former segment: no deallocation here runs Python code.
        """
        cdef int64_t place, stride, delta, want, stop
        cdef Py_ssize_t row
        cdef Segment segment
        cdef SparseIndex index
        cdef const uint8_t *p
        self.check_table()
        if not 0 <= entry < self.visible_entry():
            self._check_numbered()
            raise OutOfRangeError(f"entry {entry}: the log's visible entries end before {self.visible_entry()}")
        while True:
            row = self.segment_of(self.firsts, entry)
            if row < 0:
                self.check_open()
                raise TrimmedError(f"entry {entry} was removed; the log begins at {self.firsts[0] if self.count else 0}")
            segment = self.mapped(row)
            want = entry - segment.first_entry
            if want < 0:
                raise OutOfRangeError(f"entry {entry} is before {segment.path}, which begins with {segment.first_entry}")
            if segment.index is not None and want < segment.index.entries:
                break
            held = pin(segment)
            self._load_index(segment, entry)
        index = segment.index
        stop = index.end
        place = index.find(want, &stride, &delta)
        self.located = segment
        if stride:
            p = segment.map + place + (want - delta) * stride
            if p + SHORT_HEADER <= segment.map + stop and (<const ShortHeader *>p).entry_delta == want:
                if (<const RecordHead *>p).kind <= KIND_BATCH and rec.check_record(p, segment.map + stop - p, segment.stamp) > 0:
                    return p
        return self.walk(segment, place, want, stop)

    cdef const uint8_t *walk(self, Segment segment, int64_t place, int64_t want, int64_t stop) except NULL:
        """Step from record to record to the wanted one. Only its CRC is checked, unless it is not there."""
        cdef const RecordHead *head
        cdef int64_t at = place, stride
        while at + SHORT_HEADER <= stop:
            head = <const RecordHead *>(segment.map + at)
            stride = rec.stride_of(head.length)
            if head.stamp != segment.stamp or stride < SHORT_HEADER or stride > stop - at:
                break
            if head.kind <= KIND_BATCH and (<const ShortHeader *>head).entry_delta >= want:
                if rec.check_record(<const uint8_t *>head, stop - at, segment.stamp) > 0:
                    if rec.first_delta_of(<const uint8_t *>head) <= want:
                        return <const uint8_t *>head
                break
            at += stride
        raise first_damage(segment, place, stop)

    def get(self, entry):
        """Read one entry, and verify its CRC.

        Any thread may call it; it does not block. The record keeps its segment mapped as long as the record lives.

        Args:
            entry: number of the entry.

        Returns:
            The `Record`; that of the whole batch, if the entry lies in a record batch.

        Raises:
            OutOfRangeError: the entry is not written yet, or not visible yet.
            TrimmedError: retention or `trim` has removed the entry.
            CorruptionError: the record is damaged.
            ClosedError: the log was closed.
        """
        cdef const uint8_t *p = self.locate(number(entry))
        cdef Segment segment = self.located
        return rec.make_record(pin(segment), p, segment.first_entry, segment.base + (p - segment.map))

    def __getitem__(self, item):
        """`log[n]`: the value of an entry, as bytes; negative n counts from the visible end.

        `log[a:b]`: a list of values.
        """
        cdef const uint8_t *p
        cdef int64_t entry
        if isinstance(item, slice):
            return self._values(item)
        entry = number(item)
        if entry < 0:
            entry += self.visible_entry()
        p = self.locate(entry)
        return PyBytes_FromStringAndSize(<const char *>rec.value_of(p), rec.value_length_of(p))

    def _values(self, item):
        raise NotImplementedError

    def _place_of(self, entry):
        """Return (position of an entry's record, number of the first entry in it)."""
        cdef const uint8_t *p = self.locate(number(entry))
        return self.located.base + (p - self.located.map), self.located.first_entry + rec.first_delta_of(p)

    def _position_of(self, entry):
        """Return the position of an entry's record."""
        cdef const uint8_t *p = self.locate(number(entry))
        return self.located.base + (p - self.located.map)


cdef object first_damage(Segment segment, int64_t place, int64_t stop):
    """Return the CorruptionError for the first record from `place` on that is damaged or out of order."""
    cdef int64_t stride = 1, follows = -1
    cdef const ShortHeader *p
    while place < stop:
        p = <const ShortHeader *>(segment.map + place)
        stride = rec.check_record(segment.map + place, stop - place, segment.stamp)
        if stride <= 0:
            return segment.fault(place, stride)
        if follows >= 0 and rec.first_delta_of(segment.map + place) != follows:
            break
        follows = <int64_t>p.entry_delta + (p.head.kind <= KIND_BATCH)
        place += stride
    return segment.fault(place, rec.RECORD_ENTRY)


cdef int64_t number(object entry) except? -1:
    """Return the entry number that a caller gave. Raises WrongTypeError and OutOfRangeError."""
    if not PyLong_CheckExact(entry):
        try:
            entry = operator.index(entry)
        except TypeError:
            raise WrongTypeError(f"entry: expected an int, found {type(entry).__name__}") from None
    try:
        return entry
    except OverflowError:
        raise OutOfRangeError(f"entry {entry}: numbers fit into 64 bits") from None
