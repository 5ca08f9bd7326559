"""The arguments of an append: values, keys and times of one call, as borrowed pointers (`Part`s).

All arguments of a call are checked here before a byte is written.
"""

from datetime import datetime

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_AsTuple, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, uint8_t, uint16_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyreplog._native.layout cimport KEY_MAX, KIND_BATCH, KIND_CONTROL, KIND_DATA, SEGMENT_HEADER, SHORT_HEADER, TAG_EVENT_TIME
from pyreplog._native.log.record cimport part_length, short_length, stride_of
from pyreplog._native.system.blocks cimport give_block, int64_array, take_block
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError
from pyreplog.times import moment_us

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(object list, Py_ssize_t i)  # borrowed

cdef int64_t NUMBERS_MAX = INT32_MAX  # entry numbers of one call: less than a segment can have


cdef int get_buffer(object source, Py_buffer *buffer, str name) except -1:
    try:
        PyObject_GetBuffer(source, buffer, PyBUF_SIMPLE)
    except (TypeError, BufferError, ValueError):  # numpy raises ValueError for an array that is not contiguous
        raise WrongTypeError(f"{name}: expected a contiguous bytes-like object, found {type(source).__name__}") from None
    return 0


cdef object check_time(time):
    """Return an event time in microseconds since 1970; None: there is none."""
    if time is None:
        return None
    if isinstance(time, bool) or not hasattr(time, "__index__"):
        if isinstance(time, datetime):
            return moment_us("event_time", time)
        kind = type(time).__name__
        raise WrongTypeError(f"event_time: expected an int, of microseconds, or an aware datetime, found {kind}")
    if not INT64_MIN < time <= INT64_MAX:
        raise InvalidArgumentError(f"event_time: expected microseconds that fit into 64 bits, found {time}")
    return time


cdef void fill_part(Part *part, Py_buffer *value, Py_buffer *key, bytes attributes) noexcept:
    part.value, part.value_length = <const uint8_t *>value.buf, value.len
    part.key, part.key_length = NULL, -1
    if key != NULL:
        part.key, part.key_length = <const uint8_t *>key.buf, key.len
    part.attributes, part.attributes_length = <const uint8_t *>PyBytes_AS_STRING(attributes), len(attributes)
    part.event_time = INT64_MIN
    part.kind = KIND_DATA


cdef int fill_control(Part *part, control) except -1:
    if not isinstance(control, bytes):
        raise WrongTypeError(f"control: expected bytes, found {type(control).__name__}")
    part.value, part.value_length = <const uint8_t *>PyBytes_AS_STRING(control), len(control)
    part.key, part.key_length = NULL, -1
    part.attributes, part.attributes_length = NULL, 0
    part.event_time = INT64_MIN
    part.kind = KIND_CONTROL
    return 0


cdef void write_event_attribute(uint8_t *out, int64_t time) noexcept nogil:
    cdef uint16_t length = 8
    out[0] = TAG_EVENT_TIME
    memcpy(out + 1, &length, 2)
    memcpy(out + 3, &time, 8)


