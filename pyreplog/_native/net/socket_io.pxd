# Sends and receives on sockets for other native code; socket_io.pyx has the rules and errors.
from libc.stdint cimport int64_t

from pyreplog._native.net.frame cimport FrameBatch, FrameParser

cdef Py_ssize_t hand_over(object stream, object buffers) except -1
cdef Py_ssize_t hand_over_bytes(object stream, bytes data) except -1
cdef Py_ssize_t hand_over_frame(object stream, int64_t offset, tuple body, Py_ssize_t size) except -1
cdef FrameBatch take_in(object stream, FrameParser parser, Py_ssize_t *count)
