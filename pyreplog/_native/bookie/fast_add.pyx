"""The fast path of plain ADDs, from the received frame to the frame of the OK, without Python objects or calls of Python
code for the steps in between. FORMAT.md, "Bookie protocol", has the bytes.

Threads: everything runs under the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.string cimport memset

from pyreplog._native.bookie.inspect_records cimport inspect_headers
from pyreplog._native.ledger_log.entries cimport LEDGERS
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog._native.log.group_commit_base cimport StagedSync
from pyreplog._native.net.frame cimport FRAME_HEADER, load_i64, put_header, store_i64
from pyreplog._native.net.request_head cimport (
    AT_FIRST, AT_FLAGS, AT_KEY, AT_LAST, AT_LEDGER, AT_RUN, AT_STEP, FLAG_UNSYNCED, KEY_BYTES, KIND_ADD, REQUEST_BYTES,
)

import os
from functools import partial

from pyreplog.errors import ClosedError, ReplogError

cdef enum:      # a reply's head
    REPLY_BYTES = 40
    REPLY_AT_LAC = 32
    STATUS_OK = 0

cdef int64_t process = os.getpid()  # compared for every ADD, which a system call would make dear
cdef object NOT_OPEN = ClosedError("the bookie was not opened")

LATER = LATER_LAC
"""The reply comes with the next commit."""


def _forked():
    global process
    process = os.getpid()


os.register_at_fork(after_in_child=_forked)


# ---- the request -----------------------------------------------------------------------------------------------

@cython.final
cdef class FastAdd:
    """An ADD of entries first to last, whose records were inspected by their heads only; made by `parse_fast_add` and
    `as_fast_add`.

    number: of its frame. key, flags: as in a Request. count, highest, lac: of the records, as of `inspect_entries`.
    respond: called when the entries are durable; confirmed: the LAC of that OK.
    """

    def __init__(self):
        raise TypeError("fast ADDs are made by parse_fast_add")

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
        return self.ok_frame(lac)

    cdef bytes ok_frame(self, int64_t lac):
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
    return parse_alone(batch, taken)


cdef FastAdd parse_alone(FrameBatch batch, dict taken):
    cdef FastAdd add = parse_add(batch, 0) if batch.count == 1 else None
    return None if add is None or add.number in taken else add


cdef FastAdd parse_add(FrameBatch batch, Py_ssize_t i):
    cdef FastAdd add
    cdef Seen seen
    cdef int64_t number = batch.column(0)[i], size = batch.column(1)[i] - REQUEST_BYTES, ledger, first, last
    cdef const uint8_t *p = batch.data + batch.column(2)[i]
    if size <= 0 or p[0] != KIND_ADD or p[AT_RUN] != 1 or p[AT_STEP] != 1:
        return None
    if p[AT_FLAGS] & ~FLAG_UNSYNCED:
        return None
    ledger, first, last = load_i64(p + AT_LEDGER), load_i64(p + AT_FIRST), load_i64(p + AT_LAST)
    if not 0 <= ledger < LEDGERS or not 0 <= first <= last < LEDGERS or number < 0:
        return None
    if not inspect_headers(p + REQUEST_BYTES, size, ledger, first, last, &seen):
        return None
    add = FastAdd.__new__(FastAdd)
    add.kept, add.start, add.nbytes, add.number = batch, p + REQUEST_BYTES, size, number
    add.key = PyBytes_FromStringAndSize(<const char *>p + AT_KEY, KEY_BYTES)
    add.note(ledger, first, last, p[AT_FLAGS], &seen)
    return add


def as_fast_add(request, /):
    """Make a FastAdd of an ADD of a ledger's writer, with number 0; None: it is something else.

    It may go to several bookies, one after the other, up to the first that answers LATER.
    """
    cdef FastAdd add
    cdef Seen seen
    cdef Py_buffer view
    cdef int64_t ledger = request[1], first = request[2], last = request[3]
    cdef int flags = request[5]
    if request[0] != KIND_ADD or flags & ~FLAG_UNSYNCED:
        return None
    if not 0 <= ledger < LEDGERS or not 0 <= first <= last < LEDGERS:
        return None
    add = FastAdd.__new__(FastAdd)
    get_buffer(request[9], &view, "records")
    try:
        add.kept, add.start, add.nbytes = PyMemoryView_FromObject(request[9]), <const uint8_t *>view.buf, view.len
    finally:
        PyBuffer_Release(&view)
    if not inspect_headers(add.start, add.nbytes, ledger, first, last, &seen):
        return None
    add.key = request[4]
    add.note(ledger, first, last, flags, &seen)
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
    """The part of BookieCounters that every request changes.

    commit_entries: histogram of the entries of each commit. kinds, statuses: of requests and replies, as enums.
    """

    def __init__(self, Histogram commit_entries not None, kinds, statuses, /):
        self.commit_entries, self.kinds, self.statuses = commit_entries, tuple(kinds), tuple(statuses)

    @property
    def requests(self):
        """Number of requests by kind."""
        return {kind: self.by_kind[<uint8_t>kind] for kind in self.kinds}

    @property
    def replies(self):
        """Number of replies by status."""
        return {status: self.by_status[<uint8_t>status] for status in self.statuses}

    def count_request(self, uint8_t kind, /):
        """Count a request."""
        self.by_kind[kind] += 1

    def count_reply(self, uint8_t status, /):
        """Count a reply."""
        self.by_status[status] += 1

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
    """The part of DiskSpaceMonitor that runs for every ADD: calls `check()` after each `check_after` bytes.

    The subclass has `check`, which sets `added` to 0.
    """

    cpdef add(self, int64_t size):
        """Count bytes that were appended."""
        self.added += size
        if self.added >= self.check_after:
            self.check()

    def check(self):
        raise NotImplementedError


cdef class LongPollsBase:
    """The part of LongPolls that every ADD looks at. count: number of polls."""


cdef class FastAddHandler:
    """The part of Bookie that runs for every plain ADD and for every commit.

    log, space, polls, counts, group: those of the bookie. states: the LedgerStateBase of each ledger that was used lately,
    by ledger, the one used last at the end. deleted: ledgers that were deleted. _lacs: states of ledgers with explicit
    LACs to be appended. The subclass has `_answer_polls`, `_append_lacs`, `_fail` and `_end`, and sets `_failure`.
    """

    def __init__(self, log, DiskSpaceBase space not None, LongPollsBase polls not None, AddCounters counts not None,
                 Uncommitted group not None, states, dict deleted not None):
        self._log, self._space, self._polls, self.counts, self._group = log, space, polls, counts, group
        self.states, self.deleted = states, deleted
        self.append, self.staged, self._lacs = log.append, log.staged, {}
        self.intake = self.append if type(self.append) is EntryIntake else None

    def add_fast(self, FastAdd add not None, respond=None, /):
        """Handle a plain ADD, and return the LAC of its OK.

        LATER: `respond` will be called, with the ADD if it is durable, or with a Reply that tells the error. None: call
        `handle`; nothing was done, or `handle` fails in the same way and tells the error.
        """
        cdef int64_t lac = self.try_add(add, respond)
        return None if lac == DECLINED_LAC else lac

    cdef int64_t try_add(self, FastAdd add, object respond) except? -4:
        """Handle a plain ADD as `add_fast` does, with DECLINED_LAC in place of None.

        What speaks against it is looked at before anything changes.
        """
        cdef bint waits = self.staged or not add.flags & FLAG_UNSYNCED
        cdef LedgerStateBase state = self.states.get(add.ledger)
        if state is None or self._failure is not None or add.first <= state.last or (waits and respond is None):
            return DECLINED_LAC
        if state.fenced or state.limbo or not is_same(state.key, add.key):  # the rules of `admission`
            return DECLINED_LAC
        if self._space.read_only or add.ledger in self.deleted:
            return DECLINED_LAC
        try:
            if self.intake is not None:
                self.intake.put(add.start, add.nbytes)
            else:
                self.append(add)
        except (ReplogError, OSError):
            return DECLINED_LAC
        self.states.move_to_end(add.ledger)
        self._space.add(add.nbytes)
        self._note_added(state, add.count, add.nbytes, add.highest, add.lac)
        self.counts.by_kind[KIND_ADD] += 1
        if waits:
            add.respond, add.confirmed = respond, state.lac
            self._group.note(state, add.first)
            self._group.waiting.append(add)
            return LATER_LAC
        self.counts.by_status[STATUS_OK] += 1
        return state.lac

    cpdef _note_added(self, LedgerStateBase state, int64_t count, int64_t nbytes, int64_t highest, int64_t lac):
        """Note entries that were appended to a ledger; highest, lac: the highest of them."""
        self.counts.add(count, nbytes)
        state.last = max(state.last, highest)
        self._raise_lac(state, lac)

    cpdef _raise_lac(self, LedgerStateBase state, int64_t lac):
        """Raise the LAC of a ledger, and answer the long polls that waited for it."""
        if lac > state.lac:
            state.lac = lac
            if self._polls.count:
                self._answer_polls(self._polls.reached(state.ledger, lac))

    def _answer_polls(self, polls):
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
        return self.begin()

    cdef list begin(self):
        cdef list group
        if self._lacs:
            self._append_lacs()
        group = self._group.take()
        if group:
            self.counts.commit()
        return group

    def sync(self):
        """Sync the log, the second step, without the driver's lock; return the error, or None."""
        return self.sync_log()

    cdef object sync_log(self):
        cdef object sync = self._log.sync
        try:
            if type(sync) is StagedSync:
                (<StagedSync>sync).run()
            else:
                sync()
        except (ReplogError, OSError) as error:
            return error
        return None

    def end_commit(self, list group not None, error):
        """Answer the group, the third step. A request that has to read the log may wait for another commit."""
        self.end(group, error)

    cdef int end(self, list group, object error) except -1:
        if error is not None and self._failure is None:
            self._fail(error)
        self._group.settle()
        for waiting in group:
            if self._failure is None and type(waiting) is FastAdd:
                self.counts.by_status[STATUS_OK] += 1
                (<FastAdd>waiting).respond(waiting)
            else:
                self._end(waiting)
        return 0

    def _append_lacs(self):
        raise NotImplementedError

    def _fail(self, error):
        raise NotImplementedError

    def _end(self, waiting):
        """Answer a request that is no FastAdd, or whose commit failed."""
        raise NotImplementedError