cdef class Parts:
    """Records of one call: borrowed pointers, and the objects that keep them valid. value_bytes, key_bytes: in all."""

    def __dealloc__(self):
        give_block(<uint8_t *>self.block, self.block_bytes)
        free(self.times)

    cdef int check_once(self) except -1:
        """Refuse a second call of `__init__`, which would take the arguments away to which the parts point."""
        if self.block != NULL:
            raise InvalidArgumentError(f"{type(self).__name__}: these parts were made before; make other ones")
        return 0

    cdef int make_room(self, Py_ssize_t count, object control) except -1:
        """Make room for `count` values, and for a control record before them unless `control` is None."""
        self.count = count
        self.front = control is not None
        self.block = <Part *>take_block((count + self.front + 1) * sizeof(Part), &self.block_bytes)
        if self.block == NULL:
            raise MemoryError
        self.parts = self.block + self.front
        if self.front:
            fill_control(self.block, control)
        return 0

    cdef void set_value(self, Py_ssize_t i, const uint8_t *value, Py_ssize_t length) noexcept nogil:
        """Fill a part that has only a value."""
        cdef Part *part = &self.parts[i]
        part.value, part.value_length = value, length
        part.key, part.key_length = NULL, -1
        part.attributes, part.attributes_length = NULL, 0
        part.event_time = INT64_MIN
        part.kind = KIND_DATA
        self.value_bytes += length

    cdef void set_key(self, Py_ssize_t i, const uint8_t *key, Py_ssize_t length) noexcept nogil:
        self.parts[i].key, self.parts[i].key_length = key, length
        self.key_bytes += length

    cdef int make_times(self) except -1:
        self.times = <uint8_t *>malloc(self.count * EVENT_ATTRIBUTE_BYTES + 1)
        if self.times == NULL:
            raise MemoryError
        return 0

    cdef void set_time(self, Py_ssize_t i, int64_t time) noexcept nogil:
        cdef uint8_t *out = self.times + i * EVENT_ATTRIBUTE_BYTES
        if time == INT64_MIN:
            return
        write_event_attribute(out, time)
        self.parts[i].attributes = out
        self.parts[i].attributes_length = EVENT_ATTRIBUTE_BYTES
        self.parts[i].event_time = time


cdef class SequenceParts(Parts):
    """Parts from sequences of bytes-like objects."""

    def __init__(self, values, keys, event_times, control):
        cdef Py_ssize_t i, length
        cdef const uint8_t *p
        self.check_once()
        self.values = as_tuple(values, "values")
        self.control = control
        self.make_room(len(self.values), control)
        for i in range(self.count):
            value = <object>PyTuple_GET_ITEM(self.values, i)
            if PyBytes_CheckExact(value):
                self.set_value(i, <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            else:
                self.borrow(value, &p, &length, "value")
                self.set_value(i, p, length)
        if keys is not None:
            self.keys = as_tuple(keys, "keys")
            check_count("keys", len(self.keys), self.count)
            for i in range(self.count):
                if self.keys[i] is not None:
                    self.borrow(self.keys[i], &p, &length, "key")
                    self.set_key(i, p, length)
        if event_times is not None:
            self.take_times(as_tuple(event_times, "event_times"))

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[i])
        free(self.buffers)

    cdef int borrow(self, object source, const uint8_t **p, Py_ssize_t *length, str name) except -1:
        if PyBytes_CheckExact(source):
            p[0] = <const uint8_t *>PyBytes_AS_STRING(source)
            length[0] = PyBytes_GET_SIZE(source)
            return 0
        if self.buffers == NULL:
            self.buffers = <Py_buffer *>malloc(2 * self.count * sizeof(Py_buffer))
            if self.buffers == NULL:
                raise MemoryError
        get_buffer(source, &self.buffers[self.buffer_count], name)
        p[0] = <const uint8_t *>self.buffers[self.buffer_count].buf
        length[0] = self.buffers[self.buffer_count].len
        self.buffer_count += 1
        return 0

    cdef int take_times(self, tuple times) except -1:
        cdef Py_ssize_t i
        check_count("event_times", len(times), self.count)
        self.make_times()
        for i in range(self.count):
            if times[i] is not None:
                self.set_time(i, check_time(times[i]))
        return 0


@cython.final
cdef class BatchParts(SequenceParts):
    """Parts of record batches, each of which takes a number of entry numbers; `numbers` is their sum."""

    def __init__(self, values, counts, event_times, control):
        cdef Py_ssize_t i
        SequenceParts.__init__(self, values, None, event_times, control)
        items = as_tuple(counts, "counts")
        check_count("counts", len(items), self.count)
        for i in range(self.count):
            if isinstance(items[i], bool) or not hasattr(items[i], "__index__"):
                raise WrongTypeError(f"counts: expected ints, found {type(items[i]).__name__}")
            count = items[i].__index__()
            if not 1 <= count <= NUMBERS_MAX - self.numbers:
                raise InvalidArgumentError(
                    f"counts: expected 1 or more, at most {NUMBERS_MAX} in all, found {count} after {self.numbers}")
            self.parts[i].kind, self.parts[i].count = KIND_BATCH, count
            self.numbers += self.parts[i].count


