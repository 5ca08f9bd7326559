"""The position of a follower in its log: one native call waits for the next record, verifies it and returns it.

A process that has slept finds its caches cold: each line of Python between its waking up and the return of the entry
takes many times as long as in a loop.
"""

from libc.stdint cimport UINT32_MAX
from libc.string cimport memcpy

from pyreplog._native.layout cimport KIND_BATCH, RecordHead, SEGMENT_HEADER, SHORT_HEADER, ShortHeader
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.batch cimport RecordBatch
from pyreplog._native.log.segment cimport Segment
from pyreplog._native.log.tail_page cimport load, load32

from pyreplog.errors import CorruptionError

SLICE_US = 200_000  # a sleeping follower checks this often for Ctrl-C and a killed writer
cdef int64_t SLEEP_US = SLICE_US


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <time.h>
    static int64_t replog_monotonic_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    """
    int64_t monotonic_us "replog_monotonic_us"()


cdef class LogFollowerBase:
    """Iterates over the records from entry number `entry` on, and over new ones.

    It ends when none has come for `timeout_us` (-1: without limit). Base of `pyreplog.log.log_view.LogFollower`, which
    implements `_load_batch`. Not thread-safe.

    batch_bytes: approximate size of a batch in the log. entry: the next one. position: where it is looked for; -1:
    unknown. held: the segment there. truncations: count of the log's truncations when these were determined.
    """

    def __cinit__(self, LogViewBase log not None, int64_t entry, int64_t timeout_us, int64_t batch_bytes):
        self.log, self.entry, self.timeout_us, self.batch_bytes = log, entry, timeout_us, batch_bytes
        self.position = -1
        self.truncations = log.truncation_count

    def __iter__(self):
        return self

    def __next__(self):
        record = self.record_here()
        if record is None:
            record = self.wait(False)
        if record is None:
            raise StopIteration
        return record

    def next_batch(self):
        """Return the next entries as a RecordBatch; None: the time is over."""
        return self.wait(True)

    def _load_batch(self, batch_bytes):
        """Return a batch of the next entries, which the current segment does not hold.

        None: they do not exist yet, or only other records before them were skipped.
        """
        raise NotImplementedError

    @property
    def last_header(self):
        """The beginning of the last returned record's header; None: no record was returned."""
        return self.header[:HEADER] if self.has_given else None

    def give(self, RecordBatch batch not None):
        """Return a batch to the caller, and continue after it; None if it is empty."""
        cdef Py_ssize_t last = batch.count - 1
        self.position = batch.next_position
        if last < 0:
            return None
        self.pass_record(batch.map + batch.offsets[last], batch.record_at(last).number(), batch.next_position)
        return batch

    cdef void pass_record(self, const uint8_t *p, int64_t entry, int64_t next_position) noexcept:
        memcpy(self.header, p, HEADER)  # a copy: recovery cuts in place
        self.has_given = True
        self.entry, self.position = entry + 1, next_position

    cdef bint is_told(self) noexcept:
        """Whether the log was not truncated since the position was determined."""
        cdef LogViewBase log = self.log
        return self.truncations == (load32(&log.tail.page.truncations) if log.live else UINT32_MAX)

    cdef Record record_here(self):
        """Return the record at the position; None: it is not visible yet, or not in the current segment."""
        cdef Segment segment
        cdef const uint8_t *p
        cdef int64_t offset, stride
        cdef Record record
        if self.held is None or not self.log.count or self.entry >= self.log.visible_entry() or not self.is_told():
            return None
        segment = self.held.segment
        offset = self.position - segment.base
        if not SEGMENT_HEADER <= offset <= segment.size - SHORT_HEADER:
            return None
        p = segment.map + offset
        stride = rec.check_record(p, segment.size - offset, segment.stamp)
        if stride <= 0 or (<const RecordHead *>p).kind > KIND_BATCH:
            return None
        if segment.first_entry + rec.first_delta_of(p) != self.entry:
            return None
        record = rec.make_record(self.held, p, segment.first_entry, self.position)
        self.pass_record(p, record.number(), self.position + stride)
        return record

    cdef object batch_here(self):
        """Return a batch at the position, as `record_here` returns a record."""
        cdef Segment segment
        cdef int64_t offset, extent
        if self.held is None or not self.log.live or not self.is_told():
            return None
        segment = self.held.segment
        offset = self.position - segment.base
        extent = min(load(&self.log.tail.page.visible) - segment.base, segment.size)
        if not SEGMENT_HEADER <= offset < extent:
            return None
        try:
            return self.give(segment.scan(offset, extent, until=min(extent, offset + self.batch_bytes), entry=self.entry))
        except CorruptionError:
            if self.is_told():
                raise
            return None  # cut and written anew while it was looked at

    cdef object wait(self, bint many):
        """Wait for the next batch or record; None: the time is over."""
        cdef int64_t deadline = -1 if self.timeout_us < 0 else monotonic_us() + self.timeout_us
        while self.wait_until_due(deadline):
            result = self.batch_here() if many else self.record_here()
            if result is not None:
                return result
            batch = self._load_batch(self.batch_bytes if many else 1)
            if batch is not None:
                return batch if many else batch[0]
        return None

    cdef bint wait_until_due(self, int64_t deadline) except -1:
        """Sleep until the next entry is visible, or the log was truncated.

        Returns False when `deadline` (microseconds of the monotonic clock, -1: none) has passed.
        """
        cdef LogViewBase log = self.log
        cdef int64_t seen, left
        while True:
            if not log.count:  # closed, or empty
                log.check_open()
            if not log.live or not log.tail.writable:  # no writer would wake this thread
                return log.poll_for(self, None if deadline < 0 else deadline / 1e6)
            seen = load(&log.tail.page.visible)  # read before the entry number, which a writer stores first
            if self.entry < log.visible_entry() or not self.is_told():
                return True
            left = SLEEP_US if deadline < 0 else min(SLEEP_US, deadline - monotonic_us())
            if left <= 0:
                return False
            log.tail.wait(seen, left, True)
            PyErr_CheckSignals()
            if self.entry < log.visible_entry():
                return True
