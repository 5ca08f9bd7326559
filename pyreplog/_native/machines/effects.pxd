# Effects that state machines return for every message.


cdef class Send:
    cdef readonly str bookie
    cdef readonly object request, about


cdef class Settle:
    cdef readonly object outcomes


cdef class Committed:
    cdef readonly object mark


cdef Send make_send(str bookie, object request, object about)
cdef Committed make_committed(object mark)
