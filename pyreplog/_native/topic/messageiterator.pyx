"""Messages of a batch in turn, without an object for each."""

cimport cython
from cpython.object cimport PyObject

from pyreplog._native.topic.message cimport Message, make_message
from pyreplog._native.topic.messageentry cimport MessageEntry


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)  # of an `object`, Cython would count its own reference


cdef object iterate(MessageTable table, Block block, const Place *places, Py_ssize_t count):
    cdef MessageIterator made = MessageIterator.__new__(MessageIterator)
    made.table, made.block, made.at, made.end = table, block, places, places + count
    return made


@cython.final
cdef class MessageIterator:
    """Gives the messages of a batch in turn. One that nobody has kept is used again for the one after the next, as by
    RecordIterator. For one thread at a time."""

    cdef MessageTable table
    cdef Block block              # what has the places
    cdef const Place *at
    cdef const Place *end
    cdef Message even, odd        # given out last, in turns
    cdef bint is_even

    def __init__(self):
        raise TypeError("iterators of messages are made by iterating over a batch")

    def __iter__(self):
        return self

    def __next__(self):
        cdef const Place *place = self.at
        cdef const MessageEntry *entry
        if place == self.end:
            self.even = self.odd = None
            raise StopIteration
        self.at += 1
        entry = &self.table.entries[place.entry]
        self.is_even = not self.is_even
        if self.is_even:
            if Py_REFCNT(<PyObject *>self.even) == 1:  # of None there are more
                self.even.at, self.even.number, self.even.redelivered = entry, place.number, 0
            else:
                self.even = make_message(self.table, entry, place.number)
            return self.even
        if Py_REFCNT(<PyObject *>self.odd) == 1:
            self.odd.at, self.odd.number, self.odd.redelivered = entry, place.number, 0
        else:
            self.odd = make_message(self.table, entry, place.number)
        return self.odd
