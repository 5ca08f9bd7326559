"""Columns most of whose rows are alike: whether they are, and sums of stretches of them. One look at each row, with no
column in between; the GIL is released meanwhile, once.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog.errors import InvalidArgumentError


# ---- alike -----------------------------------------------------------------------------------------------------

cdef inline bint is_repeated(const uint8_t *p, int64_t size, int64_t period) noexcept nogil:
    return size <= period or memcmp(p, p + period, size - period) == 0


cdef bint are_texts_alike(const int32_t *ends, int64_t count, const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t i, length = ends[1] - ends[0]
    cdef bint even = ends[0] >= 0 and length >= 0 and ends[count] <= size
    for i in range(count):
        even &= ends[i + 1] - ends[i] == length
    return even and (not length or is_repeated(data + ends[0], count * length, length))


def are_numbers_alike(column not None):
    """Whether all rows of a column of int32 are the same; true for none. column: a buffer."""
    cdef Py_buffer rows
    cdef bint found
    PyObject_GetBuffer(column, &rows, PyBUF_SIMPLE)
    with nogil:
        found = is_repeated(<const uint8_t *>rows.buf, rows.len, sizeof(int32_t))
    PyBuffer_Release(&rows)
    return found


def are_strings_alike(offsets not None, data not None, int64_t start, int64_t count):
    """Whether `count` strings from number `start` on are the same; true for none. offsets, data: buffers as of Arrow's
    strings. InvalidArgumentError: there are not so many."""
    cdef Py_buffer ends, bytes
    cdef bint found
    PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
    PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE)
    cdef bint there = 0 <= start and 0 <= count < ends.len // <Py_ssize_t>sizeof(int32_t) - start
    if there:
        with nogil:
            found = not count or are_texts_alike(<const int32_t *>ends.buf + start, count, <const uint8_t *>bytes.buf,
                                                 bytes.len)
    PyBuffer_Release(&bytes)
    PyBuffer_Release(&ends)
    if not there:
        raise InvalidArgumentError(f"{count} strings from number {start} on: there are fewer")
    return found


# ---- sums ------------------------------------------------------------------------------------------------------

ctypedef struct Stretch:
    int64_t unit                  # of the times of its rows
    int64_t rows, total, largest


cdef int64_t sum_stretches(const int64_t *times, const int32_t *values, int64_t count, int64_t unit,
                           Stretch *out) noexcept nogil:
    """How many there are."""
    cdef int64_t i, into, rest, found = 0, low = INT64_MAX, high = INT64_MIN
    cdef Stretch *made = out - 1
    for i in range(count):
        if not low <= times[i] <= high:
            into = times[i] % unit  # in C, with the sign of the time
            into += unit if into < 0 else 0
            low = times[i] - into if times[i] >= INT64_MIN + into else INT64_MIN
            rest = unit - 1 - into
            high = times[i] + rest if times[i] <= INT64_MAX - rest else INT64_MAX
            made, found = out + found, found + 1
            made.unit = times[i] // unit - (times[i] % unit < 0)
            made.rows, made.total, made.largest = 0, 0, values[i]
        made.rows += 1
        made.total += values[i]
        made.largest = max(made.largest, <int64_t>values[i])
    return found


def sums_by_unit(times not None, values not None, int64_t unit):
    """Stretches of rows whose times lie in the same unit of time: a list of (time // unit, rows, sum and largest of
    their values). Where times step back, a unit has several stretches.

    times, values: buffers of int64 and int32, as many. InvalidArgumentError: not as many, or no unit.
    """
    cdef Py_buffer time, value
    cdef int64_t i, count, found = -1
    cdef Stretch *stretches
    cdef Block made
    PyObject_GetBuffer(times, &time, PyBUF_SIMPLE)
    PyObject_GetBuffer(values, &value, PyBUF_SIMPLE)
    count = time.len // <Py_ssize_t>sizeof(int64_t)
    if unit > 0 and count == value.len // <Py_ssize_t>sizeof(int32_t):
        made = make_block(count * sizeof(Stretch))
        stretches = <Stretch *>made.data
        with nogil:
            found = sum_stretches(<const int64_t *>time.buf, <const int32_t *>value.buf, count, unit, stretches)
    PyBuffer_Release(&value)
    PyBuffer_Release(&time)
    if found < 0:
        raise InvalidArgumentError(f"units of {unit}, {count} times: expected a unit, and as many values")
    return [(stretches[i].unit, stretches[i].rows, stretches[i].total, stretches[i].largest) for i in range(found)]
