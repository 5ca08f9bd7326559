# The acknowledgements of a subscription: all messages below a mark, and ranges of messages beyond it.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyreplog._native.topic.rows cimport Rows
from pyreplog._native.topic.varint cimport Out


cdef enum:
    ACKS_CONFLICT = -2        # an argument is impossible; other results are ROWS_OK and ROWS_NO_MEMORY


# A row of `out`: an entry that was delivered, with messages that are not acknowledged.
ctypedef struct Entry:
    int64_t first             # offset of its first message
    int64_t end               # offset behind its last message
    int64_t size
    int64_t entries_before    # entries and bytes of the topic before this entry
    int64_t bytes_before


ctypedef struct Sum:
    int64_t messages
    int64_t entries
    int64_t size


# A row of `ranges` has four words: start, end, number of entries (`~` of it if the range changed), and their bytes.
ctypedef struct Acks:
    Rows ranges
    Rows out                  # of type Entry
    Sum below                 # the mark: messages, entries and bytes of the topic before it
    Sum beyond                # totals of all ranges
    bint changed              # a range or the mark has to be written
    int64_t version           # every change increments it
    Rows noted                # of width 2: ranges that were acknowledged since they were taken
    bint notes                # they are noted; if not, everything counts as acknowledged since


# Set the mark, and remove all ranges beyond it.
cdef int acks_set_mark(Acks *acks, int64_t offset, int64_t entries, int64_t size) noexcept nogil
# Remove all ranges and entries.
cdef void acks_forget(Acks *acks) noexcept nogil
# Note an entry. ACKS_CONFLICT: the entry overlaps `other`.
cdef int acks_note(Acks *acks, const Entry *entry, const int64_t **other) noexcept nogil
# Acknowledge [start, stop). Messages of unknown entries that are not acknowledged are added to `unknown` instead.
cdef int acks_add(Acks *acks, int64_t start, int64_t stop, Rows *unknown) noexcept nogil
# Note what is acknowledged from now on, in place of what was noted.
cdef void acks_note_anew(Acks *acks) noexcept nogil
# Note nothing any more.
cdef void acks_note_nothing(Acks *acks) noexcept nogil
# Return the start of the range that contains `to`; if there is none, `to`.
cdef int64_t acks_start(const Acks *acks, int64_t to) noexcept nogil
# Move the mark up to `start`, which lies in `entry` or at its end, and in no range except at its start.
cdef int acks_move(Acks *acks, const Entry *entry, int64_t start) noexcept nogil
# Return the lowest offset with so many unacknowledged messages below it.
cdef int64_t acks_behind(const Acks *acks, int64_t messages) noexcept nogil
# Encode the mark and the changed ranges, in at most `bytes_max` bytes. `changed` stays set if some did not fit.
cdef int acks_changes(Acks *acks, Out *out, int64_t bytes_max) noexcept nogil
# Mark everything as changed.
cdef void acks_begin_again(Acks *acks) noexcept nogil
# Apply bytes that `acks_changes` encoded. ACKS_CONFLICT: the bytes are malformed at `at`; those before it were applied.
cdef int acks_apply(Acks *acks, const uint8_t **at, const uint8_t *stop) noexcept nogil
