"""What a consumer does for every message: hands out the next one, and notes the offset of one that is acknowledged.

Threads: any; the GIL makes each step one. What is not there is left to the methods that begin with an underscore.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from pyreplog._native.topic.message cimport Message, make_message
from pyreplog._native.topic.messagecolumns cimport Place
from pyreplog._native.topic.messageentry cimport MessageEntry
from pyreplog._native.topic.messages cimport MessageBatch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)  # of an `object`, Cython would count its own reference

cdef enum:
    GATHERED_MAX = 16384        # acknowledgements


cdef class PrefetchBuffer:
    """Base of `Consumer`, which has `_receive`, `_acknowledge`: called for all that is more than a step."""

    cdef MessageBatch batch     # that was begun; None: there is none
    cdef const Place *places    # of its messages
    cdef Py_ssize_t handed      # so many of them were handed out
    cdef Py_ssize_t count       # of so many
    cdef Message even, odd      # handed out last, in turns: one that nobody has kept is used again
    cdef dict redelivered       # how often some of them were; None: none was
    cdef int64_t start, end     # acknowledged last, one behind the other
    cdef int64_t *acked         # those before; NULL: there never were any
    cdef int acked_count
    cdef readonly bint _gathers

    @cython.binding(False)
    def receive(self, max_messages=None, timeout=None):
        """The next message; None when none came within `timeout` seconds (None: waits for ever).

        With `max_messages`, a list of 1 to so many of those that are there; empty when the time ran out.
        Errors: TopicFencedError, the topic has another owner; ClosedError, ForkedError; what reading fails with.
        """
        if max_messages is None:
            message = self.next_message()
            if message is not None:
                return message
        return self._receive(max_messages, timeout)

    @cython.binding(False)
    @cython.always_allow_keywords(False)
    def acknowledge(self, what):
        """These are done with: they do not come again. Does not wait; `flush` does.

        what: a message, a batch, an offset, or several; an empty list changes nothing. After a crash some may come
        again: acknowledgements are stored together, every fraction of a second. Those of what was acknowledged before
        change nothing. Errors: ClosedError, ForkedError; WrongTypeError; what ended the subscription.
        """
        if not (self._gathers and isinstance(what, Message) and self.note((<Message>what).at.first
                                                                          + (<Message>what).number)):
            self._acknowledge(what)

    def __dealloc__(self):
        free(self.acked)

    # ---- handing out ---------------------------------------------------------------------------------------------

    def _begin(self, delivery):
        """A `Delivery`: its messages are handed out next."""
        batch, redelivered = delivery
        self._end()
        self.batch, self.redelivered = batch, dict(redelivered) if redelivered else None
        self.places, self.count = self.batch.places, self.batch.count

    def _end(self):
        """What was begun is not handed out any more."""
        self.handed = self.count = 0
        self.batch, self.redelivered, self.even, self.odd = None, None, None, None

    def _rest(self):
        """What was begun and is not handed out yet, as a batch; None: nothing. It is not handed out any more then."""
        rest = self.batch.slice(self.handed, self.count) if self.handed < self.count else None
        self._end()
        return rest

    def _next(self):
        """The next message of what was begun. StopIteration: there are no more."""
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
            if Py_REFCNT(<PyObject *>self.odd) != 1:  # of None there are more
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

    def _gather(self, bint gathers):
        """Whether acknowledgements may wait for others."""
        self._gathers = gathers

    cdef bint note(self, int64_t offset) except -1:
        """False: there are too many."""
        if self.acked_count + self.end - self.start >= GATHERED_MAX:
            return False
        if offset != self.end:
            self.put_by()
            self.start = offset
        self.end = offset + 1
        return True

    cdef int put_by(self) except -1:
        """The run that ends with the last one goes to the others."""
        cdef int64_t at
        if self.acked == NULL:
            self.acked = <int64_t *>malloc(GATHERED_MAX * sizeof(int64_t))
            if self.acked == NULL:
                raise MemoryError
        for at in range(self.start, self.end):
            self.acked[self.acked_count] = at
            self.acked_count += 1
        self.start = self.end = 0
        return 0

    def _take_run(self):
        """(start, end) of the offsets that were noted since, if they are just those; else None."""
        if self.acked_count or self.start == self.end:
            return None
        taken = self.start, self.end
        self.start = self.end = 0
        return taken

    def _take_acked(self):
        """int64[]: the offsets that were noted since, ascending, each once; None: none was."""
        if not self.acked_count and self.start == self.end:
            return None
        import numpy
        self.put_by()
        taken = PyBytes_FromStringAndSize(<const char *>self.acked, self.acked_count * sizeof(int64_t))
        self.acked_count = 0
        return numpy.unique(numpy.frombuffer(taken, numpy.int64))
