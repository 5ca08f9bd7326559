"""Fields of messages between clients and topic servers: those that every message has. They are native for that reason.

Each value is checked against its bounds before it is used.
"""

import struct
from itertools import takewhile

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport crc32c

from pyreplog.errors import DamagedMessageError, InvalidMessageError

cdef enum:
    FRONT_MAX = 16          # numbers that a Layout reads by itself
    GIL_FREE = 16 * 1024    # bytes; below, giving up the GIL costs more than the CRC


cdef uint64_t load(const uint8_t *p, int size) noexcept:
    """Return a big-endian number of `size` bytes."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number = number << 8 | p[i]
    return number


cdef uint32_t crc_of(object data, Py_ssize_t end, uint32_t crc) except? 0xFFFFFFFF:
    """Return the CRC of the first `end` bytes of a buffer, -1: all, continued from `crc`."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if end < 0:
            end = view.len
        if end >= GIL_FREE:
            with nogil:
                crc = crc32c(crc, <const uint8_t *>view.buf, end)
        else:
            crc = crc32c(crc, <const uint8_t *>view.buf, end)
    finally:
        PyBuffer_Release(&view)
    return crc


def checksum(*buffers):
    """Return the checksum that follows these buffers in a body."""
    cdef uint32_t crc = 0
    for buffer in buffers:
        crc = crc_of(buffer, -1, crc)
    return bytes((crc >> 24, crc >> 16 & 0xFF, crc >> 8 & 0xFF, crc & 0xFF))


@cython.final
cdef class WireReader:
    """Reads the fields of a body in order. is_checked: a checksum follows them.

    Raises InvalidMessageError if a field is malformed; DamagedMessageError instead if the body has a checksum.
    """

    cdef str label
    cdef object body
    cdef Py_ssize_t at, size
    cdef bint is_checked

    def __init__(self, str what not None, body, Py_ssize_t at=0, *, bint is_checked=False):
        self.label, self.body, self.at, self.is_checked = what, body, at, is_checked
        self.size = len(body)

    cdef Py_ssize_t advance(self, Py_ssize_t count) except -1:
        """Pass over the next `count` bytes, and return where they begin."""
        cdef Py_ssize_t at = self.at
        if count > self.size - at:
            raise self.refusal(f"{count} bytes more at byte {at}", f"{self.size - at}")
        self.at = at + count
        return at

    cdef int copy(self, void *to, Py_ssize_t count) except -1:
        """Copy the next `count` bytes."""
        cdef Py_buffer view
        cdef Py_ssize_t at = self.advance(count)
        PyObject_GetBuffer(self.body, &view, PyBUF_SIMPLE)
        memcpy(to, <const uint8_t *>view.buf + at, count)
        PyBuffer_Release(&view)
        return 0

    cdef bytes take_bytes(self, Py_ssize_t count):
        cdef bytes taken
        if count > self.size - self.at:
            self.advance(count)     # raises
        taken = PyBytes_FromStringAndSize(NULL, count)
        self.copy(PyBytes_AS_STRING(taken), count)
        return taken

    def take(self, Py_ssize_t count, /):
        """Return the next `count` bytes, not copied."""
        cdef Py_ssize_t at = self.advance(count)
        return self.body[at:at + count]

    def unpack(self, form, /):
        """Return the values of a `struct.Struct`."""
        return form.unpack_from(self.body, self.advance(form.size))

    def rest(self):
        """Return all remaining bytes, not copied."""
        return self.take(self.size - self.at)

    def check(self):
        """Read the checksum here, if the body has one, and compare it with that of all bytes before it."""
        cdef uint32_t computed, stored
        cdef uint8_t read[4]
        if not self.is_checked:
            return
        self.is_checked = False
        computed = crc_of(self.body, self.at, 0)
        self.copy(read, 4)
        stored = <uint32_t>load(read, 4)
        if stored != computed:
            raise DamagedMessageError(
                f"{self.label}: damaged on its way: its CRC-32C is {computed:#010x}, expected {stored:#010x}"
            )

    def end(self):
        """Check that no bytes follow."""
        self.check()
        if self.at != self.size:
            raise self.refusal(f"{self.at} bytes", f"{self.size}")

    def refusal(self, str expected not None, str found not None, /):
        """Return the error of a malformed field."""
        kind = DamagedMessageError if self.is_checked else InvalidMessageError  # the checksum would not match
        return kind(f"{self.label}: expected {expected}, found {found}")


