"""Plain OKs to ADDs: from the frame of the reply into the AckTracker, without Python code for each.

All the rest - other replies, errors, acks that do not count any more - goes to the Python code that would else get all:
it does the same with an OK.

Threads: everything runs under the GIL, which makes each call one step.
"""

import select

cimport cython
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.net.frame cimport FrameBatch, FrameParser, load_i64
from pyreplog._native.net.send_queue cimport FrameSendQueue
from pyreplog._native.net.socket_io cimport take_in
from pyreplog._native.quorum.acktracker cimport AckTracker, Part

from pyreplog.errors import DisconnectedError

cdef enum:      # FORMAT.md, "Bookie protocol": a reply's head
    REPLY_BYTES = 40
    AT_LEDGER = 8
    AT_FIRST = 16
    AT_LAST = 24
    STATUS_OK = 0

cdef int READ = select.EPOLLIN


@cython.final
cdef class Answer:
    """Whom to tell what became of an ADD: `on_reply` of a request, for a Reply or an error.

    `Answer(driver, send, ledger, part)`. driver: its `acked()` is called when the tracker has news, and
    `answered(send, answer)` for all but an OK that counts.
    """

    def __cinit__(self, driver, send, int64_t ledger, Part part not None, /):
        self.driver, self.send, self.ledger, self.part = driver, send, ledger, part

    def __call__(self, answer, /):
        if isinstance(answer, tuple) and self.is_ok(answer) and self.part.acknowledge():
            if self.part.tracker.news():
                self.driver.acked()
        else:
            self.driver.answered(self.send, answer)

    def stored(self):
        """A plain OK, without a Reply. False: it does not count any more."""
        if not self.part.acknowledge():
            return False
        if self.part.tracker.news():
            self.driver.acked()
        return True

    def tell(self):
        """Have the driver look, if nobody has done so since."""
        if self.part.tracker.news():
            self.driver.acked()

    cdef bint is_ok(self, object reply) except -1:
        """Status, ledger, first, last."""
        return (len(reply) >= 4 and reply[0] == STATUS_OK and reply[1] == self.ledger
                and reply[2] == self.part.first and reply[3] == self.part.last)


cdef class AddQueue:
    """The way of a ledger's ADDs to a bookie: how many requests are `unanswered`, and whether something `waits`: then
    `proceed()` is called after each answer.

    To be subclassed. `answered(group, answer)` is called for all answers but plain OKs.
    """

    def begin(self, Py_ssize_t most, /):
        """One more is on its way, unless `most` are: whether it may be."""
        if self.unanswered >= most:
            return False
        self.unanswered += 1
        return True

    cdef AddGroup alone(self, Py_ssize_t most, tuple request, object on_reply):
        """`begin`, of a request that goes alone: its AddGroup; None: it may not go now, or something waits before
        it."""
        cdef AddGroup group
        if self.waits or self.unanswered >= most:
            return None
        group = AddGroup.__new__(AddGroup, self, request[1], request[2], request[3], ((request, on_reply),))
        self.unanswered += 1
        return group

    def end(self):
        """One less is."""
        self.unanswered -= 1

    def proceed(self):
        raise NotImplementedError

    def answered(self, AddGroup group, answer, /):
        raise NotImplementedError


