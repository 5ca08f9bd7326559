# The arguments of an append as borrowed pointers.
from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MIN, int64_t, uint8_t

from pyreplog._native.layout cimport KIND_DATA
from pyreplog._native.log.record cimport Part


cdef int get_buffer(object source, Py_buffer *buffer, str name) except -1
cdef object check_time(time)
cdef void fill_part(Part *part, Py_buffer *value, Py_buffer *key, bytes attributes) noexcept
cdef int fill_control(Part *part, control) except -1
cdef enum:
    EVENT_ATTRIBUTE_BYTES = 11

# Write an event time, as EVENT_ATTRIBUTE_BYTES of attributes.
cdef void write_event_attribute(uint8_t *out, int64_t time) noexcept nogil
cdef int refuse_part(const Part *part, int64_t room) except -1

# Return the bytes that all parts take in segments of a given size. Raise RecordTooLargeError, before anything is
# written.
cdef int64_t measure(const Part *parts, Py_ssize_t count, int64_t segment_bytes) except -1

# Return how many further segments the parts need, if the first one is written at `pos`.
cdef int64_t rolls(const Part *parts, Py_ssize_t count, int64_t pos, int64_t segment_bytes, int64_t front) noexcept nogil


cdef inline void fill_plain(Part *part, value) noexcept:
    """Fill a part with a value of type bytes, without key, attributes and event time."""
    part.key_length, part.attributes_length = -1, 0
    part.event_time, part.kind = INT64_MIN, KIND_DATA
    part.value = <const uint8_t *>PyBytes_AS_STRING(value)
    part.value_length = PyBytes_GET_SIZE(value)


cdef class Parts:
    cdef Part *block              # all parts of the call
    cdef Py_ssize_t block_bytes
    cdef Part *parts              # parts of the values, within `block`
    cdef bint front               # the block begins with the part of a control record
    cdef uint8_t *times           # event times, encoded as attributes
    cdef readonly Py_ssize_t count
    cdef readonly int64_t value_bytes, key_bytes
    cdef int check_once(self) except -1
    cdef int make_room(self, Py_ssize_t count, object control) except -1
    cdef void set_value(self, Py_ssize_t i, const uint8_t *value, Py_ssize_t length) noexcept nogil
    cdef void set_key(self, Py_ssize_t i, const uint8_t *key, Py_ssize_t length) noexcept nogil
    cdef int make_times(self) except -1
    cdef void set_time(self, Py_ssize_t i, int64_t time) noexcept nogil


cdef class SequenceParts(Parts):
    cdef tuple values
    cdef tuple keys
    cdef object control
    cdef Py_buffer *buffers
    cdef Py_ssize_t buffer_count
    cdef int borrow(self, object source, const uint8_t **p, Py_ssize_t *length, str name) except -1
    cdef int take_times(self, tuple times) except -1


cdef class BatchParts(SequenceParts):
    cdef int64_t numbers          # entry numbers that all records take


cdef class ColumnParts(Parts):
    cdef list held
    cdef const uint8_t *hold(self, source, str name, Py_ssize_t *length) except? NULL
    cdef int take(self, offsets, data, bint keys, str name) except -1
    cdef int take_times(self, event_times) except -1
