"""Single entries that wait while a batch is on its way; see `pyreplog.ledger.protocol.staging`.

Threads: everything runs under the GIL, which makes each call one step.
"""

cimport cython
from libc.stdint cimport int64_t

cdef enum:
    STAGE_LIMIT = 256 << 10

STAGE_BYTES = STAGE_LIMIT
"""With so many bytes, the entries that wait are sent at once."""


@cython.final
cdef class Staging:
    """`Staging(proceed=None)`: entries that wait to be sent, tuples whose first item is the value.

    Any thread may add; one thread at a time takes. The object is a callback for the AppendFuture of a batch: when the batch
    has landed and entries wait, it calls `proceed()`.
    """

    def __init__(self, proceed=None):
        self.proceed, self.entries = proceed, []

    def __len__(self):
        return len(self.entries)

    def __call__(self, ids, /):
        if self.landed():
            self.proceed()

    def add(self, entry, /):
        """Add an entry; return whether to send the waiting entries now. Else they are sent when a batch lands."""
        self.entries.append(entry)
        self.nbytes += len(entry[0])
        return not self.flying or self.nbytes >= STAGE_LIMIT

    def take(self):
        """Take the waiting entries as one batch. Call `landed` when it is confirmed or failed, unless it is empty."""
        cdef list entries = self.entries
        self.entries, self.nbytes = [], 0
        self.flying += bool(entries)
        return entries

    cpdef bint leave(self) noexcept:
        """Whether an entry may be sent unstaged, because no entry waits and no batch is on its way. If so, it counts as a
        batch on its way until `landed`."""
        if self.entries or self.flying:
            return False
        self.flying = 1
        return True

    cpdef bint landed(self) noexcept:
        """Count a batch as landed; return whether entries wait."""
        self.flying -= 1
        return bool(self.entries)
