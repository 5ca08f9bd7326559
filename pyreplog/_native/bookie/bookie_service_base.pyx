"""The part of BookieService that sends replies: those of a commit leave together, a plain OK without calls of Python code.

Threads: everything runs under the GIL.
"""

from libc.stdint cimport int64_t

from pyreplog._native.net.send_queue cimport FrameSendQueue

from pyreplog._native.bookie.fast_add import FastAdd


cdef class BookieServiceBase:
    """`BookieServiceBase(reactor, bookie)`: base of BookieService, which makes frames of Replies (`_frame`).

    bookie: a LocalBookie; the reactor's driver commits for all connections.
    """

    cdef readonly object _reactor, _bookie
    cdef dict answers               # by connection, while a commit ends; else None
    cdef bint committing

    def __init__(self, reactor, bookie, /):
        self._reactor, self._bookie = reactor, bookie

    def _commit_soon(self):
        """Schedule a commit behind the other connections of this turn."""
        if not self.committing:
            self.committing = True
            self._reactor.call_behind((self._commit,))

    def _commit(self):
        cdef dict answers
        self.committing = False
        answers = self._bookie.commit(self._end_commit)
        if answers:
            for connection, (numbers, frames) in answers.items():
                if len(frames) > 1 or not self.leaves(connection, numbers[0], frames[0]):
                    connection.reply_frames(numbers, frames)

    def _end_commit(self, bookie, group, error, /):
        """End a commit; return ([numbers of requests], [parts of their reply frames]) by connection."""
        cdef dict answers = {}
        self.answers = answers
        try:
            bookie.end_commit(group, error)
        finally:
            self.answers = None
        if bookie.waits:  # reads of entries that were appended during the sync
            self._commit_soon()
        return answers

    def _answer(self, connection, int64_t number, reply, /):
        """Send a reply, or keep it for the end of the commit. Called by the thread that has the bookie."""
        cdef tuple gathered
        if type(reply) is FastAdd:
            frame = (reply.ok(reply.confirmed),)
        else:
            frame = self._frame(connection, number, reply)
        if self.answers is None:
            connection.reply_frames((number,), frame)
            return
        gathered = self.answers.get(connection)
        if gathered is None:
            gathered = self.answers[connection] = ([], [])
        (<list>gathered[0]).append(number)
        (<list>gathered[1]).extend(frame)

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
