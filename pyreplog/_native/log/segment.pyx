"""One mapped segment file: verification, scans and reads. `pyreplog.log.files` creates, names and removes the files.

Threads: any thread may read and scan at any time, also while the writer appends behind `end`. A scan, batch, record or
view pins its segment; a pinned segment is never unmapped, recycled or cut.
"""

import os

cimport cython
from libc.stdint cimport INT64_MAX, uint64_t
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport (
    FORM_COUNT, FORMAT_COUNTED, KIND_CONTROL, RecordHead, SEGMENT_HEADER, SEGMENT_MAX, SEGMENT_MIN, SHORT_HEADER,
    SegmentHeader, ShortHeader,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.batch cimport RecordBatch, make_batch
from pyreplog._native.log.segment_header cimport stamp_of
from pyreplog._native.log.status cimport corruption
from pyreplog._native.system.blocks cimport give_block, take_block
from pyreplog._native.log.segment_header import decode_header
from pyreplog.errors import CorruptionError, DiskFullError, InvalidArgumentError, UnsupportedFilesystemError

HEADER_BYTES = SEGMENT_HEADER
SIZE_MIN, SIZE_MAX = SEGMENT_MIN, SEGMENT_MAX


cdef extern from "<sys/mman.h>" nogil:
    void *c_mmap "mmap"(void *address, size_t length, int protection, int flags, int fd, int64_t offset)
    int c_munmap "munmap"(void *address, size_t length)
    enum:
        PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED

cdef extern from * nogil:
    """
    #include "populate.h"
    static int replog_errno(void) { return errno; }
    """
    int populate_pages "replog_populate"(uint8_t *map, int64_t size, int64_t offset, int64_t length)
    int get_errno "replog_errno"()


@cython.final
@cython.freelist(64)
@cython.no_gc  # a collector that clears it first would lose the pin; a segment never leads back to it
cdef class Pin:
    """Prevents that a segment is unmapped, recycled or cut, as long as it lives."""

    def __dealloc__(self):
        if self.segment is not None:
            self.segment.pins -= 1


cdef Pin pin(Segment segment):
    cdef Pin new_pin = Pin.__new__(Pin)
    new_pin.segment = segment
    segment.pins += 1
    return new_pin


# What a scan finds: offsets, and `room` further on the sizes of the values.
cdef struct Rows:
    uint32_t *offsets
    Py_ssize_t size               # bytes of that block
    int64_t room, count


cdef int widen(Rows *rows, int64_t room) except -1:
    """Make room for `room` rows, and keep those that were found."""
    cdef Py_ssize_t size
    cdef uint32_t *wider = <uint32_t *>take_block((2 * room + 1) * <Py_ssize_t>sizeof(uint32_t), &size)
    if wider != NULL and rows.count:
        memcpy(wider, rows.offsets, rows.count * sizeof(uint32_t))
        memcpy(wider + room, rows.offsets + rows.room, rows.count * sizeof(uint32_t))
    give_block(<uint8_t *>rows.offsets, rows.size)
    rows.offsets, rows.room, rows.size = wider, room, size
    if wider == NULL:
        raise MemoryError
    return 0


@cython.final
cdef class Segment:
    """A mapped segment file, open as `fd`, which the Segment owns from now on.

    path: for messages. writable: map it for writing, too. Raises CorruptionError (the header is damaged, or the size is
    wrong), FormatVersionError, and UnsupportedFilesystemError (the file system has no shared mappings).
    """

    def __cinit__(self, int fd, path, *, bint writable):
        self.fd = fd
        self.path = path
        self.writable = writable
        header = decode_header(path, os.pread(fd, SEGMENT_HEADER, 0))
        self.uuid, self.base, self.size, self.first_entry, self.epoch = header[:5]
        file_bytes = os.fstat(fd).st_size
        if file_bytes != self.size:
            raise CorruptionError(path, self.base, f"a file of {self.size} bytes", f"{file_bytes} bytes")
        self.stamp = stamp_of(<const uint8_t *><const char *>self.uuid, self.base, self.size, self.epoch)
        self.end = SEGMENT_HEADER
        cdef void *address = c_mmap(NULL, self.size, PROT_READ | (PROT_WRITE if writable else 0), MAP_SHARED, fd, 0)
        if address == MAP_FAILED:
            raise UnsupportedFilesystemError(get_errno(), f"cannot map {path}: {os.strerror(get_errno())}")
        self.map = <uint8_t *>address

    def __dealloc__(self):
        if self.map != NULL:
            c_munmap(self.map, self.size)
        if self.fd >= 0:
            os_close(self.fd)

    @property
    def pinned(self):
        """Number of batches, records, views and running scans that pin the segment."""
        return self.pins

    def fileno(self):
        return self.fd

    def set_file(self, int fd):
        """Take a new descriptor of the same file, in place of the old one, which is closed."""
        self.close_file()
        self.fd = fd

    def close_file(self):
        """Close the descriptor, which releases its lock; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def populate(self, int64_t offset, int64_t length):
        """Fault pages in for writing, without the GIL, so that no append has to.

        It does not change pages that exist, and may run while records are appended. Raises DiskFullError.
        """
        cdef int failed
        cdef Pin held = pin(self)
        if offset < 0 or length < 0 or length > self.size - offset or offset % 4096:
            raise InvalidArgumentError(f"{length} bytes at {offset}: outside of the segment's {self.size} bytes")
        with nogil:
            failed = populate_pages(self.map, self.size, offset, length)
        if failed:
            raise DiskFullError(failed, f"cannot populate {self.path}: {os.strerror(failed)}")

    @property
    def version(self):
        """Version of its format, as the file has it now: a writer may raise that of an empty segment."""
        return (<const SegmentHeader *>self.map).version

    cdef bint counted(self) noexcept:
        """Whether records of the segment may take several entry numbers."""
        return (<const SegmentHeader *>self.map).version >= FORMAT_COUNTED

    def reassign(self, path, bytes uuid not None, int64_t base, int64_t first_entry, uint32_t epoch):
        """Begin a new segment in the same file, whose new header the caller has written."""
        self.path, self.uuid, self.base, self.first_entry, self.epoch = path, uuid, base, first_entry, epoch
        self.stamp = stamp_of(<const uint8_t *><const char *>uuid, base, self.size, epoch)
        self.end = SEGMENT_HEADER
        self.sealed = False
        self.index = None
        self.ledgers = None

    def entry_after(self, int64_t count):
        """Return the number behind the first `count` entry numbers; 0 in a log of many ledgers."""
        return self.first_entry + count if self.first_entry >= 0 else 0

    def advance(self, int64_t end, bint sealed):
        """Set the offset up to which records are intact, and whether a blank follows there."""
        self.end, self.sealed = end, sealed

    def check(self, int64_t offset, int64_t stop):
        """Return the stride of the record at `offset` if it is intact, else a negative status (see record.pxd)."""
        if not SEGMENT_HEADER <= offset <= stop <= self.size:
            raise InvalidArgumentError(f"offset {offset}, stop {stop}: outside of the segment's {self.size} bytes")
        return rec.check_record(self.map + offset, stop - offset, self.stamp)

    def fault(self, int64_t offset, int64_t status):
        """Return the CorruptionError for a status at `offset`."""
        if not 0 <= offset <= self.size:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        return corruption(self.path, self.base + offset, status, self.map + offset, self.size - offset, self.stamp)

    def blank_at(self, int64_t offset, int64_t time):
        """Return the header of a blank that ends a segment without numbered entries at `offset`.

        time: append time of the last record.
        """
        cdef bytearray out = bytearray(SHORT_HEADER)
        if not SEGMENT_HEADER <= offset <= self.size - SHORT_HEADER:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        rec.encode_blank(<uint8_t *>out, <uint32_t>(self.size - offset), self.stamp, 0, rec.LAG_NONE, time)
        return bytes(out)

    def head_at(self, int64_t offset):
        """Return (kind, entry or -1, synced entry or -1, time, length) of the record at `offset`, not verified."""
        cdef const ShortHeader *p = <const ShortHeader *>(self.map + offset)
        cdef const rec.LongHeader *q = <const rec.LongHeader *>p
        if not SEGMENT_HEADER <= offset <= self.size - SHORT_HEADER:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        if p.head.form & rec.FORM_LONG and offset <= self.size - rec.LONG_HEADER:
            return p.head.kind, q.entry, q.lac, p.head.time, p.head.length
        entry = self.first_entry + p.entry_delta
        lac = -1 if p.synced_lag == rec.LAG_NONE else entry - <int64_t>p.synced_lag
        return p.head.kind, entry, lac, p.head.time, p.head.length

    def first_entry_at(self, int64_t offset):
        """Return the number of the first entry of the record at `offset`, not verified.

        Of a record without a number it is that of the next one.
        """
        cdef const uint8_t *p = self.map + offset
        if not SEGMENT_HEADER <= offset <= self.size - SHORT_HEADER:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        if (<const RecordHead *>p).form & rec.FORM_LONG:
            return self.head_at(offset)[1]
        return self.first_entry + rec.first_delta_with(p, self.size - offset, (<const ShortHeader *>p).entry_delta)

    def stamp_at(self, int64_t offset):
        """Return the stamp in the record header at `offset`, not verified."""
        if not SEGMENT_HEADER <= offset <= self.size - SHORT_HEADER:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        return (<const RecordHead *>(self.map + offset)).stamp

    def bytes_at(self, int64_t offset, int64_t length):
        """Return a copy of bytes of the file."""
        if offset < 0 or length < 0 or length > self.size - offset:
            raise InvalidArgumentError(f"{length} bytes at {offset}: outside of the segment's {self.size} bytes")
        return self.map[offset:offset + length]

    def view(self, int64_t offset, int64_t length):
        """Return a view of bytes of the file, which pins the segment."""
        if offset < 0 or length < 0 or length > self.size - offset:
            raise InvalidArgumentError(f"{length} bytes at {offset}: outside of the segment's {self.size} bytes")
        return rec.span(pin(self), self.map + offset, length)

    def scan(self, int64_t offset, int64_t stop, *, int64_t until=-1, int64_t limit=-1, bint all_kinds=False,
             int64_t entry=-1, int64_t below=-1):
        """Verify records from `offset` (which must begin one) up to `stop` and return them as a RecordBatch.

        until: stop before the first record that begins at this offset or later; -1: at `stop`. limit: number of records
        at most; -1: all. all_kinds: also control records and markers. entry: expected number of the first entry, in a
        log by itself; -1: any. below: stop before the first record that has no lower number,
        where `entry` is given; -1: none. The batch ends before a damaged record; its next_position is where to go on.
        Raises CorruptionError if the first record is damaged. The GIL is released.
        """
        cdef int64_t next_offset = offset, fault, most
        cdef int64_t expected = entry - self.first_entry if entry >= 0 and self.first_entry >= 0 else -1
        cdef int64_t stop_delta = below - self.first_entry if below >= 0 and expected >= 0 else INT64_MAX
        cdef Rows rows
        cdef RecordBatch batch
        cdef Pin held
        if until < 0 or until > stop:
            until = stop
        if not SEGMENT_HEADER <= offset <= until <= stop <= self.size:
            raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {self.size} bytes")
        held = pin(self)
        most = (until - offset) // SHORT_HEADER + 1
        if 0 <= limit < most:
            most = limit
        if expected >= 0:
            most = min(most, max(stop_delta - expected, 0))
        memset(&rows, 0, sizeof(Rows))
        widen(&rows, min(most, self.likely_count(offset, until)))
        while True:
            with nogil:
                rows.count += rec.scan_records(
                    self.map, next_offset, until, stop, self.stamp, rows.offsets + rows.count,
                    rows.offsets + rows.room + rows.count, rows.room - rows.count, stop_delta, not all_kinds, &expected,
                    &next_offset, &fault)
            if rows.count < rows.room or rows.room == most or next_offset >= until:
                break
            widen(&rows, min(most, 4 * rows.room))
        if fault and fault != rec.RECORD_BLANK and next_offset == offset:
            give_block(<uint8_t *>rows.offsets, rows.size)
            raise self.fault(next_offset, fault)
        if fault == rec.RECORD_BLANK:
            next_offset = self.size
        batch = make_batch(held, self.map, self.base, self.first_entry, rows.offsets, rows.offsets + rows.room, rows.count,
                           self.first_entry >= 0 and not all_kinds, self.base + next_offset)
        batch.block_bytes = rows.size
        return batch

    cdef int64_t likely_count(self, int64_t offset, int64_t until) noexcept:
        """Return the number of records in a range if all are as long as the first."""
        cdef int64_t stride = SHORT_HEADER
        if offset < until:
            stride = max(stride, rec.stride_of((<const RecordHead *>(self.map + offset)).length))
        return (until - offset) // stride + 1

    def read(self, int64_t offset, int64_t stop):
        """Verify the record at `offset` and return it as a Record. Raises CorruptionError."""
        cdef int64_t status
        if not SEGMENT_HEADER <= offset < stop <= self.size:
            raise InvalidArgumentError(f"offset {offset}, stop {stop}: outside of the segment's {self.size} bytes")
        status = rec.check_record(self.map + offset, stop - offset, self.stamp)
        if status < 0:
            raise self.fault(offset, status)
        return rec.make_record(pin(self), self.map + offset, self.first_entry, self.base + offset)

    def find_intact(self, int64_t offset, int64_t stop):
        """Return the offset of the first intact record at or behind `offset`, at any aligned place; -1: none.

        The GIL is released.
        """
        cdef int64_t intact_at
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset <= stop <= self.size:
            raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {self.size} bytes")
        with nogil:
            intact_at = find_record(self.map, (offset + 7) & ~7, stop, self.stamp, False)
        return intact_at

    def find_blank(self, int64_t offset):
        """Return the offset of the blank that ends the segment, if it lies at or behind `offset`; else -1.

        The GIL is released.
        """
        cdef int64_t blank_at
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset <= self.size:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        with nogil:
            blank_at = find_record(self.map, (offset + 7) & ~7, self.size, self.stamp, True)
        return blank_at

    def whole_records(self, int64_t offset, int64_t until, int64_t stop):
        """Return the offset behind the last record that ends at or before `until`, of those from `offset` on, where one
        begins; behind the first one, if that is longer. No record is verified.

        stop: offset behind the last record. Raises CorruptionError if the length of a record cannot be right.
        """
        cdef int64_t at = offset, stride = 0
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset < stop <= self.size:
            raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {self.size} bytes")
        if self.index is not None and offset < until <= stop:
            at = max(at, self.index.before(until))
        with nogil:
            while at < until or at == offset:
                stride = stride_at(self.map, at, stop)
                if stride < 0 or (at + stride > until and at > offset):
                    break
                at += stride
                if at >= stop:
                    break
        if stride < 0:
            raise self.fault(at, stride)
        return at

    def find_control(self, int64_t offset, int64_t stop):
        """Return the offset of the first control record from `offset` on, where a record begins; -1: there is none
        before `stop`. No record is verified. Raises CorruptionError if the length of a record cannot be right."""
        cdef int64_t at = offset, stride = 0
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset <= stop <= self.size:
            raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {self.size} bytes")
        with nogil:
            while at < stop:
                stride = stride_at(self.map, at, stop)
                if stride < 0 or (<const RecordHead *>(self.map + at)).kind == KIND_CONTROL:
                    break
                at += stride
        if stride < 0:
            raise self.fault(at, stride)
        return at if at < stop else -1

    def used_end(self, int64_t offset):
        """Return the offset behind the last byte from `offset` on that is not zero, rounded up to 8."""
        cdef int64_t end
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset <= self.size:
            raise InvalidArgumentError(f"offset {offset} outside of the segment's {self.size} bytes")
        with nogil:
            end = last_nonzero(self.map, offset, self.size)
        return end

    def verify(self, SparseIndex index not None, int64_t offset, int64_t stop):
        """Verify all records from `offset` on, with their entry numbers, and note them in `index`.

        index: in memory, of a segment of this size. Returns (offset at which it ended, status). The status is 0 at
        `stop`, else the fault of the record there; RECORD_BLANK is the end of the segment. The GIL is released.
        """
        cdef int64_t status = 0
        cdef bint counted = self.counted()
        cdef Pin held = pin(self)
        if not SEGMENT_HEADER <= offset <= stop <= self.size:
            raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {self.size} bytes")
        index.check_notes(self.size)
        with nogil:
            while offset < stop:
                status = verify_one(self.map, offset, stop, self.stamp, counted, index)
                if status < 0:
                    break
                offset += status
                status = 0
        return offset, status


cdef int64_t stride_at(const uint8_t *map, int64_t offset, int64_t stop) noexcept nogil:
    """Return the stride of the record at `offset` by its length alone, or a status."""
    cdef int64_t length
    if offset + SHORT_HEADER > stop:
        return rec.RECORD_LENGTH
    length = (<const RecordHead *>(map + offset)).length
    if length < SHORT_HEADER or offset + rec.stride_of(length) > stop:
        return rec.RECORD_LENGTH if length else rec.RECORD_ABSENT
    return rec.stride_of(length)


cdef int64_t find_record(const uint8_t *map, int64_t offset, int64_t stop, uint32_t stamp, bint blank) noexcept nogil:
    """Return the offset of the first intact record at or behind `offset`, at any aligned place; -1: none.

    blank: look for the blank that fills the rest up to `stop`.
    """
    cdef int64_t status
    while offset + SHORT_HEADER <= stop:
        if (<const RecordHead *>(map + offset)).stamp == stamp:
            status = rec.check_record(map + offset, stop - offset, stamp)
            if status == rec.RECORD_BLANK if blank else status > 0:
                return offset
        offset += 8
    return -1


cdef int64_t last_nonzero(const uint8_t *map, int64_t offset, int64_t stop) noexcept nogil:
    """Return the offset behind the last word of map[offset, stop) that is not zero; `offset`: all are zero."""
    cdef const uint64_t *words = <const uint64_t *>map
    cdef int64_t at = stop >> 3
    while at > offset >> 3 and words[at - 1] == 0:
        at -= 1
    return max(at << 3, offset)


cdef int64_t verify_one(const uint8_t *map, int64_t offset, int64_t stop, uint32_t stamp, bint counted,
                        SparseIndex index) noexcept nogil:
    cdef const uint8_t *p = map + offset
    cdef int64_t stride = rec.check_record(p, stop - offset, stamp)
    if stride < 0:
        return stride
    if (<const RecordHead *>p).form & FORM_COUNT and not counted:
        return rec.RECORD_FORM
    if not (<const RecordHead *>p).form & rec.FORM_LONG and not rec.continues(p, index.entries):
        return rec.RECORD_ENTRY
    index.note(offset, stride, rec.count_of(p), rec.event_time_of(p))
    return stride


cdef extern from "<unistd.h>" nogil:
    int os_close "close"(int fd)
