"""The part of BookieService that runs for plain ADDs, from the batch of frames to the OKs, and for the answers of commits:
those of one commit leave together, a plain OK without calls of Python code.

Threads: everything runs under the GIL.
"""

cimport cython
from libc.stdint cimport int64_t

from pyreplog._native.bookie.fast_add cimport (
    DECLINED_LAC, LATER_LAC, CommitEnd, FastAdd, FastAddHandler, LocalBookieBase, parse_add, parse_alone,
)
from pyreplog._native.net.frame cimport FrameBatch
from pyreplog._native.net.send_queue cimport FrameSendQueue


cdef class BookieServiceBase


@cython.final
cdef class AddResponder:
    """The `respond` of a FastAdd that arrived over a connection."""

    cdef BookieServiceBase service
    cdef object connection
    cdef int64_t number

    def __call__(self, reply, /):
        self.service.answer(self.connection, self.number, reply)


cdef class BookieServiceBase(CommitEnd):
    """`BookieServiceBase(reactor, bookie)`: base of BookieService, which makes frames of Replies (`_frame`) and handles
    the requests that are no plain ADDs (`_handle_other`).

    bookie: a LocalBookie; the reactor's driver commits for all connections.
    """

    cdef readonly object _reactor
    cdef readonly LocalBookieBase _bookie
    cdef dict answers               # while a commit ends: ([numbers of requests], [parts of their reply frames]) by
                                    # connection; else None
    cdef dict ended                 # the same until they have left
    cdef bint committing

    def __init__(self, reactor, LocalBookieBase bookie not None, /):
        self._reactor, self._bookie = reactor, bookie

    # ---- requests ----

    def fast_path(self, connection, FrameBatch batch not None, /):
        """Handle a plain ADD that arrived alone, see `FastPath`; it is answered in this turn of the reactor."""
        cdef dict requests = connection.requests
        cdef FastAdd add = parse_alone(batch, requests)
        cdef int64_t lac
        if add is None:
            return None
        lac = self._bookie.try_add(add, self.responder(connection, add))
        if lac == DECLINED_LAC:
            return None
        if lac != LATER_LAC:
            return add.ok_frame(lac)
        requests[add.number] = 0  # in flight without a check of limits: it is answered in this turn
        self._commit_soon()
        return b""

    def _handle(self, FastAddHandler bookie not None, connection, FrameBatch batch not None, /):
        """Handle the requests of a batch in order: plain ADDs here, all others by `_handle_other`.

        OKs that no commit has to come before leave together, but none behind the reply to a later request.
        """
        cdef list numbers = [], frames = []
        cdef FastAdd add
        cdef int64_t lac
        cdef Py_ssize_t i
        try:
            for i in range(batch.count):
                add = parse_add(batch, i)
                lac = DECLINED_LAC
                if add is not None:
                    lac = bookie.try_add(add, self.responder(connection, add))
                if lac == LATER_LAC:
                    continue
                if lac == DECLINED_LAC:
                    self.send_oks(connection, numbers, frames)
                    self._handle_other(bookie, connection, batch.column(0)[i], batch.body(i))
                else:
                    numbers.append(add.number)
                    frames.append(add.ok_frame(lac))
        finally:
            if bookie.waits:
                self._commit_soon()
            self.send_oks(connection, numbers, frames)

    def _handle_other(self, bookie, connection, number, body, /):
        """Handle a request that is no plain ADD, or one that something speaks against."""
        raise NotImplementedError

    cdef AddResponder responder(self, object connection, FastAdd add):
        cdef AddResponder responder = AddResponder.__new__(AddResponder)
        responder.service, responder.connection, responder.number = self, connection, add.number
        return responder

    cdef int send_oks(self, object connection, list numbers, list frames) except -1:
        """Send the OKs that were collected, and empty the lists."""
        cdef tuple answered = tuple(numbers)
        if not answered:
            return 0
        answer = b"".join(frames)
        numbers.clear()
        frames.clear()
        connection.reply_frames(answered, (answer,))
        return 0

    # ---- commits and answers ----

    def _commit_soon(self):
        """Schedule a commit behind the other connections of this turn."""
        if not self.committing:
            self.committing = True
            self._reactor.call_behind((self._commit,))

    def _commit(self):
        cdef dict answers
        cdef list numbers, frames
        self.committing = False
        if not self._bookie.commit_for(self):
            return
        answers, self.ended = self.ended, None
        for connection, (numbers, frames) in answers.items():
            if len(frames) > 1 or not self.leaves(connection, numbers[0], frames[0]):
                connection.reply_frames(numbers, frames)

    cdef int end(self, FastAddHandler bookie, list group, object error) except -1:
        self.answers = self.ended = {}
        try:
            bookie.end(group, error)
        finally:
            self.answers = None
        if bookie.waits:  # reads of entries that were appended during the sync
            self._commit_soon()
        return 0

    def _answer(self, connection, int64_t number, reply, /):
        """Send a reply, or keep it for the end of the commit. Called by the thread that has the bookie."""
        self.answer(connection, number, reply)

    cdef int answer(self, object connection, int64_t number, object reply) except -1:
        cdef tuple gathered
        if type(reply) is FastAdd:
            frame = ((<FastAdd>reply).ok_frame((<FastAdd>reply).confirmed),)
        else:
            frame = self._frame(connection, number, reply)
        if self.answers is None:
            connection.reply_frames((number,), frame)
            return 0
        gathered = self.answers.get(connection)
        if gathered is None:
            gathered = self.answers[connection] = ([], [])
        (<list>gathered[0]).append(number)
        (<list>gathered[1]).extend(frame)
        return 0

    def _frame(self, connection, number, reply, /):
        """Return the parts of a reply's frame."""
        raise NotImplementedError

    cdef bint leaves(self, object connection, object number, object frame) except -1:
        """Send a reply at once, if its request holds no bytes of the limits; return whether it has left."""
        cdef dict requests = connection.requests
        cdef FrameSendQueue outbox = connection.send_queue
        if requests.get(number) != 0 or type(frame) is not bytes or not outbox.whole_leaves(frame):
            return False
        requests.pop(number, None)
        return True
