# Places in a log: pairs (position, entry). Functions with a parameter `mark` accept any such pair.
from libc.stdint cimport int64_t

from pyreplog._native.machines.named cimport item


cdef object mark_at(int64_t position, int64_t entry)


cdef inline int64_t position_of(object mark) except? -1:
    return item(mark, 0)


cdef inline int64_t entry_of(object mark) except? -1:
    return item(mark, 1)
