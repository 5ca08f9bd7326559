# Places in a log: pairs (position, entry). Functions with a parameter `mark` accept any such pair.
from libc.stdint cimport int64_t

from pyreplog._native.machines.named cimport item


# A LogPosition, for native code.
ctypedef struct Mark:
    int64_t position, entry


cdef object mark_at(int64_t position, int64_t entry)

# Return an AppendedOffsets: of `count` entries from `entry` on, behind which the log ends at position `end`.
cdef object appended_at(int64_t entry, int64_t count, int64_t end)


cdef inline int64_t position_of(object mark) except? -1:
    return item(mark, 0)


cdef inline int64_t entry_of(object mark) except? -1:
    return item(mark, 1)


cdef inline int read_mark(object mark, Mark *place) except -1:
    place.position, place.entry = position_of(mark), entry_of(mark)
    return 0


cdef inline object make_mark(const Mark *mark):
    return mark_at(mark.position, mark.entry)


cdef inline bint is_above(const Mark *mark, const Mark *other) noexcept:
    """Return whether a mark is greater than another one, in the order of tuples."""
    return mark.position > other.position or (mark.position == other.position and mark.entry > other.entry)
