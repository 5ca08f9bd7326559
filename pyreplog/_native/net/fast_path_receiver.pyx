"""Passes requests from the socket to a handler that answers at once, and its answers back, without other Python code.

Threads: everything runs under the GIL, in the thread that drives the reactor.
"""

import select

cimport cython

from pyreplog._native.net.frame cimport FrameBatch
from pyreplog._native.net.send_queue cimport FrameSendQueue
from pyreplog._native.net.socket_io cimport take_in

cdef int READ = select.EPOLLIN


@cython.final
cdef class FastPathReceiver:
    """The reactor's callback of a ServerConnection over a plain socket, whose handler is a FastPath.

    `FastPathReceiver(connection)`: a weak reference, so that the connection is not kept alive. A request that arrives
    alone goes to its `fast_path`. For everything else `handle_events(events, taken)` is called, with what was received,
    or None; and for an error, `handle_error(error)`.
    """

    cdef object connection

    def __cinit__(self, connection, /):
        self.connection = connection

    def __call__(self, int events, /):
        cdef object connection = self.connection()
        cdef FrameSendQueue send_queue
        cdef FrameBatch batch
        cdef Py_ssize_t count
        if connection is None:
            return
        send_queue = connection.send_queue
        if events != READ or send_queue.error is not None or connection.reasons:
            connection.handle_events(events)
            return
        try:
            batch = take_in(send_queue.stream, connection.parser, &count)
            if batch.count == 1 and batch.error is None and not send_queue.queued_bytes:
                answer = connection.fast_path(connection, batch)
                if answer is not None:
                    if answer and not send_queue.whole_leaves(answer):
                        connection.send(answer)
                    return
        except BaseException as error:
            connection.handle_error(error)
            return
        connection.handle_events(events, (count, batch))
