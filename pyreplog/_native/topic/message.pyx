"""One message of a topic, as a view of its entry."""

import sys

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport LongHeader, RecordHead
from pyreplog._native.log.record cimport span
from pyreplog._native.topic.message_entry cimport (
    deliver_at, event_time_at, key_size, key_start, origin_of, properties_of, sequence_at, value_size, value_start,
)

cdef str VALUE = sys.intern("value")

cdef extern from "Python.h":
    object PyObject_GenericGetAttr(object o, object name)


cdef Message make_message(MessageTable table, const MessageEntry *at, uint32_t number):
    cdef Message message = Message.__new__(Message)
    message.table, message.at, message.number = table, at, number
    return message


@cython.final
@cython.freelist(64)
@cython.no_gc  # its table never leads back to it
cdef class Message:
    """A message of a topic; made by a MessageBatch.

    It views its entry, whose bytes are copied when an attribute is read.

    `value`, `key` and `properties` are copies; `value_view` is a read-only memoryview that keeps the entries alive.
    Times are microseconds since the epoch. Any thread may use it, except to set `redelivered`.

    Attributes:
        redelivered: how often it was delivered before.
    """

    def __init__(self):
        raise TypeError("messages are made by batches of messages")

    def __getattribute__(self, name):
        """Return an attribute; the value, which most loops read, on a short path, as a Record does."""
        if name is VALUE:
            return self.copied_value()
        return PyObject_GenericGetAttr(self, name)

    @property
    def offset(self):
        """Its offset in the topic."""
        return self.at.first + self.number

    @property
    def partition(self):
        """The partition of a partitioned topic that it was received from; -1: none."""
        return self.table.partition

    @property
    def value(self):
        """The value, copied."""
        return self.copied_value()

    cdef bytes copied_value(self):
        return PyBytes_FromStringAndSize(<const char *>self.at.values + value_start(self.at, self.number),
                                         value_size(self.at, self.number))

    @property
    def value_view(self):
        """The value, not copied."""
        return span(self.table, self.at.values + value_start(self.at, self.number), value_size(self.at, self.number))

    @property
    def size(self):
        """Bytes of the value."""
        return value_size(self.at, self.number)

    @property
    def key(self):
        """The key, copied; None: it has none."""
        cdef int64_t size = key_size(self.at, self.number)
        if size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char *>self.at.keys + key_start(self.at, self.number), size)

    @property
    def properties(self):
        """The properties: a dict of str to bytes."""
        return properties_of(self.at, self.number)

    @property
    def event_time(self):
        """The time that the producer set, or None."""
        cdef int64_t time = event_time_at(self.at, self.number)
        return None if time == INT64_MIN else time

    @property
    def publish_time(self):
        """When its entry was appended in this cluster. See `origin_publish_time`."""
        return (<const RecordHead *>self.at.record).time

    @property
    def deliver_at(self):
        """When it may be delivered; None: at once."""
        cdef int64_t time = deliver_at(self.at, self.number)
        return time if time else None

    @property
    def producer(self):
        """The name of its producer, bytes; empty: it has none."""
        return PyBytes_FromStringAndSize(<const char *>self.at.producer, self.at.producer_length)

    @property
    def sequence(self):
        """The producer's number for it, or None."""
        cdef int64_t sequence = sequence_at(self.at, self.number)
        return None if sequence < 0 else sequence

    @property
    def origin_key(self):
        """The key of the topic where it was published, if that is in another cluster; None: it was published here.

        See `Topic.origins.names`.
        """
        cdef int64_t length
        cdef uint64_t key
        cdef const uint8_t *origin = origin_of(self.at.record, &length)
        if origin == NULL:
            return None
        memcpy(&key, origin, 8)
        return key

    @property
    def origin_offset(self):
        """Its offset where it was published, if that is in another cluster; None: it was published here."""
        cdef int64_t length, first
        cdef const uint8_t *origin = origin_of(self.at.record, &length)
        if origin == NULL:
            return None
        memcpy(&first, origin + 8, 8)
        return first + self.number

    @property
    def origin_publish_time(self):
        """When its entry was appended where it was published, if that is in another cluster; None: it was published here.

        It is the `publish_time` that the message has there.
        """
        cdef int64_t length, time
        cdef const uint8_t *origin = origin_of(self.at.record, &length)
        if origin == NULL:
            return None
        memcpy(&time, origin + 16, 8)
        return time

    @property
    def ledger(self):
        """Ledger of its entry."""
        return (<const LongHeader *>self.at.record).ledger

    @property
    def entry(self):
        """Id of its entry in the ledger."""
        return (<const LongHeader *>self.at.record).entry

    @property
    def index(self):
        """Its number in the entry, from 0."""
        return self.number

    @property
    def entry_first(self):
        """Offset of the first message of its entry."""
        return self.at.first

    @property
    def entry_count(self):
        """Number of messages of its entry."""
        return self.at.count

    @property
    def entry_size(self):
        """Stored bytes of its entry's value."""
        return self.at.size

    def __reduce__(self):
        raise TypeError("a Message views its entry and cannot be pickled; take its value")

    def __repr__(self):
        return f"Message(offset={self.offset}, key={self.key!r}, size={self.size})"