@cython.final
cdef class Layout:
    """Fields that follow each other. Numbers at the front are encoded and decoded together.

    fields: they have `encode`, `decode` and `number`, which is (letter in a format of `struct`, lowest, highest) of a plain
    number, and None of others.
    """

    cdef readonly tuple fields
    cdef tuple others       # fields behind the numbers
    cdef object pack        # of the numbers
    cdef Py_ssize_t count, size
    cdef uint8_t sizes[FRONT_MAX]
    cdef bint signed[FRONT_MAX]
    cdef int64_t low[FRONT_MAX]
    cdef int64_t high[FRONT_MAX]

    def __init__(self, *fields):
        cdef Py_ssize_t i
        numbers = [field.number for field in takewhile(lambda field: field.number, fields)][:FRONT_MAX]
        for i in range(len(numbers)):
            letter, self.low[i], self.high[i] = numbers[i]
            self.sizes[i], self.signed[i] = struct.calcsize(f">{letter}"), letter.islower()
        front = struct.Struct(">" + "".join([letter for letter, _, _ in numbers]))
        self.fields, self.others = fields, fields[len(numbers):]
        self.count, self.size, self.pack = len(numbers), front.size, front.pack

    def encode(self, values, /):
        """Encode one value for each field. Raises the errors of the fields."""
        cdef Py_ssize_t i
        if not self.others:
            return self.pack(*values)
        if len(values) != len(self.fields):
            raise ValueError(f"expected {len(self.fields)} values, found {len(values)}")
        parts = [self.pack(*values[:self.count])]
        for i in range(len(self.others)):
            parts.append(self.others[i].encode(values[self.count + i]))
        return b"".join(parts)

    def decode(self, WireReader reader not None, /):
        """Decode the fields. Raises InvalidMessageError when one is malformed."""
        cdef Py_ssize_t i
        cdef uint8_t data[8 * FRONT_MAX]
        cdef const uint8_t *p = data
        cdef uint64_t bits
        cdef list values = []
        reader.copy(data, self.size)
        for i in range(self.count):
            bits = load(p, self.sizes[i])
            p += self.sizes[i]
            if self.signed[i] and self.sizes[i] < 8 and bits >> (8 * self.sizes[i] - 1):
                bits |= <uint64_t>-1 << 8 * self.sizes[i]
            if not self.low[i] <= <int64_t>bits <= self.high[i]:
                raise reader.refusal(f"a number from {self.low[i]} to {self.high[i]}", str(<int64_t>bits))
            values.append(<int64_t>bits)
        for field in self.others:
            values.append(field.decode(reader))
        return values


def decode_entries(WireReader reader not None, Py_ssize_t most, /):
    """Return the entries that follow their number and their lengths: from 1 to `most`."""
    cdef uint8_t read[4]
    cdef bytes lengths
    cdef const uint8_t *p
    cdef Py_ssize_t count, i, total = 0
    reader.copy(read, 4)
    count = <Py_ssize_t>load(read, 4)
    if not 1 <= count <= most:
        raise reader.refusal(f"1 to {most} entries", str(count))
    lengths = reader.take_bytes(4 * count)
    p = <const uint8_t *>PyBytes_AS_STRING(lengths)
    for i in range(count):
        total += <Py_ssize_t>load(p + 4 * i, 4)
    if total > reader.size - reader.at:
        reader.advance(total)   # raises
    return [reader.take_bytes(<Py_ssize_t>load(p + 4 * i, 4)) for i in range(count)]
