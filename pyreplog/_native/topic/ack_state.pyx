"""The state machine of acknowledgements behind `ack_set`, with exact counts. No Python here.

A wholly acknowledged entry lies below the mark or in one range, and each range has the number of its entries. The
messages of an entry are known if it was delivered and is not wholly acknowledged. A changed range has its number of
entries negated (`~`), and its chunk a flag, so that the cost of writing depends on what changed. Threads: the caller's
lock.
"""

from libc.stdint cimport INT64_MIN
from libc.string cimport memset

from pyreplog._native.topic.ranges cimport (
    OFFSET_MAX,
    Known,
    Merge,
    ranges_add,
    ranges_commit,
    ranges_known,
    ranges_probe,
)
from pyreplog._native.topic.rows cimport (
    ROWS_NO_MEMORY,
    ROWS_OK,
    Chunk,
    Spot,
    rows_at,
    rows_before,
    rows_clear,
    rows_insert,
    rows_remove,
    rows_until,
)
from pyreplog._native.topic.varint cimport get_varint, put_varint

cdef enum:
    FULL = 1
    RANGE_BYTES_MAX = 36


cdef inline int64_t entries_of(const int64_t *row) noexcept nogil:
    return row[2] if row[2] >= 0 else ~row[2]


cdef inline void count_in(Sum *sum, const int64_t *row) noexcept nogil:
    sum.messages += row[1] - row[0]
    sum.entries += entries_of(row)
    sum.size += row[3]


cdef inline void take_off(Sum *sum, const Sum *other) noexcept nogil:
    sum.messages -= other.messages
    sum.entries -= other.entries
    sum.size -= other.size


cdef inline void touch(Acks *acks) noexcept nogil:
    acks.changed = True
    acks.version += 1


cdef void note_range(Acks *acks, int64_t start, int64_t end) noexcept nogil:
    """Note a range that is about to be acknowledged, maybe with members that were before."""
    if acks.notes and start < end and ranges_add(&acks.noted, start, end) < 0:
        acks_note_nothing(acks)


cdef inline Spot front() noexcept nogil:
    cdef Spot spot
    spot.chunk, spot.row = 0, 0
    return spot


cdef inline Sum sum_of(const Rows *ranges, Spot spot, int64_t count) noexcept nogil:
    """Return the totals of so many ranges from the spot on."""
    cdef Sum sum
    cdef int64_t i
    sum.messages, sum.entries, sum.size = 0, 0, 0
    for i in range(count):
        count_in(&sum, rows_at(ranges, &spot))
        spot.row += 1
    return sum


cdef int acks_set_mark(Acks *acks, int64_t offset, int64_t entries, int64_t size) noexcept nogil:
    if not (0 <= offset <= OFFSET_MAX and 0 <= entries <= offset and 0 <= size <= OFFSET_MAX):
        return ACKS_CONFLICT
    acks.below.messages, acks.below.entries, acks.below.size = offset, entries, size
    acks_forget(acks)
    touch(acks)
    return ROWS_OK


cdef void acks_forget(Acks *acks) noexcept nogil:
    rows_clear(&acks.ranges)
    rows_clear(&acks.out)
    memset(&acks.beyond, 0, sizeof(Sum))
    acks_note_nothing(acks)


cdef void acks_note_anew(Acks *acks) noexcept nogil:
    rows_clear(&acks.noted)
    acks.notes = True


cdef void acks_note_nothing(Acks *acks) noexcept nogil:
    rows_clear(&acks.noted)
    acks.notes = False


cdef int acks_note(Acks *acks, const Entry *entry, const int64_t **other) noexcept nogil:
    cdef Spot spot = rows_until(&acks.out, entry.first), before = spot, behind = spot
    cdef const int64_t *row = rows_before(&acks.out, &before)
    cdef Known known
    if entry.end <= acks.below.messages:
        return ROWS_OK
    if row != NULL and row[1] > entry.first:
        other[0] = row
        return ROWS_OK if row[0] == entry.first and row[1] == entry.end else ACKS_CONFLICT
    row = rows_at(&acks.out, &behind)
    if row != NULL and row[0] < entry.end:
        other[0] = row
        return ACKS_CONFLICT
    known = ranges_known(&acks.ranges, entry.first)
    if known.present and known.stop >= entry.end:
        return ROWS_OK
    return rows_insert(&acks.out, &spot, <const int64_t *>entry)


# ---- acknowledging -------------------------------------------------------------------------------------------------

cdef int acks_add(Acks *acks, int64_t start, int64_t stop, Rows *unknown) noexcept nogil:
    cdef int64_t at = max(start, acks.below.messages), until
    cdef Spot spot, before
    cdef const int64_t *row
    cdef Known known
    while at < stop:
        spot = before = rows_until(&acks.out, at)
        row = rows_before(&acks.out, &before)
        if row != NULL and row[1] > at:
            until = known_until(acks, before, stop)
            if add_known(acks, at, until, before) < 0:
                return ROWS_NO_MEMORY
        else:
            row = rows_at(&acks.out, &spot)
            known = ranges_known(&acks.ranges, at)
            until = min(stop, known.stop)
            if not known.present:
                until = min(until, row[0]) if row != NULL else until
                if ranges_add(unknown, at, until) < 0:
                    return ROWS_NO_MEMORY
        at = max(until, acks.below.messages)
    return ROWS_OK


