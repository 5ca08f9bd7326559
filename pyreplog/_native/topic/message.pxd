# One message.
from libc.stdint cimport uint32_t

from pyreplog._native.topic.message_entry cimport MessageEntry, MessageTable


cdef class Message:
    cdef MessageTable table
    cdef const MessageEntry *at
    cdef uint32_t number          # of the message in its entry
    cdef public int redelivered
    cdef bytes copied_value(self)


cdef Message make_message(MessageTable table, const MessageEntry *at, uint32_t number)
