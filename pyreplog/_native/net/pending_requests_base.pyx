"""Sends requests directly: numbers them, notes them and hands them to their sockets in one step.

If that is impossible, for there is no connection yet, bytes wait, or another thread is sending, the Python code sends
them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from pyreplog._native.net.add_replies cimport AddGroup, AddQueue
from pyreplog._native.net.frame cimport store_i64
from pyreplog._native.net.send_queue cimport FrameSendQueue
from pyreplog._native.net.request_head cimport (
    AT_FIRST, AT_FLAGS, AT_KEY, AT_LAST, AT_LEDGER, AT_RUN, AT_STEP, KEY_BYTES, KIND_ADD, REQUEST_BYTES,
)
from pyreplog._native.system.mutex cimport Mutex

from pyreplog.errors import InvalidArgumentError

cdef enum:      # items of a Request
    LEDGER = 1
    FIRST = 2
    LAST = 3
    KEY = 4
    FLAGS = 5
    RECORDS = 9


cdef class PendingRequestsBase:
    """Requests of a channel that wait for their replies. To be subclassed.

    `PendingRequestsBase(lock)`. lock: of all this, and of the order in which requests leave; `ask` and `send_alone`
    take it, the others are called under it. waiting: (on_reply, deadline) by correlation id. check_us: when deadlines
    are checked next; -1: never.
    """

    def __init__(self, Mutex lock not None, /):
        self.lock, self.waiting, self.check_us = lock, {}, -1

    def number(self):
        """Return the next correlation id."""
        self.last_id += 1
        return self.last_id

    def add(self, int64_t correlation_id, on_reply, int64_t deadline_us, /):
        """Add a request. Return whether deadlines have to be checked earlier than planned, at `deadline_us`."""
        self.waiting[correlation_id] = on_reply, deadline_us
        if 0 <= self.check_us <= deadline_us:
            return False
        self.check_us = deadline_us
        return True

    def begin(self, FrameSendQueue send_queue not None, Py_ssize_t size_max, /):
        """Let requests of at most `size_max` bytes leave directly by a send queue."""
        self.send_queue, self.size_max = send_queue, size_max

    def end(self):
        """Let no more requests leave directly."""
        self.send_queue = None

    def ask(self, tuple body not None, Py_ssize_t size, on_reply, int64_t deadline_us, /):
        """Send a request directly, and return its correlation id; -1: that is impossible, and nothing was done."""
        return self.leave(body, size, on_reply, deadline_us)

    cdef int64_t leave(self, tuple body, Py_ssize_t size, object on_reply, int64_t deadline_us) except -2:
        cdef FrameSendQueue send_queue
        cdef int64_t number
        if self.send_queue is None or not self.lock.try_take():
            return -1
        try:
            send_queue = self.send_queue
            if send_queue is None or size > self.size_max or not 0 <= self.check_us <= deadline_us:
                return -1
            number = self.last_id = self.last_id + 1
            self.waiting[number] = on_reply, deadline_us
            # an error, Ctrl-C: some of it may have left, under this number
            if not send_queue.leaves(number, body, size):
                del self.waiting[number]
                self.last_id -= 1
                return -1
            return number
        finally:
            self.lock.give()


cdef tuple items_of(object named):
    """Return a named tuple as a tuple: native code reads the items of any other type by name."""
    if not isinstance(named, tuple):
        raise TypeError(f"expected a Request, found {type(named).__name__}")
    return <tuple>named


cdef bytes head_of(tuple add):
    """Encode the head of an ADD, as `encode_request` does."""
    cdef bytes key = add[KEY], head = PyBytes_FromStringAndSize(NULL, REQUEST_BYTES)
    cdef char *p = PyBytes_AS_STRING(head)
    if len(key) != KEY_BYTES:
        raise InvalidArgumentError(f"key: expected {KEY_BYTES} bytes, found {len(key)}")
    memset(p, 0, REQUEST_BYTES)
    p[0], p[AT_FLAGS], p[AT_RUN], p[AT_STEP] = KIND_ADD, <char>add[FLAGS], 1, 1
    store_i64(p + AT_LEDGER, add[LEDGER])
    store_i64(p + AT_FIRST, add[FIRST])
    store_i64(p + AT_LAST, add[LAST])
    memcpy(p + AT_KEY, PyBytes_AS_STRING(key), KEY_BYTES)
    return head


def send_alone(list adds not None, Py_ssize_t first, dict queues not None, dict channels not None, Py_ssize_t most,
               int64_t deadline_us, /):
    """Send ADDs directly, each alone, from number `first` on. Return the number of the first one that was not sent.

    adds: (bookie, request, on_reply) of each; equal requests that follow each other are encoded once. queues: AddQueues
    by bookie and ledger, with at most `most` requests without an answer each. channels: by bookie; their `requests` are
    PendingRequestsBases.
    """
    return leave_alone(adds, first, queues, channels, most, deadline_us)


cdef Py_ssize_t leave_alone(list adds, Py_ssize_t first, dict queues, dict channels, Py_ssize_t most,
                            int64_t deadline_us) except -1:
    cdef Py_ssize_t i, size = 0
    cdef tuple body = None
    cdef object bookie, on_reply, queue, channel
    cdef tuple request, asked = None
    cdef AddGroup group
    for i in range(first, len(adds)):
        bookie, named, on_reply = adds[i]
        request = items_of(named)
        if request is not asked:
            asked, body = request, (head_of(request), request[RECORDS])
            size = REQUEST_BYTES + memoryview(body[1]).nbytes
        queue, channel = queues.get((bookie, request[LEDGER])), channels.get(bookie)
        if queue is None or channel is None:
            return i
        group = (<AddQueue?>queue).alone(most, request, on_reply)
        if group is None:
            return i
        if (<PendingRequestsBase?>channel.requests).leave(body, size, group, deadline_us) < 0:
            group.queue.unanswered -= 1
            return i
    return len(adds)