cdef int64_t known_until(const Acks *acks, Spot spot, int64_t stop) noexcept nogil:
    """Return how far, up to `stop`, adjacent known entries reach from the one at the spot on."""
    cdef const int64_t *row = rows_at(&acks.out, &spot)
    cdef int64_t end = row[0]
    while row != NULL and row[0] == end and end < stop:
        end = row[1]
        spot.row += 1
        row = rows_at(&acks.out, &spot)
    return min(end, stop)


cdef int add_known(Acks *acks, int64_t start, int64_t stop, Spot spot) noexcept nogil:
    """Acknowledge [start, stop), which known entries cover; the spot is that of the first one.

    None was complete before.
    """
    cdef Merge merge
    cdef Spot first = spot
    cdef int64_t low, entries = 0, size = 0
    cdef const Entry *entry = <const Entry *>rows_at(&acks.out, &spot)
    ranges_probe(&acks.ranges, start, stop, &merge)
    if merge.end - merge.start == merge.held:
        return ROWS_OK
    low = merge.start if merge.start > acks.below.messages else INT64_MIN
    while entry != NULL and entry.first < stop:
        if entry.first >= low and entry.end <= merge.end:
            if not entries:
                first = spot
            entries += 1
            size += entry.size
        spot.row += 1
        entry = <const Entry *>rows_at(&acks.out, &spot)
    if replace(acks, &merge, entries, size, True) < 0:
        return ROWS_NO_MEMORY
    if entries:
        rows_remove(&acks.out, first, entries)
    return ROWS_OK


cdef int replace(Acks *acks, Merge *merge, int64_t entries, int64_t size, bint changed) noexcept nogil:
    """Replace the ranges of a merge by one range, or move the mark; so many entries and bytes more are complete in it.
    """
    cdef Sum held = sum_of(&acks.ranges, merge.spot, merge.count)
    cdef int64_t row[4]
    note_range(acks, merge.start, merge.end)
    if merge.start <= acks.below.messages:
        if merge.count:
            rows_remove(&acks.ranges, front(), merge.count)
        take_off(&acks.beyond, &held)
        acks.below.messages = merge.end
        acks.below.entries += held.entries + entries
        acks.below.size += held.size + size
    else:
        row[0], row[1], row[2], row[3] = merge.start, merge.end, held.entries + entries, held.size + size
        row[2] = ~row[2] if changed else row[2]
        if ranges_commit(&acks.ranges, merge, row) < 0:
            return ROWS_NO_MEMORY
        acks.beyond.messages += merge.end - merge.start - held.messages
        acks.beyond.entries += entries
        acks.beyond.size += size
    touch(acks)
    return ROWS_OK


# ---- the mark ------------------------------------------------------------------------------------------------------

cdef int64_t acks_start(const Acks *acks, int64_t to) noexcept nogil:
    cdef Known known = ranges_known(&acks.ranges, to)
    return known.start if known.present else to


cdef int acks_move(Acks *acks, const Entry *entry, int64_t start) noexcept nogil:
    cdef Sum mark
    cdef Merge merge
    cdef bint completes
    mark.messages, mark.entries, mark.size = start, entry.entries_before, entry.bytes_before
    if start == entry.end:
        mark.entries += 1
        mark.size += entry.size
    if mark.entries < acks.below.entries or mark.size < acks.below.size or mark.entries > start:
        return ACKS_CONFLICT
    note_range(acks, acks.below.messages, start)
    drop_below(acks, start)
    acks.below = mark
    touch(acks)
    ranges_probe(&acks.ranges, start, start, &merge)
    if merge.count:     # the range that begins there
        completes = entry.first < start < entry.end <= merge.end
        replace(acks, &merge, completes, entry.size if completes else 0, True)
    drop_below(acks, acks.below.messages)
    return ROWS_OK


cdef void drop_below(Acks *acks, int64_t offset) noexcept nogil:
    """Forget the ranges and entries that end at the offset or before."""
    cdef int64_t count = count_below(&acks.ranges, offset)
    cdef Sum dropped = sum_of(&acks.ranges, front(), count)
    if count:
        take_off(&acks.beyond, &dropped)
        rows_remove(&acks.ranges, front(), count)
    count = count_below(&acks.out, offset)
    if count:
        rows_remove(&acks.out, front(), count)


cdef int64_t count_below(const Rows *rows, int64_t offset) noexcept nogil:
    cdef Spot spot = front()
    cdef int64_t count = 0
    cdef const int64_t *row = rows_at(rows, &spot)
    while row != NULL and row[1] <= offset:
        count += 1
        spot.row += 1
        row = rows_at(rows, &spot)
    return count


