# What a subscription has acknowledged: all below a mark, and ranges of messages beyond it.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.topic.rows cimport Rows
from pyreplog._native.topic.varint cimport Out


cdef enum:
    ACKS_CONFLICT = -2        # what is given cannot be; ROWS_OK and ROWS_NO_MEMORY are the others


# An entry that went out and is not wholly acknowledged: a row.
ctypedef struct Entry:
    int64_t first             # offset of its first message
    int64_t end               # behind its last
    int64_t size
    int64_t entries_before    # of the topic
    int64_t bytes_before


ctypedef struct Sum:
    int64_t messages
    int64_t entries
    int64_t size


# A row of `ranges`: start, end, entries that lie in it (`~` of it: changed), their bytes.
ctypedef struct Acks:
    Rows ranges
    Rows out                  # Entry
    Sum below                 # the mark: messages, entries and bytes of the topic before it
    Sum beyond                # of all ranges
    bint changed              # there is something to be written
    int64_t version           # raised by every change


# Another mark, and nothing beyond it.
cdef int acks_set_mark(Acks *acks, int64_t offset, int64_t entries, int64_t size) noexcept nogil
# Nothing beyond the mark.
cdef void acks_forget(Acks *acks) noexcept nogil
# ACKS_CONFLICT: it overlaps `other`.
cdef int acks_note(Acks *acks, const Entry *entry, const int64_t **other) noexcept nogil
# [start, stop) is acknowledged, but what is of no known entry and not acknowledged yet: that is added to `unknown`.
cdef int acks_add(Acks *acks, int64_t start, int64_t stop, Rows *unknown) noexcept nogil
# Where the range that holds `to` begins; `to`: none does.
cdef int64_t acks_start(const Acks *acks, int64_t to) noexcept nogil
# All below `start`, which is above the mark and in no range but at the beginning of one, and in or next to `entry`.
cdef int acks_move(Acks *acks, const Entry *entry, int64_t start) noexcept nogil
# The lowest offset that so many messages that are not acknowledged lie below.
cdef int64_t acks_behind(const Acks *acks, int64_t messages) noexcept nogil
# The mark and what changed since the last time; ranges within `bytes_max`: `changed` says whether there are more.
cdef int acks_changes(Acks *acks, Out *out, int64_t bytes_max) noexcept nogil
# All of it counts as changed.
cdef void acks_begin_again(Acks *acks) noexcept nogil
# What `acks_changes` wrote. ACKS_CONFLICT: `at` is where the bytes make no sense; what is before that counts.
cdef int acks_apply(Acks *acks, const uint8_t **at, const uint8_t *stop) noexcept nogil
