"""Iterates over the messages of a batch, without a new object for each."""

cimport cython
from cpython.object cimport PyObject

from pyreplog._native.topic.message cimport Message, make_message
from pyreplog._native.topic.message_entry cimport MessageEntry


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)  # for an `object`, Cython would count its own reference


cdef object iterate(MessageTable table, Block block, const Place *places, Py_ssize_t count):
    cdef MessageIterator iterator = MessageIterator.__new__(MessageIterator)
    iterator.table, iterator.block, iterator.at, iterator.end = table, block, places, places + count
    return iterator


@cython.final
cdef class MessageIterator:
    """Iterates over the messages of a batch. For one thread at a time.

    A message to which no reference is left is used again for the one after the next, as RecordIterator does.
    """

    cdef MessageTable table
    cdef Block block              # holds the places
    cdef const Place *at
    cdef const Place *end
    cdef Message even, odd        # returned last, alternately
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
            if Py_REFCNT(<PyObject *>self.even) == 1:  # None has more references
                self.even.at, self.even.number, self.even.redelivered = entry, place.number, 0
            else:
                self.even = make_message(self.table, entry, place.number)
            return self.even
        if Py_REFCNT(<PyObject *>self.odd) == 1:
            self.odd.at, self.odd.number, self.odd.redelivered = entry, place.number, 0
        else:
            self.odd = make_message(self.table, entry, place.number)
        return self.odd
