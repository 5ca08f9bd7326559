"""Ranges of offsets in sorted rows: the loops over many of them. Threads: the caller's lock."""

from libc.stdint cimport INT64_MAX, INT64_MIN, uintptr_t

from pyreplog._native.system.blocks cimport int64_array
from pyreplog._native.topic.rows cimport (
    ROWS_NO_MEMORY, ROWS_OK, rows_at, rows_before, rows_insert, rows_remove, rows_set, rows_until,
)
from pyreplog.errors import InvalidArgumentError, WrongTypeError

cdef enum:
    STEPS = 4       # steps from one range to the next before a new search


cdef void ranges_probe(const Rows *rows, int64_t start, int64_t end, Merge *merge) noexcept nogil:
    cdef Spot spot = rows_until(rows, start), before = spot
    cdef const int64_t *row = rows_before(rows, &before)
    merge.start, merge.end, merge.count, merge.held = start, end, 0, 0
    if row != NULL and row[1] >= start:
        spot, merge.start = before, row[0]
    merge.spot = spot
    row = rows_at(rows, &spot)
    while row != NULL and row[0] <= end:
        merge.count += 1
        merge.held += row[1] - row[0]
        merge.end = max(merge.end, row[1])
        spot.row += 1
        row = rows_at(rows, &spot)


cdef int ranges_commit(Rows *rows, Merge *merge, const int64_t *row) noexcept nogil:
    cdef Spot others
    if not merge.count:
        if rows_insert(rows, &merge.spot, row) < 0:
            return ROWS_NO_MEMORY
        rows.chunks[merge.spot.chunk].flag = 1
        return ROWS_OK
    rows_at(rows, &merge.spot)
    rows_set(rows, merge.spot, row)
    rows.chunks[merge.spot.chunk].flag = 1
    if merge.count > 1:
        others = merge.spot
        others.row += 1
        rows_at(rows, &others)
        rows_remove(rows, others, merge.count - 1)
    return ROWS_OK


cdef int64_t ranges_add(Rows *rows, int64_t start, int64_t end) noexcept nogil:
    cdef Merge merge
    cdef int64_t row[2]
    ranges_probe(rows, start, end, &merge)
    row[0], row[1] = merge.start, merge.end
    if ranges_commit(rows, &merge, row) < 0:
        return ROWS_NO_MEMORY
    return merge.end - merge.start - merge.held


cdef int64_t ranges_cut(Rows *rows, int64_t start, int64_t end) noexcept nogil:
    cdef Spot spot = rows_until(rows, start), before = spot
    cdef int64_t *row = rows_before(rows, &before)
    cdef int64_t remainder[2]
    cdef int64_t removed = 0, count = 0
    if row != NULL and row[1] > end and row[0] < start:     # it gets a hole
        remainder[0], remainder[1] = end, row[1]
        if rows_insert(rows, &spot, remainder) < 0:
            return ROWS_NO_MEMORY
        rows_before(rows, &spot)[1] = start
        return end - start
    if row != NULL and row[0] == start:
        spot = before
    elif row != NULL and row[1] > start:
        removed = row[1] - start
        row[1] = start
    row = rows_at(rows, &spot)
    before = spot
    while row != NULL and row[1] <= end:
        count += 1
        removed += row[1] - row[0]
        spot.row += 1
        row = rows_at(rows, &spot)
    if row != NULL and row[0] < end:
        removed += end - row[0]
        remainder[0], remainder[1] = end, row[1]
        rows_set(rows, spot, remainder)
    if count:
        rows_remove(rows, before, count)
    return removed


cdef Known ranges_known(const Rows *rows, int64_t offset) noexcept nogil:
    cdef Known known
    cdef Spot spot = rows_until(rows, offset)
    cdef const int64_t *row = rows_at(rows, &spot)
    known.start, known.stop = INT64_MIN, INT64_MAX
    if row != NULL:
        known.stop = row[0]
    row = rows_before(rows, &spot)
    known.present = row != NULL and row[1] > offset
    if known.present:
        known.start, known.stop = row[0], row[1]
    elif row != NULL:
        known.start = row[1]
    return known


cdef const int64_t *ranges_from(const Rows *rows, int64_t offset, Spot *spot) noexcept nogil:
    """Return the first range that ends behind an offset, and set its spot; NULL: there is none."""
    cdef const int64_t *row
    spot[0] = rows_until(rows, offset)
    row = rows_before(rows, spot)
    if row != NULL and row[1] <= offset:
        spot.row += 1
    return rows_at(rows, spot)


cdef int64_t ranges_missing(const Rows *rows, int64_t start, int64_t end) noexcept nogil:
    cdef int64_t missing = end - start
    cdef Spot spot
    cdef const int64_t *row = ranges_from(rows, start, &spot)
    while row != NULL and row[0] < end:
        missing -= min(row[1], end) - max(row[0], start)
        spot.row += 1
        row = rows_at(rows, &spot)
    return missing


cdef void ranges_mask(const Rows *rows, const int64_t *offsets, int64_t count, uint8_t *mask) noexcept nogil:
    cdef const int64_t *row = NULL
    cdef int64_t i, steps, last = INT64_MAX
    cdef Spot spot
    for i in range(count):
        steps = 0 if offsets[i] >= last else STEPS
        while steps < STEPS and row != NULL and row[1] <= offsets[i]:
            spot.row += 1
            row = rows_at(rows, &spot)
            steps += 1
        if steps == STEPS:
            row = ranges_from(rows, offsets[i], &spot)
        mask[i] = row != NULL and row[0] <= offsets[i]
        last = offsets[i]


cdef tuple ranges_between(const Rows *rows, int64_t start, int64_t end, int64_t most):
    import numpy
    cdef Spot spot, begin
    cdef const int64_t *row = ranges_from(rows, start, &spot)
    cdef int64_t count = 0, i
    cdef int64_t[::1] starts, ends
    begin = spot
    while row != NULL and row[0] < end and count < most:
        count += 1
        spot.row += 1
        row = rows_at(rows, &spot)
    both = numpy.empty((2, count), numpy.int64)
    starts, ends = both[0], both[1]
    for i in range(count):
        row = rows_at(rows, &begin)
        starts[i], ends[i] = max(row[0], start), min(row[1], end)
        begin.row += 1
    return both[0], both[1]


# ---- arguments -----------------------------------------------------------------------------------------------------

cdef const int64_t[::1] int64s(object array, str name):
    """Return integers of one dimension as int64; nothing is rounded or cut."""
    cdef const int64_t[::1] view
    try:
        view = array
        if not view.shape[0] or not <uintptr_t>&view[0] % sizeof(int64_t):
            return view
    except (TypeError, ValueError):
        pass
    import numpy
    values = numpy.asarray(array)
    if values.ndim == 1 and not values.size:
        return numpy.empty(0, numpy.int64)
    if values.ndim != 1 or values.dtype.kind != "i":
        raise WrongTypeError(f"{name}: expected int64 of one dimension, found {values.dtype} of shape {values.shape}")
    return int64_array(values)


cdef int check_range(int64_t start, int64_t end) except -1:
    if not 0 <= start <= end <= OFFSET_MAX:
        raise InvalidArgumentError(f"range: expected 0 <= start <= end <= {OFFSET_MAX}, found {start} to {end}")
    return 0
