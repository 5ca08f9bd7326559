# Places in a log: pairs (position, entry). Functions with a parameter `mark` accept any such pair.
from libc.stdint cimport int64_t

from pyreplog._native.machines.named cimport item


cdef object mark_at(int64_t position, int64_t entry)

# Return an AppendedOffsets: of `count` entries from `entry` on, behind which the log ends at position `end`.
cdef object appended_at(int64_t entry, int64_t count, int64_t end)


cdef inline int64_t position_of(object mark) except? -1:
    return item(mark, 0)


cdef inline int64_t entry_of(object mark) except? -1:
    return item(mark, 1)
