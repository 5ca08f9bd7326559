"""Tests whether all rows of a column are equal, and sums over runs of rows.

Each function reads every row once, without an intermediate column, and releases the GIL meanwhile.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog.errors import InvalidArgumentError


# ---- equal rows ------------------------------------------------------------------------------------------------

cdef inline bint is_repeated(const uint8_t *p, int64_t size, int64_t period) noexcept nogil:
    return size <= period or memcmp(p, p + period, size - period) == 0


cdef bint are_texts_alike(const int32_t *ends, int64_t count, const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t i, length = <int64_t>ends[1] - ends[0]     # of 64 bits: a difference of hostile ends would wrap
    cdef bint even = ends[0] >= 0 and length >= 0 and ends[count] <= size
    for i in range(count):
        even &= <int64_t>ends[i + 1] - ends[i] == length
    return even and (not length or is_repeated(data + ends[0], count * length, length))


def are_numbers_alike(column not None):
    """Return whether all rows of a column of int32 are equal; True if there are no rows. column: a buffer."""
    cdef Py_buffer rows
    cdef bint alike
    PyObject_GetBuffer(column, &rows, PyBUF_SIMPLE)
    with nogil:
        alike = is_repeated(<const uint8_t *>rows.buf, rows.len, sizeof(int32_t))
    PyBuffer_Release(&rows)
    return alike


def are_strings_alike(offsets not None, data not None, int64_t start, int64_t count):
    """Return whether `count` strings from number `start` on are equal; True if `count` is 0.

    offsets, data: buffers of an Arrow column of strings. Raises InvalidArgumentError if the column has fewer strings.
    """
    cdef Py_buffer ends, bytes
    cdef bint alike
    PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
    PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE)
    cdef bint in_range = 0 <= start and 0 <= count < ends.len // <Py_ssize_t>sizeof(int32_t) - start
    if in_range:
        with nogil:
            alike = not count or are_texts_alike(<const int32_t *>ends.buf + start, count, <const uint8_t *>bytes.buf,
                                                 bytes.len)
    PyBuffer_Release(&bytes)
    PyBuffer_Release(&ends)
    if not in_range:
        raise InvalidArgumentError(f"{count} strings from number {start} on: the column has fewer")
    return alike


# ---- sums over runs --------------------------------------------------------------------------------------------

ctypedef struct Run:
    int64_t unit                  # unit of time of its rows
    int64_t rows, total, largest


cdef int64_t sum_runs(const int64_t *times, const int32_t *values, int64_t count, int64_t unit,
                      Run *out) noexcept nogil:
    """Fill `out` with the runs of rows in the same unit of time. Return their number."""
    cdef int64_t i, past, left, runs = 0, low = INT64_MAX, high = INT64_MIN
    cdef Run *run = out - 1
    for i in range(count):
        if not low <= times[i] <= high:
            past = times[i] % unit  # in C, with the sign of the time
            past += unit if past < 0 else 0
            low = times[i] - past if times[i] >= INT64_MIN + past else INT64_MIN
            left = unit - 1 - past
            high = times[i] + left if times[i] <= INT64_MAX - left else INT64_MAX
            run, runs = out + runs, runs + 1
            run.unit = times[i] // unit - (times[i] % unit < 0)
            run.rows, run.total, run.largest = 0, 0, values[i]
        run.rows += 1
        run.total += values[i]
        run.largest = max(run.largest, <int64_t>values[i])
    return runs


def sums_by_unit(times not None, values not None, int64_t unit):
    """Sum values over runs of rows whose times lie in the same unit of time.

    Where times step back, a unit has several runs.

    Args:
        times: buffer of int64.
        values: buffer of int32, as many as times.
        unit: length of a unit, in that of the times.

    Returns:
        A list of (time // unit, rows, sum of values, largest value).

    Raises:
        InvalidArgumentError: `unit` is less than 1, or the buffers differ in length.
    """
    cdef Py_buffer time, value
    cdef int64_t i, count, run_count = -1
    cdef Run *runs
    cdef Block block
    PyObject_GetBuffer(times, &time, PyBUF_SIMPLE)
    PyObject_GetBuffer(values, &value, PyBUF_SIMPLE)
    count = time.len // <Py_ssize_t>sizeof(int64_t)
    if unit > 0 and count == value.len // <Py_ssize_t>sizeof(int32_t):
        block = make_block(count * sizeof(Run))
        runs = <Run *>block.data
        with nogil:
            run_count = sum_runs(<const int64_t *>time.buf, <const int32_t *>value.buf, count, unit, runs)
    PyBuffer_Release(&value)
    PyBuffer_Release(&time)
    if run_count < 0:
        raise InvalidArgumentError(f"units of {unit}, {count} times: expected 1 or more, and as many values")
    return [(runs[i].unit, runs[i].rows, runs[i].total, runs[i].largest) for i in range(run_count)]
