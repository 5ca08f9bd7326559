# What state machines ask for with every message.


cdef class Send:
    cdef readonly str bookie
    cdef readonly object request, about


cdef class Settle:
    cdef readonly object outcomes


cdef Send make_send(str bookie, object request, object about)
