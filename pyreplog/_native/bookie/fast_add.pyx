"""The fast path of plain ADDs, from the received frame to the frame of the OK, without Python objects or calls of Python
code for the steps in between. FORMAT.md, "Bookie protocol", has the bytes.

Threads: everything runs under the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from pyreplog._native.bookie.ledger_state_base cimport LedgerStateBase, Uncommitted
from pyreplog._native.bookie.inspect_records cimport Seen, look
from pyreplog._native.ledgerlog.entries cimport LEDGERS
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog._native.net.frame cimport FRAME_HEADER, FrameBatch, load_i64, put_header, store_i64
from pyreplog._native.net.requesthead cimport (
    AT_FIRST, AT_FLAGS, AT_KEY, AT_LAST, AT_LEDGER, AT_RUN, AT_STEP, FLAG_UNSYNCED, KEY_BYTES, KIND_ADD, REQUEST_BYTES,
)
from pyreplog._native.system.histogram cimport Histogram

from pyreplog.errors import ReplogError

cdef enum:      # a reply's head
    REPLY_BYTES = 40
    REPLY_AT_LAC = 32
    STATUS_OK = 0

cdef enum:
    LATER_LAC = -2  # no LAC

LATER = LATER_LAC
"""The reply comes with the next commit."""


# ---- the request -----------------------------------------------------------------------------------------------

@cython.final
cdef class FastAdd:
    """An ADD of entries first to last, whose records were inspected by their heads only; made by `parse_fast_add` and
    `as_fast_add`.

    number: of its frame. key, flags: as in a Request. count, highest, lac: of the records, as of `inspect_entries`.
    respond: called when the entries are durable; confirmed: the LAC of that OK.
    """

    cdef object kept                # owner of the bytes, if it is not `view`
    cdef Py_buffer view             # of a request's records
    cdef bint viewed
    cdef const uint8_t *start       # of the records
    cdef readonly Py_ssize_t nbytes
    cdef readonly int64_t number, ledger, first, last, count, highest, lac, confirmed
    cdef readonly bytes key
    cdef readonly int flags
    cdef readonly object respond

    def __init__(self):
        raise TypeError("fast ADDs are made by parse_fast_add")

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.start, self.nbytes, 1, flags)

    cdef void note(self, int64_t ledger, int64_t first, int64_t last, int flags, const Seen *seen) noexcept:
        self.ledger, self.first, self.last, self.flags = ledger, first, last, flags
        self.count, self.highest, self.lac = seen.count, seen.highest, seen.lac

    @property
    def records(self):
        """View of the encoded records."""
        return PyMemoryView_FromObject(self)

    def ok(self, int64_t lac, /):
        """Return the frame of the OK."""
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + REPLY_BYTES)
        cdef char *p = PyBytes_AS_STRING(frame)
        put_header(p, self.number, REPLY_BYTES)
        p += FRAME_HEADER
        memset(p, 0, AT_LEDGER)  # status OK
        store_i64(p + AT_LEDGER, self.ledger)
        store_i64(p + AT_FIRST, self.first)
        store_i64(p + AT_LAST, self.last)
        store_i64(p + REPLY_AT_LAC, lac)
        return frame


def parse_fast_add(FrameBatch batch not None, dict taken not None, /):
    """Parse a batch of one frame as an ADD of a ledger's writer; None: it is something else, or its number is `taken`."""
    cdef FastAdd add
    cdef Seen seen
    cdef int64_t size, ledger, first, last
    cdef const uint8_t *p
    if batch.count != 1:
        return None
    size = batch.column(1)[0] - REQUEST_BYTES
    p = batch.data + batch.column(2)[0]
    if size <= 0 or p[0] != KIND_ADD or p[AT_RUN] != 1 or p[AT_STEP] != 1:
        return None
    if p[AT_FLAGS] & ~FLAG_UNSYNCED:
        return None
    ledger, first, last = load_i64(p + AT_LEDGER), load_i64(p + AT_FIRST), load_i64(p + AT_LAST)
    if not 0 <= ledger < LEDGERS or not 0 <= first <= last < LEDGERS or batch.column(0)[0] < 0:
        return None
    if not look(p + REQUEST_BYTES, size, ledger, first, last, &seen) or batch.column(0)[0] in taken:
        return None
    add = FastAdd.__new__(FastAdd)
    add.kept, add.start, add.nbytes, add.number = batch, p + REQUEST_BYTES, size, batch.column(0)[0]
    add.key = PyBytes_FromStringAndSize(<const char *>p + AT_KEY, KEY_BYTES)
    add.note(ledger, first, last, p[AT_FLAGS], &seen)
    return add


def as_fast_add(request, /):
    """Make a FastAdd of an unsynced ADD, for all bookies that it goes to, with number 0; None: it is something else."""
    cdef FastAdd add
    cdef Seen seen
    cdef int64_t ledger = request[1], first = request[2], last = request[3]
    if request[0] != KIND_ADD or request[5] != FLAG_UNSYNCED:
        return None
    if not 0 <= ledger < LEDGERS or not 0 <= first <= last < LEDGERS:
        return None
    add = FastAdd.__new__(FastAdd)
    get_buffer(request[9], &add.view, "records")
    add.viewed, add.start, add.nbytes = True, <const uint8_t *>add.view.buf, add.view.len
    if not look(add.start, add.nbytes, ledger, first, last, &seen):
        return None
    add.key = request[4]
    add.note(ledger, first, last, FLAG_UNSYNCED, &seen)
    return add


# ---- the bookie ------------------------------------------------------------------------------------------------

