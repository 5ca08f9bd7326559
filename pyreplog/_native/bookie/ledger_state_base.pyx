"""The state of one ledger on a bookie, and the set of ledgers that are not durable yet, as C fields that every ADD uses.

Threads: everything runs under the GIL; a bookie is used by one thread at a time.
"""

cdef extern from *:
    """
    #define REPLOG_NOTHING ((INT64_C(1) << 62) + 1)
    """
    const int64_t NO_ENTRY "REPLOG_NOTHING"

NOTHING = NO_ENTRY
"""Above all entry numbers."""


cdef class LedgerStateBase:
    """The fields of a bookie's LedgerState, which describes them."""


cdef class Uncommitted:
    """Two generations of ledgers: those that wait for the next commit, and those of the current one. Not thread-safe.

    waiting: replies that wait for the next commit.
    """

    def __cinit__(self):
        self.waiting = []
        self.touched = []       # their `fresh` is not NOTHING
        self.committing = []    # their `committing` may not be

    def touch(self, LedgerStateBase state not None, int64_t first):
        """Note that entries of a ledger, from `first` on, become durable with the next commit."""
        self.note(state, first)

    cdef int note(self, LedgerStateBase state, int64_t first) except -1:
        if state.fresh == NO_ENTRY:
            self.touched.append(state)
        state.fresh = min(state.fresh, first)
        return 0

    def begin(self):
        """Begin a commit and return the replies that wait for it; if no reply waits, there is no commit."""
        return self.take()

    cdef list take(self):
        cdef list taken = self.waiting
        cdef LedgerStateBase state
        if not taken:
            return []
        self.waiting = []
        for state in self.touched:
            state.committing, state.fresh = state.fresh, NO_ENTRY
        self.committing, self.touched = self.touched, []
        return taken

    def end(self):
        """End the commit."""
        self.settle()

    cdef int settle(self) except -1:
        cdef LedgerStateBase state
        for state in self.committing:
            state.committing = NO_ENTRY
        self.committing = []
        return 0
