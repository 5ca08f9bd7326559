"""What a bookie knows of one ledger, and what of all is not durable yet: fields of their own types, looked at and moved for
every ADD.

Threads: everything runs under the GIL; a bookie is used by one thread at a time.
"""

cdef extern from *:
    """
    #define REPLOG_NOTHING ((INT64_C(1) << 62) + 1)
    """
    const int64_t NO_ENTRY "REPLOG_NOTHING"

NOTHING = NO_ENTRY
"""Above all entry ids."""


cdef class LedgerStateBase:
    """The fields of a bookie's LedgerState, which says what they are."""


cdef class Uncommitted:
    """Two generations: what waits for the next commit, and what the one under way makes durable. Not thread-safe.

    waiting: who waits.
    """

    def __cinit__(self):
        self.waiting = []
        self.touched = []       # their `fresh` is not NOTHING
        self.committing = []    # their `committing` may not be

    def touch(self, LedgerStateBase state not None, int64_t first):
        """What was appended of a ledger, from entry `first` on, becomes durable with the next commit."""
        self.note(state, first)

    cdef int note(self, LedgerStateBase state, int64_t first) except -1:
        if state.fresh == NO_ENTRY:
            self.touched.append(state)
        state.fresh = min(state.fresh, first)
        return 0

    def begin(self):
        """A commit begins; returns who waits for it, if anybody: otherwise there is none, and who waits from now on is not
        of it."""
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
        """It has ended."""
        cdef LedgerStateBase state
        for state in self.committing:
            state.committing = NO_ENTRY
        self.committing = []