cdef int64_t acks_behind(const Acks *acks, int64_t messages) noexcept nogil:
    cdef Spot spot = front()
    cdef int64_t at = acks.below.messages
    cdef const int64_t *row = rows_at(&acks.ranges, &spot)
    while row != NULL and row[0] - at < messages:
        messages -= row[0] - at
        at = row[1]
        spot.row += 1
        row = rows_at(&acks.ranges, &spot)
    return at + messages


# ---- bytes ---------------------------------------------------------------------------------------------------------

cdef int acks_changes(Acks *acks, Out *out, int64_t bytes_max) noexcept nogil:
    cdef int64_t at = acks.below.messages
    cdef int status = put_mark(out, acks)
    cdef uint32_t i
    for i in range(acks.ranges.used):
        if status == ROWS_OK and acks.ranges.chunks[i].flag:
            status = put_changed(out, &acks.ranges.chunks[i], &at, bytes_max)
    if status == ROWS_NO_MEMORY:
        acks_begin_again(acks)
        return status
    acks.changed = status == FULL
    return ROWS_OK


cdef int put_changed(Out *out, Chunk *chunk, int64_t *at, int64_t bytes_max) noexcept nogil:
    cdef int64_t *row
    cdef uint32_t i
    for i in range(chunk.count):
        row = chunk.words + 4 * i
        if row[2] >= 0:
            continue
        if <int64_t>out.used + RANGE_BYTES_MAX > bytes_max:
            return FULL
        if put_range(out, row, at) < 0:
            return ROWS_NO_MEMORY
        row[2] = ~row[2]
    chunk.flag = 0
    return ROWS_OK


cdef void acks_begin_again(Acks *acks) noexcept nogil:
    cdef uint32_t i, j
    cdef int64_t *row
    for i in range(acks.ranges.used):
        acks.ranges.chunks[i].flag = 1
        for j in range(acks.ranges.chunks[i].count):
            row = acks.ranges.chunks[i].words + 4 * j
            row[2] = min(row[2], ~row[2])
    acks.changed = True


cdef int put_mark(Out *out, const Acks *acks) noexcept nogil:
    if (put_varint(out, acks.below.messages) < 0 or put_varint(out, acks.below.entries) < 0
            or put_varint(out, acks.below.size) < 0):
        return ROWS_NO_MEMORY
    return ROWS_OK


cdef int put_range(Out *out, const int64_t *row, int64_t *at) noexcept nogil:
    """Write the gap behind `at`, which is moved to the range's end; its length, entries and bytes."""
    if (put_varint(out, row[0] - at[0]) < 0 or put_varint(out, row[1] - row[0]) < 0
            or put_varint(out, entries_of(row)) < 0 or put_varint(out, row[3]) < 0):
        return ROWS_NO_MEMORY
    at[0] = row[1]
    return ROWS_OK


cdef int acks_apply(Acks *acks, const uint8_t **at, const uint8_t *stop) noexcept nogil:
    cdef int64_t end, gap, length, entries, size
    cdef const uint8_t *place = at[0]
    cdef int status = apply_mark(acks, &place, stop)
    end = acks.below.messages
    while status == ROWS_OK and place < stop:
        at[0] = place
        gap = get_varint(&place, stop)
        length = get_varint(&place, stop)
        entries = get_varint(&place, stop)
        size = get_varint(&place, stop)
        if gap < 1 or length < 1 or gap > OFFSET_MAX - end or length > OFFSET_MAX - end - gap:
            return ACKS_CONFLICT
        status = apply_range(acks, end + gap, end + gap + length, entries, size)
        end += gap + length
    return status


cdef int apply_mark(Acks *acks, const uint8_t **at, const uint8_t *stop) noexcept nogil:
    cdef Sum mark
    mark.messages = get_varint(at, stop)
    mark.entries = get_varint(at, stop)
    mark.size = get_varint(at, stop)
    if (mark.messages < acks.below.messages or mark.entries < acks.below.entries or mark.size < acks.below.size
            or mark.entries > mark.messages or ranges_known(&acks.ranges, mark.messages).present):
        return ACKS_CONFLICT    # it would lie in a range, or touch one
    note_range(acks, acks.below.messages, mark.messages)
    drop_below(acks, mark.messages)
    acks.below = mark
    touch(acks)
    return ROWS_OK


cdef int apply_range(Acks *acks, int64_t start, int64_t end, int64_t entries, int64_t size) noexcept nogil:
    """Replace all ranges that this one covers; it must neither cover a part of a range, nor touch one."""
    cdef Merge merge
    cdef Sum held
    ranges_probe(&acks.ranges, start, end, &merge)
    held = sum_of(&acks.ranges, merge.spot, merge.count)
    if (merge.start < start or merge.end > end or entries < held.entries or entries > end - start
            or size < held.size or size - held.size > OFFSET_MAX - acks.beyond.size):
        return ACKS_CONFLICT
    return replace(acks, &merge, entries - held.entries, size - held.size, False)