cdef class CommitEnd:
    """The third step of a commit, of a driver that commits by itself."""

    cdef int end(self, FastAddHandler bookie, list group, object error) except -1:
        """Call `bookie.end_commit` with a group and its error; called as in `with_bookie`."""
        raise NotImplementedError


cdef class LocalBookieBase:
    """The part of LocalBookie that runs for every plain ADD, and for every commit of a driver.

    _bookie: the Bookie. _lock: guards it. _replies: (receiver, reply) of those to be called when no lock is held. _error,
    _pid: as of a Handle. The subclass is a Handle, has `_wake`, `_deliver` and `_later_fast`, and sets these attributes.
    """

    def __cinit__(self):
        self._error = NOT_OPEN

    def add_fast(self, FastAdd add not None, respond=None, /):
        """Try `Bookie.add_fast`; `respond` is for drivers that commit by themselves. Raises as `request`."""
        cdef int64_t lac = self.try_add(add, respond)
        return None if lac == DECLINED_LAC else lac

    cdef int64_t try_add(self, FastAdd add, object respond) except? -4:
        """Handle a plain ADD as `add_fast` does, with DECLINED_LAC in place of None."""
        cdef int64_t lac
        self.check()
        self._lock.take()
        try:
            lac = self._bookie.try_add(add, respond)
        finally:
            self._lock.give()
        if self._replies:  # of long polls that the LAC has ended
            self._deliver()
        return lac

    cdef int check(self) except -1:
        if self._error is not None or self._pid != process:
            self._check_open()  # raises ClosedError, or ForkedError in a child
        return 0

    def request_fast(self, FastAdd add not None, on_reply, /, *, bint commits_here=False):
        """Handle an ADD as `request` does, without its steps, and return the LAC of its OK; raises as `request`.

        LATER: `on_reply` will be called. None: nothing was done; call `request`. commits_here: this thread is about to
        call `commit_here`, or `wake`.
        """
        cdef int64_t lac
        self.check()
        self._lock.take()
        try:
            lac = self._bookie.try_add(add, partial(self._later_fast, on_reply))
            if lac == LATER_LAC and not commits_here:
                self._wake()
        finally:
            self._lock.give()
        if self._replies:
            self._deliver()
        return None if lac == DECLINED_LAC else lac

    def commit(self, CommitEnd end not None, /):
        """Commit, for a driver that commits by itself. Return whether a reply waited. Raises as `request`."""
        return self.commit_for(end)

    cdef bint commit_for(self, CommitEnd end) except -1:
        """Commit as `commit` does."""
        cdef list group
        self.check()
        self._lock.take()
        try:
            group = self._bookie.begin()
        finally:
            self._lock.give()
        if not group:
            return False
        error = self._sync()
        self._lock.take()
        try:
            end.end(self._bookie, group, error)
        finally:
            self._lock.give()
        if self._replies:
            self._deliver()
        return True

    def _sync(self):
        """Run the second step of a commit, the sync."""
        cdef int64_t began_us = self._clock.monotonic_us()
        error = self._bookie.sync_log()
        self._bookie.counts.sync_seconds.observe((<int64_t>self._clock.monotonic_us() - began_us) / 1e6)
        return error

    def _wake(self):
        raise NotImplementedError

    def _deliver(self):
        raise NotImplementedError

    def _later_fast(self, on_reply, answer, /):
        raise NotImplementedError
