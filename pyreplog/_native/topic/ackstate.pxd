# The acknowledgements of a subscription: all below a mark, and ranges of messages beyond it.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.topic.rows cimport Rows
from pyreplog._native.topic.varint cimport Out


cdef enum:
    ACKS_CONFLICT = -2        # impossible argument; other results: ROWS_OK, ROWS_NO_MEMORY


# A row: an entry that was delivered and is not wholly acknowledged.
ctypedef struct Entry:
    int64_t first             # offset of its first message
    int64_t end               # offset behind its last message
    int64_t size
    int64_t entries_before    # of the topic
    int64_t bytes_before


ctypedef struct Sum:
    int64_t messages
    int64_t entries
    int64_t size


# A row of `ranges`: start, end, number of entries in it (negated by `~`: changed), their bytes.
ctypedef struct Acks:
    Rows ranges
    Rows out                  # Entry
    Sum below                 # the mark: messages, entries and bytes of the topic before it
    Sum beyond                # totals of all ranges
    bint changed              # a range or the mark is to be written
    int64_t version           # raised by every change


# Set the mark, with nothing beyond it.
cdef int acks_set_mark(Acks *acks, int64_t offset, int64_t entries, int64_t size) noexcept nogil
# Remove all ranges and entries.
cdef void acks_forget(Acks *acks) noexcept nogil
# Note an entry. ACKS_CONFLICT: it overlaps `other`.
cdef int acks_note(Acks *acks, const Entry *entry, const int64_t **other) noexcept nogil
# Acknowledge [start, stop); unacknowledged messages of unknown entries are added to `unknown` instead.
cdef int acks_add(Acks *acks, int64_t start, int64_t stop, Rows *unknown) noexcept nogil
# Start of the range that contains `to`, or `to`.
cdef int64_t acks_start(const Acks *acks, int64_t to) noexcept nogil
# Move the mark to `start`, which is above it, in no range unless at its start, and in or next to `entry`.
cdef int acks_move(Acks *acks, const Entry *entry, int64_t start) noexcept nogil
# The lowest offset with so many unacknowledged messages below it.
cdef int64_t acks_behind(const Acks *acks, int64_t messages) noexcept nogil
# Write the mark and the changed ranges, within `bytes_max`; `changed` tells whether some are left.
cdef int acks_changes(Acks *acks, Out *out, int64_t bytes_max) noexcept nogil
# Mark everything as changed.
cdef void acks_begin_again(Acks *acks) noexcept nogil
# Apply what `acks_changes` wrote. ACKS_CONFLICT: `at` is where the bytes are malformed; those before it count.
cdef int acks_apply(Acks *acks, const uint8_t **at, const uint8_t *stop) noexcept nogil
