"""Effects of state machines that come with every message.

The others are in `pyreplog.ledger.protocol.effects` and `pyreplog.ha.protocol.effects`.
"""

cimport cython


@cython.final
@cython.freelist(64)
cdef class Send:
    """Send a request to a bookie. Report `replied(send, reply)` or `failed(send, error)`, once."""

    def __init__(self, str bookie not None, request, about=None):
        self.bookie, self.request, self.about = bookie, request, about

    def __repr__(self):
        return f"Send({self.bookie!r}, {self.request!r}, {self.about!r})"


cdef Send make_send(str bookie, object request, object about):
    cdef Send send = Send.__new__(Send)
    send.bookie, send.request, send.about = bookie, request, about
    return send


@cython.final
@cython.freelist(64)
cdef class Settle:
    """Settle futures with their outcomes. Carry it out last, and without a lock, for it runs callbacks."""

    def __init__(self, outcomes not None):
        self.outcomes = outcomes

    def __repr__(self):
        return f"Settle({self.outcomes!r})"


@cython.final
@cython.freelist(64)
cdef class Committed:
    """The commit point of a replica group moved to a mark: settle the appends that wait for it, show it to readers, and
    tell the replicas soon."""

    def __init__(self, mark not None):
        self.mark = mark

    def __repr__(self):
        return f"Committed({self.mark!r})"


cdef Committed make_committed(object mark):
    cdef Committed committed = Committed.__new__(Committed)
    committed.mark = mark
    return committed