cdef tuple as_tuple(object items, str name):
    if type(items) is list:
        return PyList_AsTuple(items)
    if isinstance(items, (bytes, bytearray, memoryview, str)) or not hasattr(items, "__iter__"):
        raise WrongTypeError(f"{name}: expected a sequence of items, found {type(items).__name__}")
    return tuple(items)


cdef Py_ssize_t longest_of_bytes(PyObject *items) noexcept:
    """Return the length of the longest item of a list, without counting references; -1: some are no plain bytes."""
    cdef Py_ssize_t i, longest = 0
    cdef PyObject *item
    for i in range(PyList_GET_SIZE(<object>items)):
        item = PyList_GET_ITEM(<object>items, i)
        if not PyBytes_CheckExact(<object>item):
            return -1
        longest = max(longest, PyBytes_GET_SIZE(<object>item))
    return longest


def longest_of(items):
    """Return the length of the longest of some bytes-like objects; 0: there are none."""
    cdef Py_ssize_t longest = longest_of_bytes(<PyObject *>items) if type(items) is list else -1, length
    if longest >= 0:
        return longest
    longest = 0
    for each in items:
        length = PyBytes_GET_SIZE(each) if PyBytes_CheckExact(each) else len(each)
        if length > longest:
            longest = length
    return longest


cdef int check_count(str name, Py_ssize_t actual, Py_ssize_t expected) except -1:
    if actual != expected:
        raise InvalidArgumentError(f"{name}: expected {expected}, one per value, found {actual}")
    return 0


@cython.final
cdef class ColumnParts(Parts):
    """Parts from packed columns."""

    def __init__(self, values, keys, event_times):
        self.check_once()
        self.held = []
        offsets, data = packed(values, "values")
        self.make_room(len(offsets) - 1, None)
        self.take(offsets, data, False, "values")
        if keys is not None:
            offsets, data = packed(keys, "keys")
            check_count("keys", len(offsets) - 1, self.count)
            self.take(offsets, data, True, "keys")
        if event_times is not None:
            self.take_times(event_times)

    cdef const uint8_t *hold(self, source, str name, Py_ssize_t *length) except? NULL:
        cdef Py_buffer buffer
        get_buffer(source, &buffer, name)
        length[0] = buffer.len
        cdef const uint8_t *start = <const uint8_t *>buffer.buf
        PyBuffer_Release(&buffer)
        self.held.append(memoryview(source))  # keeps the memory where it is
        return start

    cdef int take(self, offsets, data, bint keys, str name) except -1:
        cdef Py_ssize_t i, length, offset_bytes
        cdef const uint8_t *bytes_start = self.hold(data, name, &length)
        cdef const int64_t *at = <const int64_t *>self.hold(offsets, name, &offset_bytes)
        for i in range(self.count):
            if not 0 <= at[i] <= at[i + 1] <= length:
                raise InvalidArgumentError(
                    f"{name}: offsets of row {i} must ascend within {length} bytes, found {at[i]} to {at[i + 1]}")
            if keys:
                self.set_key(i, bytes_start + at[i], at[i + 1] - at[i])
            else:
                self.set_value(i, bytes_start + at[i], at[i + 1] - at[i])
        return 0

    cdef int take_times(self, event_times) except -1:
        cdef Py_ssize_t i, length
        column = int64_column(event_times, "event_times")
        check_count("event_times", len(column), self.count)
        cdef const int64_t *times = <const int64_t *>self.hold(column, "event_times", &length)
        self.make_times()
        for i in range(self.count):
            self.set_time(i, times[i])
        return 0


cdef object int64_column(object column, str name):
    """Return integers of one dimension as a contiguous numpy int64 array, without rounding."""
    import numpy
    try:
        array = numpy.asarray(column)
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError(f"{name}: expected integers, found {type(column).__name__}") from None
    if array.ndim != 1:
        raise WrongTypeError(f"{name}: expected one dimension, found shape {array.shape}")
    if array.size == 0:
        return numpy.empty(0, numpy.int64)
    if array.dtype == object and all(isinstance(item, int) for item in array):
        raise InvalidArgumentError(f"{name}: expected integers that fit into 64 bits")
    if array.dtype.kind not in "iu":
        raise WrongTypeError(f"{name}: expected integers, found {array.dtype}")
    if array.dtype.kind == "u" and array.max() > INT64_MAX:
        raise InvalidArgumentError(f"{name}: expected integers that fit into 64 bits, found {array.max()}")
    return int64_array(array)


