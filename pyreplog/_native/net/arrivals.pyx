"""Requests that are answered at once: from the socket to their handler, and its answer back, without Python code in between.

Threads: everything runs under the GIL, in the thread that drives the reactor.
"""

import select

cimport cython

from pyreplog._native.net.frame cimport FrameBatch
from pyreplog._native.net.outbox cimport FrameOutbox
from pyreplog._native.net.pump cimport take_in

cdef int READ = select.EPOLLIN


@cython.final
cdef class Arrivals:
    """The reactor's callback of a ServerConnection over a plain socket, whose handler is a Quick. It does not keep that
    alive.

    `Arrivals(connection)`: a weak reference. A request that comes alone is given to `_at_once`; all else is for
    `_ready(events, taken)`, with what was taken in, or None, and what goes wrong for `_failed(error)`.
    """

    cdef object connection

    def __cinit__(self, connection, /):
        self.connection = connection

    def __call__(self, int events, /):
        cdef object connection = self.connection()
        cdef FrameOutbox outbox
        cdef FrameBatch batch
        cdef Py_ssize_t count
        if connection is None:
            return
        outbox = connection._outbox
        if events != READ or outbox.error is not None or connection._reasons:
            connection._ready(events)
            return
        try:
            batch = take_in(outbox.stream, connection._parser, &count)
            if batch.count == 1 and batch.error is None and not outbox.queued_bytes:
                answer = connection._at_once(connection, batch)
                if answer is not None:
                    if answer and not outbox.whole_leaves(answer):
                        connection.send(answer)
                    return
        except BaseException as error:
            connection._failed(error)
            return
        connection._ready(events, (count, batch))