cdef bint is_same(bytes key, bytes other) noexcept:
    """Compare two keys in constant time."""
    cdef Py_ssize_t i
    cdef int differs = 0
    if key is None or len(key) != len(other):
        return False
    for i in range(len(key)):
        differs |= <uint8_t>PyBytes_AS_STRING(key)[i] ^ <uint8_t>PyBytes_AS_STRING(other)[i]
    return not differs


cdef class AddCounters:
    """The part of BookieCounters that counts ADDs. commit_entries: histogram of the entries of each commit."""

    cdef public int64_t added_entries, added_bytes
    cdef public dict requests, replies
    cdef readonly Histogram commit_entries
    cdef int64_t committed

    def __init__(self, Histogram commit_entries not None, /):
        self.commit_entries = commit_entries

    cpdef add(self, int64_t entries, int64_t size):
        """Count an ADD that was taken."""
        self.added_entries += entries
        self.added_bytes += size

    cdef int commit(self) except -1:
        """Count a commit that has begun."""
        self.commit_entries.observe(self.added_entries - self.committed)
        self.committed = self.added_entries
        return 0


cdef class DiskSpaceBase:
    """The part of DiskSpaceMonitor that runs for every ADD: calls `look()` after each `look_after` bytes.

    The subclass has `look`, which sets `added` to 0.
    """

    cdef public bint read_only
    cdef public int64_t added, look_after

    cpdef add(self, int64_t size):
        """Count bytes that were appended."""
        self.added += size
        if self.added >= self.look_after:
            self.look()

    def look(self):
        raise NotImplementedError


cdef class FastAddHandler:
    """The part of Bookie that runs for every plain ADD and for every commit.

    log, space, polls, counts, group: those of the bookie. states: the LedgerStateBase of each ledger that was used lately,
    by ledger, the one used last at the end. deleted: ledgers that were deleted. _lacs: states of ledgers with explicit
    LACs to be appended. The subclass has `_tell`, `_append_lacs`, `_fail` and `_end`, and sets `_failure`.
    """

    cdef public object _log, _polls
    cdef public dict _lacs
    cdef public DiskSpaceBase _space
    cdef public AddCounters counts
    cdef public Uncommitted _group
    cdef public str _failure
    cdef object states, append
    cdef dict deleted
    cdef bint staged

    def __init__(self, log, DiskSpaceBase space not None, polls, AddCounters counts not None, Uncommitted group not None, states,
                 dict deleted not None):
        self._log, self._space, self._polls, self.counts, self._group = log, space, polls, counts, group
        self.states, self.deleted = states, deleted
        self.append, self.staged, self._lacs = log.append, log.staged, {}

    def add_fast(self, FastAdd add not None, respond=None, /):
        """Handle a plain ADD, and return the LAC of its OK.

        LATER: `respond` will be called, with the ADD if it is durable, or with a Reply that tells the error. None: call
        `handle`; nothing was done, or `handle` fails in the same way and tells the error.
        """
        cdef bint waits = self.staged or not add.flags & FLAG_UNSYNCED
        cdef LedgerStateBase state = self.states.get(add.ledger)
        if state is None or self._failure is not None or add.first <= state.last or (waits and respond is None):
            return None
        if state.fenced or state.limbo or not is_same(state.key, add.key):  # the rules of `admission`
            return None
        if self._space.read_only or add.ledger in self.deleted:
            return None
        try:
            self.append(add)
        except (ReplogError, OSError):
            return None
        self.states.move_to_end(add.ledger)
        self._space.add(add.nbytes)
        self._took(state, add.count, add.nbytes, add.highest, add.lac)
        self.counts.requests[KIND_ADD] += 1
        if waits:
            add.respond, add.confirmed = respond, state.lac
            self._group.note(state, add.first)
            self._group.waiting.append(add)
            return LATER
        self.counts.replies[STATUS_OK] += 1
        return state.lac

    cpdef _took(self, LedgerStateBase state, int64_t count, int64_t nbytes, int64_t highest, int64_t lac):
        """Note entries that were appended to a ledger; highest, lac: the highest of them."""
        self.counts.add(count, nbytes)
        state.last = max(state.last, highest)
        self._raise_lac(state, lac)

    cpdef _raise_lac(self, LedgerStateBase state, int64_t lac):
        """Raise the LAC of a ledger, and answer the long polls that waited for it."""
        if lac > state.lac:
            state.lac = lac
            if self._polls.count:
                self._tell(self._polls.reached(state.ledger, lac))

    def _tell(self, polls):
        raise NotImplementedError

    # ---- group commit ----

    @property
    def waits(self):
        """Whether `commit` has something to do."""
        return bool(self._group.waiting or self._lacs)

    def commit(self):
        """Sync once for all requests that wait, and answer them. Does nothing if no request waits."""
        group = self.begin_commit()
        if group:
            self.end_commit(group, self.sync())

    def begin_commit(self):
        """Begin a commit, the first of three steps, for drivers that handle requests during the sync: take the group."""
        if self._lacs:
            self._append_lacs()
        group = self._group.begin()
        if group:
            self.counts.commit()
        return group

    def sync(self):
        """Sync the log, the second step, without the driver's lock; return the error, or None."""
        try:
            self._log.sync()
        except (ReplogError, OSError) as error:
            return error
        return None

    def end_commit(self, list group not None, error):
        """Answer the group, the third step. A request that has to read the log may wait for another commit."""
        if error is not None and self._failure is None:
            self._fail(error)
        self._group.end()
        for waiting in group:
            if self._failure is None and type(waiting) is FastAdd:
                self.counts.replies[STATUS_OK] += 1
                (<FastAdd>waiting).respond(waiting)
            else:
                self._end(waiting)

    def _append_lacs(self):
        raise NotImplementedError

    def _fail(self, error):
        raise NotImplementedError

    def _end(self, waiting):
        """Answer a request that is no FastAdd, or whose commit failed."""
        raise NotImplementedError
