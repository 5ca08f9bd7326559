"""Batches: the verified records of one scan, as numpy columns over the mapping.

Threads: a batch is immutable, and any thread may use it. It keeps its segment mapped as long as it lives.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE, PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyreplog._native.layout cimport FORM_KEY, FORM_LONG, LongHeader, RecordHead, ShortHeader
from pyreplog._native.log.record cimport (
    count_of, event_time_of, key_of, make_record, span, stride_of, value_length_of, value_of,
)
from pyreplog._native.system.blocks cimport Block, give_block, int64_array, make_block

from pyreplog.errors import WrongTypeError


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)  # of an `object` Cython would count its own reference


cdef enum Column:
    COLUMN_POSITION, COLUMN_ENTRY, COLUMN_TIME, COLUMN_SIZE, COLUMN_KEY_SIZE, COLUMN_EVENT_TIME, COLUMN_KIND
    COLUMN_LEDGER, COLUMN_STRIDE, COLUMN_ENTRY_COUNT


cdef void gather(RecordBatch batch, int column, int64_t *out) noexcept nogil:
    """Fill one int64 column. Columns that need no access to records come first.

    Fields of the batch are kept in locals, because for the compiler a store into `out` might change the batch.
    """
    cdef Py_ssize_t i, count = batch.count
    cdef int64_t base = batch.base
    cdef const uint32_t *offsets = batch.offsets
    cdef const uint32_t *sizes = batch.sizes
    cdef const uint8_t *map = batch.map
    if column == COLUMN_POSITION:
        for i in range(count):
            out[i] = base + offsets[i]
    elif column == COLUMN_SIZE:
        for i in range(count):
            out[i] = sizes[i]
    elif column == COLUMN_ENTRY and batch.consecutive and count:
        base = batch.first_entry + (<const ShortHeader *>(map + offsets[0])).entry_delta
        for i in range(count):
            out[i] = base + i
    elif column == COLUMN_TIME:
        for i in range(count):
            out[i] = (<const RecordHead *>(map + offsets[i])).time
    else:
        for i in range(count):
            out[i] = field_of(batch, map + offsets[i], column)


cdef int64_t field_of(RecordBatch batch, const uint8_t *p, int column) noexcept nogil:
    cdef const RecordHead *head = <const RecordHead *>p
    cdef bint is_long = head.form & FORM_LONG
    if column == COLUMN_ENTRY:
        if is_long:
            return (<const LongHeader *>p).entry
        return batch.first_entry + (<const ShortHeader *>p).entry_delta
    if column == COLUMN_KEY_SIZE:
        return head.key_length if head.form & FORM_KEY else -1
    if column == COLUMN_EVENT_TIME:
        return event_time_of(p)
    if column == COLUMN_KIND:
        return head.kind
    if column == COLUMN_ENTRY_COUNT:
        return count_of(p)
    if column == COLUMN_LEDGER:
        return (<const LongHeader *>p).ledger if is_long else 0
    return stride_of(head.length)


cdef int64_t pack(const uint8_t *map, const uint32_t *offsets, Py_ssize_t count, bint keys, int64_t *starts,
                  uint8_t *out) noexcept nogil:
    """Copy values (or keys) end to end; with `out` NULL only fill `starts`. Return the total number of bytes."""
    cdef Py_ssize_t i
    cdef int64_t at = 0, length
    cdef const uint8_t *p
    for i in range(count):
        p = map + offsets[i]
        length = (<const RecordHead *>p).key_length if keys else value_length_of(p)
        starts[i] = at
        if out != NULL:
            memcpy(out + at, key_of(p) if keys else value_of(p), length)
        at += length
    starts[count] = at
    return at


cdef inline int64_t delta_of(RecordBatch batch, Py_ssize_t i) noexcept:
    return (<const ShortHeader *>(batch.map + batch.offsets[i])).entry_delta


cdef RecordBatch make_batch(object owner, const uint8_t *map, int64_t base, int64_t first_entry,
                            uint32_t *offsets, uint32_t *sizes, Py_ssize_t count, bint consecutive,
                            int64_t next_position):
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch.owner = owner
    batch.map = map
    batch.base = base
    batch.first_entry = first_entry
    batch.offsets, batch.sizes = offsets, sizes
    batch.count = count
    batch.consecutive = consecutive and count and delta_of(batch, count - 1) - delta_of(batch, 0) == count - 1
    batch.next_position = next_position
    return batch


@cython.final
cdef class RecordBatch:
    """The verified records of one segment, as numpy columns; made by `read` and `follow_batches`.

    A batch is immutable, and any thread may use it. It keeps its segment mapped as long as it lives. `batch[i]` and
    iteration give `Record`s. Columns are numpy arrays with one element for each record.

    Attributes:
        next_position: position after the last record, bytes from the beginning of the log.
        plain: True if no record has a key or attributes; False: unknown.
    """

    def __cinit__(self):
        self.columns = {}

    def __init__(self):
        raise TypeError("batches are made by a log's scans")

    def __dealloc__(self):
        if self.block_bytes:
            give_block(<uint8_t *>self.offsets, self.block_bytes)
        else:
            free(self.offsets)

    def __len__(self):
        return self.count

    cdef Record record_at(self, Py_ssize_t i):
        return self.record_from(self.map + self.offsets[i])

    cdef Record record_from(self, const uint8_t *p):
        return make_record(self.owner, p, self.first_entry, self.base + (p - self.map))

    def __getitem__(self, index):
        cdef Py_ssize_t i = PyNumber_AsSsize_t(index, IndexError)
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"batch index {i} out of range({self.count})")
        return self.record_at(i)

    def __iter__(self):
        return RecordIterator(self)

    def __reduce__(self):
        raise TypeError("a RecordBatch views a mapped segment and cannot be pickled; take its columns or values")

    cdef object column(self, int which):
        cdef Block block
        array = self.columns.get(which)
        if array is None:
            import numpy
            if which == COLUMN_TIME and self.times is not None:
                block = self.times
            else:
                block = make_block(self.count * sizeof(int64_t))
                with nogil:
                    gather(self, which, <int64_t *>block.data)
            array = self.columns[which] = numpy.frombuffer(block, numpy.int64, self.count)
        return array

    @property
    def position(self):
        """Position of each record in the log, bytes."""
        return self.column(COLUMN_POSITION)

    @property
    def entry(self):
        """Entry number of each record; of one that takes several, the last."""
        return self.column(COLUMN_ENTRY)

    @property
    def entry_count(self):
        """How many entry numbers each record takes: 1 unless it is a record batch; 0 if it has no number."""
        return self.column(COLUMN_ENTRY_COUNT)

    @property
    def first(self):
        """Number of the first entry in the first record; -1: the batch is empty."""
        if not self.count:
            return -1
        return self.record_at(0).number() - max(count_of(self.map + self.offsets[0]) - 1, 0)

    @property
    def end(self):
        """Number of the entry after the last record, where reading continues; -1: the batch is empty."""
        return self.record_at(self.count - 1).entry + 1 if self.count else -1

    @property
    def timestamp(self):
        """Append time of each record, microseconds since 1970."""
        return self.column(COLUMN_TIME)

    @property
    def event_time(self):
        """Event time of each record, microseconds since 1970; NO_EVENT_TIME (the smallest int64) if it has none."""
        return self.column(COLUMN_EVENT_TIME)

    @property
    def size(self):
        """Bytes of each value."""
        return self.column(COLUMN_SIZE)

    @property
    def key_size(self):
        """Bytes of each key; -1: the record has none."""
        return self.column(COLUMN_KEY_SIZE)

    @property
    def stride(self):
        """Bytes that each record takes in the log, header and padding included."""
        return self.column(COLUMN_STRIDE)

    @property
    def kind(self):
        """Record kind: 1 data, 2 batch, 3 control, 4 marker."""
        return self.column(COLUMN_KIND)

    @property
    def ledger(self):
        """Ledger id of each record; 0 in a log of its own."""
        return self.column(COLUMN_LEDGER)

    @property
    def buffer(self):
        """The stored bytes from the first record to the end of the last one, not copied.

        Between the records of a batch that was parsed from a buffer there are no other bytes. For a batch that was
        joined from several ones it is a copy.
        """
        cdef const uint8_t *p
        if not self.count:
            return memoryview(b"")
        if self.scattered:
            return memoryview(b"".join(record.raw for record in self))
        p = self.map + self.offsets[self.count - 1]
        return span(self.owner, self.map + self.offsets[0],
                    p - self.map - self.offsets[0] + stride_of((<const RecordHead *>p).length))

    def select(self, indices):
        """Return a batch of some of the records.

        Args:
            indices: numpy array of int64, ascending, each from 0 to `len(batch) - 1`.
        """
        cdef Py_buffer buffer
        cdef const int64_t *wanted
        cdef uint32_t *offsets
        cdef RecordBatch selected
        cdef Py_ssize_t i, count
        import numpy
        array = numpy.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise WrongTypeError(f"indices: expected integers of one dimension, found {array.dtype} of {array.shape}")
        PyObject_GetBuffer(int64_array(array), &buffer, PyBUF_SIMPLE)
        try:
            wanted, count = <const int64_t *>buffer.buf, buffer.len // <Py_ssize_t>sizeof(int64_t)
            for i in range(count):
                if not 0 <= wanted[i] < self.count:
                    raise IndexError(f"batch index {wanted[i]} out of range({self.count})")
            offsets = <uint32_t *>malloc(2 * (count + 1) * sizeof(uint32_t))
            if offsets == NULL:
                raise MemoryError
            for i in range(count):
                offsets[i] = self.offsets[wanted[i]]
                offsets[count + i] = self.sizes[wanted[i]]
        finally:
            PyBuffer_Release(&buffer)
        selected = make_batch(self.owner, self.map, self.base, self.first_entry, offsets, offsets + count, count, False,
                          self.next_position)
        selected.scattered, selected.plain = self.scattered, self.plain
        return selected

    def values(self):
        """Copy the values into a list of bytes."""
        cdef list out = PyList_New(self.count)
        cdef Py_ssize_t i
        cdef const uint8_t *p
        for i in range(self.count):
            p = self.map + self.offsets[i]
            value = PyBytes_FromStringAndSize(<const char *>value_of(p), value_length_of(p))
            Py_INCREF(value)
            PyList_SET_ITEM(out, i, value)
        return out

    def views(self):
        """Return the values as a list of read-only memoryviews, not copied. Each keeps the segment mapped."""
        cdef Py_ssize_t i
        cdef const uint8_t *p
        out = []
        for i in range(self.count):
            p = self.map + self.offsets[i]
            out.append(span(self.owner, value_of(p), value_length_of(p)))
        return out

    def keys(self):
        """Copy the keys into a list of bytes, with None for a record without a key."""
        return [self.record_at(i).key for i in range(self.count)]

    def packed(self, *, bint keys=False):
        """Copy the values end to end into one numpy array.

        Args:
            keys: copy the keys instead; a record without a key has no bytes.

        Returns:
            (offsets, data): int64 offsets of length `len(batch) + 1` into data, an array of uint8.
        """
        cdef Py_buffer starts, data
        cdef int64_t total
        import numpy
        offsets = numpy.empty(self.count + 1, numpy.int64)
        PyObject_GetBuffer(offsets, &starts, PyBUF_WRITABLE)
        total = pack(self.map, self.offsets, self.count, keys, <int64_t *>starts.buf, NULL)
        out = numpy.empty(total, numpy.uint8)
        if total:
            PyObject_GetBuffer(out, &data, PyBUF_WRITABLE)
            with nogil:
                pack(self.map, self.offsets, self.count, keys, <int64_t *>starts.buf, <uint8_t *>data.buf)
            PyBuffer_Release(&data)
        PyBuffer_Release(&starts)
        return offsets, out

    def __repr__(self):
        return f"RecordBatch({self.count} records up to position {self.next_position})"


@cython.final
cdef class RecordIterator:
    """Iterates over the records of a batch. A record without other references is reused for the one after the next.

    Most loops use one record at a time.
    """

    cdef RecordBatch batch
    cdef const uint8_t *map
    cdef const uint32_t *at
    cdef const uint32_t *end
    cdef Record even, odd         # the two last records, in turns
    cdef bint is_even

    def __cinit__(self, RecordBatch batch not None):
        self.batch = batch
        self.map, self.at, self.end = batch.map, batch.offsets, batch.offsets + batch.count

    def __iter__(self):
        return self

    def __next__(self):
        cdef const uint8_t *p
        if self.at == self.end:
            self.even = self.odd = None
            raise StopIteration
        p = self.map + self.at[0]
        self.at += 1
        self.is_even = not self.is_even
        if self.is_even:
            if Py_REFCNT(<PyObject *>self.even) == 1:  # None has more references
                self.even.p = p
            else:
                self.even = self.batch.record_from(p)
            return self.even
        if Py_REFCNT(<PyObject *>self.odd) == 1:
            self.odd.p = p
        else:
            self.odd = self.batch.record_from(p)
        return self.odd
