"""The acknowledgements of a subscription: everything below a mark, and ranges of messages beyond it, with exact counts.

A range takes 32 bytes, a known entry 40. FORMAT.md, "Ack set", has the bytes. Threads: everything runs under the GIL,
which makes each call one step.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from pyreplog._native.topic.ack_state cimport (
    ACKS_CONFLICT,
    Acks,
    Entry,
    acks_add,
    acks_apply,
    acks_begin_again,
    acks_behind,
    acks_changes,
    acks_forget,
    acks_move,
    acks_note,
    acks_note_anew,
    acks_note_nothing,
    acks_set_mark,
    acks_start,
)
from pyreplog._native.topic.message_columns cimport bytes_before, entries_before
from pyreplog._native.topic.message_entry cimport MessageEntry, MessageTable
from pyreplog._native.topic.messages cimport MessageBatch
from pyreplog._native.topic.ranges cimport (
    OFFSET_MAX,
    Known,
    check_range,
    int64s,
    ranges_between,
    ranges_known,
    ranges_mask,
    ranges_missing,
)
from pyreplog._native.topic.rows cimport ROWS_NO_MEMORY, ROWS_OK, Rows, Spot, rows_before, rows_bytes, rows_clear, rows_until
from pyreplog._native.topic.varint cimport Out
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, OutOfRangeError

cdef enum:
    CHANGES_BYTES_MIN = 128

cdef int64_t ENTRY_BYTES_MAX = <int64_t>1 << 40   # far above that of a segment; sums of entries stay below 2**62


cdef int checked(int status) except -1:
    if status == ROWS_NO_MEMORY:
        raise MemoryError
    return status


@cython.final
cdef class AckSet:
    """The acknowledgements of a subscription; at first everything below `mark`, a TopicPosition, and nothing beyond.

    An entry counts once its last message is acknowledged.

    Attributes:
        acked_messages: messages acknowledged beyond the mark.
        acked_entries: entries acknowledged beyond the mark.
        acked_bytes: bytes of these entries.
        ranges: number of ranges beyond the mark.
        entries_out: entries that are known and not wholly acknowledged.
        has_changes: `changes()` would return something new.
        nbytes: memory of the ranges and entries, and of what `take_acked` is to return.
    """

    cdef Acks acks

    def __cinit__(self, mark):
        self.acks.ranges.width, self.acks.out.width, self.acks.noted.width = 4, 5, 2
        self.set_mark(mark)

    def __dealloc__(self):
        acks_forget(&self.acks)

    @property
    def mark(self):
        """(offset, entries, bytes): everything below the offset is acknowledged, the message at it is not.

        Entries and bytes are those wholly below the offset.
        """
        return self.acks.below.messages, self.acks.below.entries, self.acks.below.size

    @property
    def mark_offset(self):
        return self.acks.below.messages

    @property
    def acked_messages(self):
        return self.acks.beyond.messages

    @property
    def acked_entries(self):
        return self.acks.beyond.entries

    @property
    def acked_bytes(self):
        return self.acks.beyond.size

    @property
    def ranges(self):
        return self.acks.ranges.count

    @property
    def entries_out(self):
        return self.acks.out.count

    @property
    def has_changes(self):
        return self.acks.changed

    @property
    def version(self):
        """A number that every change of the acknowledgements raises."""
        return self.acks.version

    @property
    def nbytes(self):
        return rows_bytes(&self.acks.ranges) + rows_bytes(&self.acks.out) + rows_bytes(&self.acks.noted)

    # ---- entries -------------------------------------------------------------------------------------------------

    def deliver(self, batch):
        """Note the entries of a MessageBatch, so that acknowledgements of their messages can be attributed to entries.

        Raises as `note_entries`.
        """
        cdef MessageTable table
        cdef const MessageEntry *stored
        cdef Py_ssize_t i
        if not isinstance(batch, MessageBatch):     # the same columns of another source
            self.note_entries(
                batch.entry_first, batch.entry_count, batch.entry_size, batch.entries_before, batch.bytes_before)
            return
        table = (<MessageBatch>batch).table
        for i in range(table.count):
            stored = &table.entries[i]
            self.note_entry(stored.first, stored.count, stored.size, entries_before(table, stored),
                            bytes_before(table, stored))

    def note_entries(self, first, count, size, entries_before, bytes_before):
        """Note entries, as columns int64[m], see `EntryPosition`; known entries, and acknowledged ones, are skipped.

        Raises InvalidArgumentError if one overlaps another, or is impossible; those before it are noted.
        """
        cdef const int64_t[::1] firsts = int64s(first, "first"), counts = int64s(count, "count")
        cdef const int64_t[::1] sizes = int64s(size, "size")
        cdef const int64_t[::1] entries = int64s(entries_before, "entries_before")
        cdef const int64_t[::1] before = int64s(bytes_before, "bytes_before")
        cdef Py_ssize_t i, n = firsts.shape[0]
        if counts.shape[0] != n or sizes.shape[0] != n or entries.shape[0] != n or before.shape[0] != n:
            raise InvalidArgumentError("columns of entries: expected as many of each")
        for i in range(n):
            self.note_entry(firsts[i], counts[i], sizes[i], entries[i], before[i])

    cdef int note_entry(self, int64_t first, int64_t count, int64_t size, int64_t entries, int64_t before) except -1:
        cdef const int64_t *other = NULL
        cdef Entry entry
        if not (0 <= first < OFFSET_MAX and 1 <= count <= OFFSET_MAX - first and 0 <= size <= ENTRY_BYTES_MAX):
            raise InvalidArgumentError(f"entry of {count} messages at offset {first}, {size} bytes: impossible")
        entry.first, entry.end, entry.size = first, first + count, size
        entry.entries_before, entry.bytes_before = entries, before
        if checked(acks_note(&self.acks, &entry, &other)) == ACKS_CONFLICT:
            raise InvalidArgumentError(f"entry of messages {first} to {entry.end - 1}: "
                                       f"another one has {other[0]} to {other[1] - 1}")
        return 0

    def note(self, place):
        """Note one entry, an `EntryPosition`."""
        _, _, first, count, size, entries_before, bytes_before = place
        self.note_entries([first], [count], [size], [entries_before], [bytes_before])

    def find(self, int64_t offset):
        """Return (first, count, size, entries_before, bytes_before) of the entry with a message; None: unknown, or
        acknowledged.
        """
        cdef Spot spot = rows_until(&self.acks.out, offset)
        cdef const Entry *entry = <const Entry *>rows_before(&self.acks.out, &spot)
        if entry == NULL or entry.end <= offset:
            return None
        return entry.first, entry.end - entry.first, entry.size, entry.entries_before, entry.bytes_before

    # ---- acknowledging -------------------------------------------------------------------------------------------

    def acknowledge(self, offsets, int64_t end):
        """Acknowledge messages, int64 offsets in any order; those that were acknowledged before are no error.

        Returns int64[k], the offsets whose entries are not known, which were not acknowledged: `note` their entries and
        call this again. Raises OutOfRangeError, and acknowledges nothing, if one is negative, or not below `end`, the
        end of the topic.
        """
        import numpy
        cdef const int64_t[::1] wanted = int64s(offsets, "offsets")
        cdef Py_ssize_t i, stop = 0, count = wanted.shape[0]
        cdef int status = ROWS_OK
        cdef Rows unknown
        for i in range(count):
            if not 0 <= wanted[i] < end <= OFFSET_MAX:
                raise OutOfRangeError(f"message {wanted[i]}: expected 0 to {end - 1}")
        memset(&unknown, 0, sizeof(Rows))
        unknown.width = 2
        try:
            while stop < count and status == ROWS_OK:
                i = stop
                stop += 1
                while stop < count and wanted[stop] == wanted[stop - 1] + 1:
                    stop += 1
                status = acks_add(&self.acks, wanted[i], wanted[stop - 1] + 1, &unknown)
            checked(status)
            if not unknown.count:
                return numpy.empty(0, numpy.int64)
            starts, ends = ranges_between(&unknown, 0, OFFSET_MAX, OFFSET_MAX)
        finally:
            rows_clear(&unknown)
        return numpy.concatenate([numpy.arange(a, b, dtype=numpy.int64) for a, b in zip(starts, ends)])

    def acknowledge_range(self, int64_t start, int64_t stop, int64_t end):
        """Acknowledge all messages of [start, stop), as `acknowledge` does; returns [(start, stop)] of unknown ones."""
        cdef Rows unknown
        if not 0 <= start <= stop <= end <= OFFSET_MAX:
            raise OutOfRangeError(f"messages {start} to {stop}: expected 0 to {end}")
        memset(&unknown, 0, sizeof(Rows))
        unknown.width = 2
        try:
            checked(acks_add(&self.acks, start, stop, &unknown))
            starts, ends = ranges_between(&unknown, 0, OFFSET_MAX, OFFSET_MAX)
        finally:
            rows_clear(&unknown)
        return list(zip(starts.tolist(), ends.tolist()))

    # ---- the mark ------------------------------------------------------------------------------------------------

    def cumulative_start(self, int64_t to):
        """Return the least mark after everything below `to` is acknowledged: `to`, or the start of the range that
        contains it.

        `cumulative` needs the entry of the message before that. Not above the mark: nothing would change.
        """
        return acks_start(&self.acks, to)

    def cumulative(self, place, int64_t to):
        """Acknowledge everything below `to`.

        place: the entry that contains `cumulative_start(to)`, or begins or ends there. Raises InvalidArgumentError
        otherwise.
        """
        cdef Entry entry
        cdef int64_t start = acks_start(&self.acks, to)
        _, _, entry.first, count, entry.size, entry.entries_before, entry.bytes_before = place
        entry.end = entry.first + count
        if not entry.first <= start <= entry.end:
            raise InvalidArgumentError(
                f"entry of messages {entry.first} to {entry.end - 1}: expected one that {start} is in or next to")
        if start > self.acks.below.messages and acks_move(&self.acks, &entry, start) == ACKS_CONFLICT:
            raise InvalidArgumentError(
                f"entry of messages {entry.first} to {entry.end - 1}, {entry.entries_before} entries and "
                f"{entry.bytes_before} bytes before it: expected one behind {self.mark}")

    def reset(self, total):
        """Acknowledge everything below a TopicPosition and nothing beyond; forget all entries."""
        self.set_mark(total)

    cdef int set_mark(self, object total) except -1:
        cdef int64_t offset, entries, size
        offset, entries, size = total
        if acks_set_mark(&self.acks, offset, entries, size) == ACKS_CONFLICT:
            raise InvalidArgumentError(f"mark: expected 0 <= entries <= offset and 0 <= size, found {total}")
        return 0

    # ---- questions -----------------------------------------------------------------------------------------------

    def is_acked(self, int64_t offset):
        return offset < self.acks.below.messages or ranges_known(&self.acks.ranges, offset).present

    def mask(self, offsets):
        """Return bool[n]: which of the messages at int64 `offsets` are acknowledged. Fastest when they ascend."""
        import numpy
        cdef const int64_t[::1] wanted = int64s(offsets, "offsets")
        cdef Py_ssize_t i, count = wanted.shape[0]
        cdef uint8_t[::1] mask
        mask_array = numpy.empty(count, numpy.uint8)
        if count:
            mask = mask_array
            ranges_mask(&self.acks.ranges, &wanted[0], count, &mask[0])
            for i in range(count):
                mask[i] |= wanted[i] < self.acks.below.messages
        return mask_array.view(numpy.bool_)

    def missing(self, int64_t start, int64_t stop):
        """Return how many messages of [start, stop) are not acknowledged."""
        check_range(start, stop)
        start = max(start, self.acks.below.messages)
        return ranges_missing(&self.acks.ranges, start, stop) if start < stop else 0

    def next_unacked(self, int64_t at):
        """Return the lowest offset from `at` on that is not acknowledged."""
        at = max(at, self.acks.below.messages)
        cdef Known known = ranges_known(&self.acks.ranges, at)
        return known.stop if known.present else at

    def behind(self, int64_t messages):
        """Return the lowest offset with so many (0 or more) unacknowledged messages below it."""
        if not 0 <= messages <= OFFSET_MAX:
            raise InvalidArgumentError(f"messages: expected 0 or more, found {messages}")
        return acks_behind(&self.acks, messages)

    def acked(self, int64_t start=0, int64_t stop=OFFSET_MAX, int64_t most=OFFSET_MAX):
        """Return (starts int64[m], ends int64[m]) of the first `most` ranges beyond the mark, cut to [start, stop)."""
        check_range(start, stop)
        return ranges_between(&self.acks.ranges, start, stop, most)

    # ---- following -------------------------------------------------------------------------------------------------

    def take_acked(self):
        """Return (starts int64[m], ends int64[m]) of ranges that contain all that was acknowledged since the last call.

        Some of it may have been acknowledged before. The first call, and the first one after `reset` or
        `forget_taken`, return everything, also below the mark. The cost depends on what is returned.
        """
        import numpy
        if self.acks.notes:
            taken = ranges_between(&self.acks.noted, 0, OFFSET_MAX, OFFSET_MAX)
        else:
            taken = self.acked()
            if self.acks.below.messages:
                taken = numpy.insert(taken[0], 0, 0), numpy.insert(taken[1], 0, self.acks.below.messages)
        acks_note_anew(&self.acks)
        return taken

    def forget_taken(self):
        """Keep nothing for `take_acked`, whose next call returns everything."""
        acks_note_nothing(&self.acks)

    # ---- bytes ---------------------------------------------------------------------------------------------------

    def changes(self, int64_t bytes_max=OFFSET_MAX):
        """Return the mark, and the ranges that changed since the last call of this or `snapshot`, as bytes for `apply`.

        They apply to a set that has all earlier changes. Ranges that do not fit into `bytes_max` (128 or more) are left
        for the next call: `has_changes` says so.
        """
        cdef Out out
        if bytes_max < CHANGES_BYTES_MIN:
            raise InvalidArgumentError(f"bytes_max: expected {CHANGES_BYTES_MIN} or more, found {bytes_max}")
        memset(&out, 0, sizeof(Out))
        try:
            checked(acks_changes(&self.acks, &out, bytes_max))
            return PyBytes_FromStringAndSize(<char *>out.data, out.used)
        finally:
            free(out.data)

    def snapshot(self, int64_t bytes_max=OFFSET_MAX):
        """Return the whole state, like `changes`, for a set whose mark is at the beginning of the topic."""
        acks_begin_again(&self.acks)
        return self.changes(bytes_max)

    def apply(self, data):
        """Apply what `changes` or `snapshot` of another set returned, in its order; applying it twice does no harm.

        Raises InvalidRecordsError if the bytes are malformed, or do not follow the present state; those before count.
        """
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        cdef Py_ssize_t size = view.shape[0]
        cdef const uint8_t *begin = &view[0] if size else NULL
        cdef const uint8_t *at = begin
        if checked(acks_apply(&self.acks, &at, begin + size)) == ACKS_CONFLICT:
            raise InvalidRecordsError(at - begin, f"the mark, or a range, of acknowledgements that follow {self.mark}",
                                      bytes(view[at - begin : at - begin + 36]).hex(" ") or "no bytes")
