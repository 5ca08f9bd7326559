"""The look at a Purgatory that every change of a number takes: does anybody wait for it?"""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject


cdef class PurgatoryBase:
    """Base of Purgatory, which describes the fields."""

    cdef public object _inbox, _lines

    def is_watched(self, *keys):
        """Whether `advance` may be needed for one of these keys. False only while nobody waits for any of them.

        For an owner that keeps the numbers where their waiters can read them, and stores them there first. A caller of
        `watch` whose registration this call did not see reads the number after `watch` returns: it finds the new one.
        The inbox is read before the lines, because a registration is in the inbox until its line counts it.
        """
        cdef PyObject *line
        if self._inbox:
            return True
        for key in keys:
            line = PyDict_GetItem(self._lines, key)
            if line != NULL and (<object>line).live:
                return True
        return False