@cython.final
cdef class AddGroup:
    """ADDs that leave as one request of entries [first, last]: its `on_reply`. adds: (request, on_reply, ...) of each,
    in their order."""

    def __cinit__(self, AddQueue lane not None, int64_t ledger, int64_t first, int64_t last, tuple adds not None, /):
        self.lane, self.ledger, self.first, self.last, self.adds = lane, ledger, first, last, adds

    def __call__(self, answer, /):
        self.lane.answered(self, answer)

    cdef bint settle(self, const uint8_t *reply, int64_t size) except -1:
        """Whether it is a plain OK that counts; then all is noted."""
        if (size != REPLY_BYTES or reply[0] != STATUS_OK or load_i64(reply + AT_LEDGER) != self.ledger
                or load_i64(reply + AT_FIRST) != self.first or load_i64(reply + AT_LAST) != self.last):
            return False
        cdef tuple add
        for add in self.adds:
            if type(add[1]) is not Answer or not (<Answer>add[1]).part.counts():
                return False
        for add in self.adds:
            if not (<Answer>add[1]).part.acknowledge():
                return False
        self.lane.unanswered -= 1
        return True

    cdef int tell(self, list lanes, list tellers) except -1:
        """What is to be called now that it is settled: who has more to send; and who has news."""
        cdef tuple add
        cdef AckTracker told = None
        if self.lane.waits:
            lanes.append(self.lane.proceed)
        for add in self.adds:
            if (<Answer>add[1]).part.tracker is not told and (<Answer>add[1]).part.tracker.news():
                told = (<Answer>add[1]).part.tracker
                tellers.append((<Answer>add[1]).tell)
        return 0


def settle(FrameBatch batch not None, dict waiting not None, /):
    """Take what is a plain OK to an AddGroup out of replies: ([(correlation id, body) of all others], [what to call
    now], [what to call soon]).

    The former send what waited. The latter tell drivers that there is news, and do nothing if that was told meanwhile:
    answers of several bookies that come together are one step. waiting: correlation id -> (on_reply, ...); those that
    are settled leave it.
    """
    cdef list others = [], lanes = [], tellers = []
    cdef const int64_t *offsets = batch.column(0)
    cdef const int64_t *sizes = batch.column(1)
    cdef const int64_t *starts = batch.column(2)
    cdef Py_ssize_t i
    cdef object number, on_reply
    cdef tuple entry
    for i in range(batch.count):
        if not sizes[i]:        # a heartbeat
            continue
        number = offsets[i]
        entry = waiting.get(number)
        on_reply = entry[0] if entry is not None else None
        if type(on_reply) is AddGroup and (<AddGroup>on_reply).settle(batch.data + starts[i], sizes[i]):
            del waiting[number]
            (<AddGroup>on_reply).tell(lanes, tellers)
        else:
            others.append((number, batch.body(i)))
    return others, lanes, tellers


@cython.final
cdef class Replies:
    """The reactor's callback of a connection that requests leave on. It keeps alive neither that nor who waits for them.

    `Replies(connection, behind)`. connection: a weak reference; `_waiting` of it is as of `settle`. behind: takes a list
    of what is to be called soon. A reply that comes alone, and is a plain OK to an AddGroup behind which nothing waits,
    is taken in and settled here; all else is for `connection._ready(events, taken)`, with what was taken in, or None.
    """

    cdef object connection, behind

    def __cinit__(self, connection, behind, /):
        self.connection, self.behind = connection, behind

    def __call__(self, int events, /):
        cdef object connection = self.connection()
        cdef FrameSendQueue send_queue
        cdef FrameBatch batch
        cdef Py_ssize_t count
        if connection is None:
            return
        send_queue = connection._send_queue
        if events != READ or send_queue.error is not None:
            connection._ready(events)
            return
        try:
            batch = take_in(send_queue.stream, connection._parser, &count)
            if not self.settle(batch, connection._waiting):
                connection._ready(events, (count, batch))
        except BlockingIOError:
            return
        except OSError as error:
            connection._lost(error)
        except BaseException:   # no memory, Ctrl-C: the frames may not have been told
            connection.close(DisconnectedError("receiving was interrupted"))
            raise

    cdef bint settle(self, FrameBatch batch, dict waiting) except -1:
        """False: nothing was done."""
        cdef list tellers
        cdef object number
        cdef tuple entry
        cdef AddGroup group
        if batch.count != 1 or batch.error is not None:
            return False
        number = batch.column(0)[0]
        entry = waiting.get(number)
        if entry is None or type(entry[0]) is not AddGroup:
            return False
        group = entry[0]
        if group.lane.waits or not group.settle(batch.data + batch.column(2)[0], batch.column(1)[0]):
            return False
        del waiting[number]
        tellers = []
        group.tell(tellers, tellers)    # no lane: nothing waits
        if tellers:
            self.behind(tellers)
        return True
