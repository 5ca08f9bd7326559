"""Single entries that wait while a batch of others is on its way; `pyreplog.ledger.protocol.staging` says what for.

Threads: everything runs under the GIL, which makes each call one step.
"""

cimport cython
from libc.stdint cimport int64_t

cdef enum:
    STAGE_LIMIT = 256 << 10

STAGE_BYTES = STAGE_LIMIT
"""So many bytes do not wait."""


@cython.final
cdef class Staging:
    """Entries that wait to be sent: tuples, whose first item is the value. Any thread may add; they are taken by one thread
    at a time.

    `Staging(proceed=None)`. Itself a callback of the AppendFuture of a batch: that has landed, and `proceed()` is
    called when entries wait for it.
    """

    def __init__(self, proceed=None):
        self.proceed, self.entries = proceed, []

    def __len__(self):
        return len(self.entries)

    def __call__(self, ids, /):
        if self.landed():
            self.proceed()

    def add(self, entry, /):
        """Whether it is to be sent now, with all that wait; else it is when a batch lands."""
        self.entries.append(entry)
        self.nbytes += len(entry[0])
        return not self.flying or self.nbytes >= STAGE_LIMIT

    def take(self):
        """All that wait, as one batch; `landed` says when it is confirmed, or failed. None wait: no batch."""
        cdef list entries = self.entries
        self.entries, self.nbytes = [], 0
        self.flying += bool(entries)
        return entries

    cpdef bint leave(self) noexcept:
        """Whether an entry may go without stopping here: nothing waits or is on its way. Then it is, until `landed`."""
        if self.entries or self.flying:
            return False
        self.flying = 1
        return True

    cpdef bint landed(self) noexcept:
        """One batch less is on its way; whether entries wait for that."""
        self.flying -= 1
        return bool(self.entries)
