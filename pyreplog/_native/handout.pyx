"""What a consumer does for every message: hands out the next one, and notes the offset of one that is acknowledged.

Threads: any; the GIL makes each step one. What is not there is left to the methods that begin with an underscore.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t

from pyreplog._native.message cimport Message

cdef extern from "Python.h":
    PyObject *PyIter_Next(object o) except? NULL

cdef enum:
    GATHERED_MAX = 4096         # acknowledgements


cdef class Handout:
    """Base of `Consumer`, which has `_receive`, `_acknowledge`: called for all that is more than a step."""

    cdef object messages        # iterator over those of the batch that was begun; None: there is none
    cdef dict redelivered       # how often some of them were; None: none was
    cdef int64_t[GATHERED_MAX] acked
    cdef int acked_count
    cdef bint ascend            # what is in `acked` does, each once
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

        what: a message, a batch, an offset, or several. After a crash some may come again: acknowledgements are stored
        together, every fraction of a second. Those of what was acknowledged before change nothing. Errors: ClosedError,
        ForkedError; WrongTypeError; what ended the subscription.
        """
        if not (self._gathers and isinstance(what, Message) and self.note((<Message>what).at.first
                                                                          + (<Message>what).number)):
            self._acknowledge(what)

    # ---- handing out ---------------------------------------------------------------------------------------------

    def _begin(self, delivery):
        """A `Delivery`: its messages are handed out next."""
        batch, redelivered = delivery
        self.messages, self.redelivered = iter(batch), dict(redelivered) if redelivered else None

    def _end(self):
        """What was begun is not handed out any more."""
        self.messages = self.redelivered = None

    def _next(self):
        """The next message of what was begun. StopIteration: there are no more."""
        message = self.next_message()
        if message is None:
            raise StopIteration
        return message

    cdef object next_message(self):
        cdef PyObject *found
        cdef Message message
        if self.messages is None:
            return None
        found = PyIter_Next(self.messages)
        if found == NULL:
            self.messages = self.redelivered = None
            return None
        message = <Message>found
        Py_DECREF(message)
        if self.redelivered is not None:
            message.redelivered = self.redelivered.get(message.at.first + message.number, 0)
        return message

    # ---- acknowledgements ----------------------------------------------------------------------------------------

    def _gather(self, bint gathers):
        """Whether acknowledgements may wait for others."""
        self._gathers = gathers

    cdef bint note(self, int64_t offset):
        """False: there are too many."""
        cdef int count = self.acked_count
        if count == GATHERED_MAX:
            return False
        self.ascend = not count or self.ascend and self.acked[count - 1] < offset
        self.acked[count] = offset
        self.acked_count = count + 1
        return True

    def _take_acked(self):
        """int64[]: the offsets that were noted since, ascending, each once; None: none was."""
        if not self.acked_count:
            return None
        import numpy
        cdef bint ascend = self.ascend
        taken = PyBytes_FromStringAndSize(<const char *>self.acked, self.acked_count * sizeof(int64_t))
        self.acked_count = 0
        offsets = numpy.frombuffer(taken, numpy.int64)
        return offsets if ascend else numpy.unique(offsets)
