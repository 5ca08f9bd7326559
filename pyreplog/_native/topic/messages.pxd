# Batches of messages as columns.
from libc.stdint cimport int64_t

from pyreplog._native.system.blocks cimport Block
from pyreplog._native.topic.message_columns cimport Place
from pyreplog._native.topic.message_entry cimport MessageEntry, MessageTable


cdef class MessageBatch:
    cdef MessageTable table
    cdef Block block              # holds the places
    cdef const Place *places
    cdef Py_ssize_t count
    cdef dict columns
    cdef int64_t value_total     # -1: not known yet
    cdef object column(self, int which)
    cdef object entry_column(self, int which)
    cdef Py_ssize_t checked(self, index) except -1
    cdef const MessageEntry *checked_entry(self, Py_ssize_t index) except NULL
