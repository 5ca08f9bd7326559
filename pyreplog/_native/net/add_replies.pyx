"""Passes plain OKs to ADDs from the frames of replies to the AckTracker, without Python code for each.

Other replies, errors, and acks that do not count any more go to the Python code, which can do the same with an OK.

Threads: everything runs under the GIL, which makes each call one step.
"""

import select

cimport cython
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.net.frame cimport FrameBatch, FrameParser, load_i64
from pyreplog._native.net.send_queue cimport FrameSendQueue
from pyreplog._native.net.socket_io cimport take_in
from pyreplog._native.quorum.ack_tracker cimport AckTracker, Part

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
    """The `on_reply` of an ADD; it gets a Reply or an error.

    `Answer(driver, send, ledger, part)`. driver: its `acked()` is called when the tracker has news, and its
    `answered(send, answer)` for each answer that is not an OK that counts.
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
        """Take a plain OK. Return False if it does not count any more."""
        if not self.part.acknowledge():
            return False
        if self.part.tracker.news():
            self.driver.acked()
        return True

    def tell(self):
        """Call the driver, if the tracker still has news."""
        if self.part.tracker.news():
            self.driver.acked()

    cdef bint is_ok(self, object reply) except -1:
        """Return whether a reply is OK, and names the ledger and the entries of the request."""
        return (len(reply) >= 4 and reply[0] == STATUS_OK and reply[1] == self.ledger
                and reply[2] == self.part.first and reply[3] == self.part.last)


cdef class AddQueue:
    """A queue of a ledger's ADDs to one bookie; to be subclassed.

    unanswered: number of requests without an answer. waits: whether an ADD waits; then `proceed()` is called after each
    answer. `answered(group, answer)` is called for each answer that is not a plain OK.
    """

    def begin(self, Py_ssize_t most, /):
        """Count one more request, unless `most` have no answer. Return whether it may be sent."""
        if self.unanswered >= most:
            return False
        self.unanswered += 1
        return True

    cdef AddGroup alone(self, Py_ssize_t most, tuple request, object on_reply):
        """Count a request that is sent alone, and return its AddGroup; None: it may not be sent now, or others wait."""
        cdef AddGroup group
        if self.waits or self.unanswered >= most:
            return None
        group = AddGroup.__new__(AddGroup, self, request[1], request[2], request[3], ((request, on_reply),))
        self.unanswered += 1
        return group

    def end(self):
        """Count an answer."""
        self.unanswered -= 1

    def proceed(self):
        raise NotImplementedError

    def answered(self, AddGroup group, answer, /):
        raise NotImplementedError


@cython.final
cdef class AddGroup:
    """The `on_reply` of a request that adds the entries [first, last], made of several ADDs.

    adds: (request, on_reply, ...) of each ADD, in order.
    """

    def __cinit__(self, AddQueue queue not None, int64_t ledger, int64_t first, int64_t last, tuple adds not None, /):
        self.queue, self.ledger, self.first, self.last, self.adds = queue, ledger, first, last, adds

    def __call__(self, answer, /):
        self.queue.answered(self, answer)

    cdef bint settle(self, const uint8_t *reply, int64_t size) except -1:
        """Note a reply, and return True, if it is a plain OK that counts for all ADDs."""
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
        self.queue.unanswered -= 1
        return True

    cdef int tell(self, list queues, list tellers) except -1:
        """Add the calls that follow: `proceed` of the queue to `queues`, `tell` of trackers with news to `tellers`."""
        cdef tuple add
        cdef AckTracker told = None
        if self.queue.waits:
            queues.append(self.queue.proceed)
        for add in self.adds:
            if (<Answer>add[1]).part.tracker is not told and (<Answer>add[1]).part.tracker.news():
                told = (<Answer>add[1]).part.tracker
                tellers.append((<Answer>add[1]).tell)
        return 0


def settle(FrameBatch batch not None, dict waiting not None, /):
    """Settle the replies that are plain OKs to an AddGroup.

    waiting: (on_reply, ...) by correlation id; requests that are settled are removed from it.

    Returns ([(correlation id, body) of all other replies], [calls to make now], [calls to make soon]). The first calls
    send ADDs that waited. The second ones tell drivers that there is news, unless they were told meanwhile, so that
    answers of several bookies that arrive together are one step.
    """
    cdef list others = [], queues = [], tellers = []
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
            (<AddGroup>on_reply).tell(queues, tellers)
        else:
            others.append((number, batch.body(i)))
    return others, queues, tellers


@cython.final
cdef class Replies:
    """The reactor's callback of a connection that carries requests. It does not keep the connection alive.

    `Replies(connection, behind)`. connection: a weak reference to a `net.Connection`; its `waiting` is that of `settle`.
    behind: takes a list of calls to make soon. A reply that arrives alone, and is a plain OK to an AddGroup whose queue
    is empty, is settled here. For everything else `connection.handle_events(events, taken)` is called, with what was
    received, or None.
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
        send_queue = connection.send_queue
        if events != READ or send_queue.error is not None:
            connection.handle_events(events)
            return
        try:
            batch = take_in(send_queue.stream, connection.parser, &count)
            if not self.settle(batch, connection.waiting):
                connection.handle_events(events, (count, batch))
        except BlockingIOError:
            return
        except OSError as error:
            connection.handle_error(error)
        except BaseException:   # no memory, Ctrl-C: the frames may not have been told
            connection.close(DisconnectedError("receiving was interrupted"))
            raise

    cdef bint settle(self, FrameBatch batch, dict waiting) except -1:
        """Settle a reply that arrived alone. Return False if nothing was done."""
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
        if group.queue.waits or not group.settle(batch.data + batch.column(2)[0], batch.column(1)[0]):
            return False
        del waiting[number]
        tellers = []
        group.tell(tellers, tellers)    # no queue: nothing waits
        if tellers:
            self.behind(tellers)
        return True
