# cython: embedsignature=True, embedsignature.format=clinic
"""The work of a consumer for every message: return the next one, and note the offset of one that is acknowledged.

Threads: any; the GIL makes each step one. Other work is left to the methods that begin with an underscore.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from pyreplog._native.topic.message cimport Message, make_message
from pyreplog._native.topic.message_columns cimport Place
from pyreplog._native.topic.message_entry cimport MessageEntry
from pyreplog._native.topic.messages cimport MessageBatch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)  # for an `object`, Cython would count its own reference

cdef enum:
    COLLECTED_MAX = 16384        # acknowledgements


cdef class PrefetchBuffer:
    """Base of `Consumer`, which has `_receive` and `_acknowledge` for everything that is more than a step."""

    cdef MessageBatch batch     # that was begun, or None
    cdef const Place *places    # of the batch
    cdef Py_ssize_t handed      # number of messages that were handed out
    cdef Py_ssize_t count       # number of all messages
    cdef Message even, odd      # handed out last, alternately; used again if no reference is left
    cdef dict redelivered       # how often messages were redelivered, by offset, or None
    cdef int64_t start, end     # the last run of acknowledged offsets
    cdef int64_t *acked         # earlier ones; NULL: there were none yet
    cdef int acked_count
    cdef readonly bint _collects

    @cython.binding(False)
    def receive(self, timeout=None, max_messages=None):
        """Wait for the next message, or for a list of 1 to `max_messages`.

        Args:
            timeout: seconds; None: without limit. After them the result is None, or an empty list.
            max_messages: most messages of the list, which are there already; None: one message.

        Raises:
            TopicFencedError: another process owns the topic now.
            ClosedError: the consumer, its topic or its cluster was closed.
            ForkedError: this process was forked.
            ReplogError: reading failed.
        """
        if max_messages is None:
            message = self.next_message()
            if message is not None:
                return message
        return self._receive(max_messages, timeout)

    @cython.binding(False)
    @cython.always_allow_keywords(False)
    def acknowledge(self, messages, /):
        """Acknowledge messages: they do not come again. It does not wait; `flush` does.

        Acknowledgements are stored together, every fraction of a second, so after a crash some messages may come again.
        Messages that were acknowledged before are no error.

        Args:
            messages: a message, a batch, an offset, or several messages or offsets; an empty list changes nothing.

        Raises:
            ClosedError: the consumer, its topic or its cluster was closed.
            ForkedError: this process was forked.
            WrongTypeError: `messages` is none of these.
            ReplogError: the subscription ended with an error.
        """
        if not (self._collects and isinstance(messages, Message) and self.note((<Message>messages).at.first
                                                                          + (<Message>messages).number)):
            self._acknowledge(messages)

    def __dealloc__(self):
        free(self.acked)

    # ---- handing out ---------------------------------------------------------------------------------------------

    def _begin(self, delivery):
        """Begin to hand out the messages of a DeliveredMessages."""
        batch, redelivered = delivery
        self._end()
        self.batch, self.redelivered = batch, dict(redelivered) if redelivered else None
        self.places, self.count = self.batch.places, self.batch.count

    def _end(self):
        """Hand out no more messages of the batch that was begun."""
        self.handed = self.count = 0
        self.batch, self.redelivered, self.even, self.odd = None, None, None, None

    def _rest(self):
        """Return the messages that were not handed out yet, as a batch, and end it; None: there are none."""
        remaining = self.batch.slice(self.handed, self.count) if self.handed < self.count else None
        self._end()
        return remaining

    def _next(self):
        """Return the next message of the batch that was begun. Raises StopIteration at its end."""
        message = self.next_message()
        if message is None:
            raise StopIteration
        return message

    cdef object next_message(self):
        cdef const Place *place = self.places + self.handed
        cdef const MessageEntry *entry
        cdef Message message
        if self.handed == self.count:
            self._end()
            return None
        self.handed += 1
        entry = &self.batch.table.entries[place.entry]
        if self.handed & 1:
            if Py_REFCNT(<PyObject *>self.odd) != 1:  # None has more references
                self.odd = make_message(self.batch.table, entry, place.number)
            message = self.odd
        else:
            if Py_REFCNT(<PyObject *>self.even) != 1:
                self.even = make_message(self.batch.table, entry, place.number)
            message = self.even
        message.at, message.number, message.redelivered = entry, place.number, 0
        if self.redelivered is not None:
            message.redelivered = self.redelivered.get(entry.first + place.number, 0)
        return message

    # ---- acknowledgements ----------------------------------------------------------------------------------------

    def _collect(self, bint collects):
        """Set whether acknowledgements may wait for others."""
        self._collects = collects

    cdef bint note(self, int64_t offset) except -1:
        """Note an acknowledged offset; return False if too many were noted."""
        if self.acked_count + self.end - self.start >= COLLECTED_MAX:
            return False
        if offset != self.end:
            self.store_run()
            self.start = offset
        self.end = offset + 1
        return True

    cdef int store_run(self) except -1:
        """Store the last run of offsets with the earlier ones."""
        cdef int64_t at
        if self.acked == NULL:
            self.acked = <int64_t *>malloc(COLLECTED_MAX * sizeof(int64_t))
            if self.acked == NULL:
                raise MemoryError
        for at in range(self.start, self.end):
            self.acked[self.acked_count] = at
            self.acked_count += 1
        self.start = self.end = 0
        return 0

    def _take_run(self):
        """Return and forget (start, end) of the noted offsets, if they are one run; otherwise None."""
        if self.acked_count or self.start == self.end:
            return None
        taken = self.start, self.end
        self.start = self.end = 0
        return taken

    def _take_acked(self):
        """Return and forget the noted offsets, int64[], ascending and distinct; None: none was noted."""
        if not self.acked_count and self.start == self.end:
            return None
        import numpy
        self.store_run()
        taken = PyBytes_FromStringAndSize(<const char *>self.acked, self.acked_count * sizeof(int64_t))
        self.acked_count = 0
        return numpy.unique(numpy.frombuffer(taken, numpy.int64))