cdef tuple packed(object column, str name):
    """Return a column in any accepted form as (int64 offsets, data buffer)."""
    import numpy
    if isinstance(column, tuple) and len(column) == 2:
        offsets = int64_column(column[0], f"{name}: offsets")
        if not len(offsets):
            raise InvalidArgumentError(f"{name}: expected offsets of length n + 1, found none")
        return offsets, column[1]
    if isinstance(column, numpy.ndarray):
        return packed_array(column, name)
    if hasattr(column, "buffers") and hasattr(column, "type"):
        return packed_arrow(column, name)
    raise WrongTypeError(f"{name}: expected (offsets, data), a numpy or a pyarrow array, found {type(column).__name__}")


cdef tuple packed_array(object column, str name):
    import numpy
    if column.dtype.kind == "S" and column.ndim == 1:
        width = column.dtype.itemsize
    elif column.dtype == numpy.uint8 and column.ndim == 2:
        width = column.shape[1]
    else:
        raise WrongTypeError(f"{name}: expected uint8 of shape (n, width) or dtype S, found {column.dtype} of {column.shape}")
    data = numpy.ascontiguousarray(column).view(numpy.uint8).reshape(-1)
    return numpy.arange(len(column) + 1, dtype=numpy.int64) * width, data


cdef tuple packed_arrow(object column, str name):
    import numpy
    kind = str(column.type)
    widths = {"binary": numpy.int32, "string": numpy.int32, "large_binary": numpy.int64, "large_string": numpy.int64}
    if kind not in widths:
        raise WrongTypeError(f"{name}: expected a pyarrow binary or string array, found {kind}")
    if column.null_count:
        raise InvalidArgumentError(f"{name}: expected no nulls, found {column.null_count}")
    _, offsets, data = column.buffers()
    raw = numpy.frombuffer(b"" if offsets is None else offsets, widths[kind])
    raw = raw[column.offset : column.offset + len(column) + 1]
    if not len(column):  # then there may be no offsets at all
        raw = numpy.zeros(1, widths[kind])
    if len(raw) != len(column) + 1:
        raise InvalidArgumentError(f"{name}: expected {len(column) + 1} offsets, found {len(raw)}")
    return raw.astype(numpy.int64), data if data is not None else b""


cdef int refuse_part(const Part *part, int64_t room) except -1:
    if part.key_length > KEY_MAX:
        raise RecordTooLargeError(f"key: at most {KEY_MAX} bytes, found {part.key_length}")
    raise RecordTooLargeError(
        f"value: at most {room - short_length(part) + part.value_length} bytes fit into a segment, "
        f"found {part.value_length}")


cdef int64_t measure(const Part *parts, Py_ssize_t count, int64_t segment_bytes) except -1:
    cdef int64_t total = 0, stride, room = segment_bytes - SEGMENT_HEADER - SHORT_HEADER
    cdef Py_ssize_t i
    cdef bint batches = count and parts[count - 1].kind == KIND_BATCH  # single entries pay nothing for them
    for i in range(count):
        stride = stride_of(short_length(&parts[i]) if batches else part_length(&parts[i], SHORT_HEADER))
        if stride > room or parts[i].key_length > KEY_MAX:
            refuse_part(&parts[i], room)
        total += stride
    return total


cdef int64_t rolls(const Part *parts, Py_ssize_t count, int64_t pos, int64_t segment_bytes, int64_t front) noexcept nogil:
    cdef int64_t stride, end = segment_bytes - SHORT_HEADER, more = 0
    cdef Py_ssize_t i
    for i in range(count):
        stride = stride_of(short_length(&parts[i]))
        if pos + stride > end:
            more += 1
            pos = SEGMENT_HEADER + front
        pos += stride
    return more
