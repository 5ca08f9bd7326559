"""The entries of one ledger in one segment, as extents; `index` has one map for each ledger. No Python objects.

Adding appends or extends one extent, whatever the order of entries. While entry numbers only increase, the extents are
sorted; else a map gets a sorted view at its first lookup. Threads: the lock of the caller guards a map.
"""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy


cdef int make_room(void **items, uint64_t wanted, uint32_t *room, size_t size) noexcept nogil:
    cdef uint64_t capacity = wanted + wanted // 4 + 2
    cdef void *moved
    if wanted <= room[0]:
        return EXTENTS_OK
    moved = realloc(items[0], capacity * size)
    if moved == NULL:
        return EXTENTS_NO_MEMORY
    items[0], room[0] = moved, <uint32_t>capacity
    return EXTENTS_OK


cdef int extents_add(ExtentMap *map, uint64_t entry, uint32_t count) noexcept nogil:
    if map.count and end_of(&map.extents[map.count - 1]) == entry:
        map.extents[map.count - 1].count += count
    else:
        if make_room(<void **>&map.extents, map.count + 1, &map.room, sizeof(Extent)) < 0:
            return EXTENTS_NO_MEMORY
        put(&map.extents[map.count], entry, map.numbers, count)
        map.count += 1
    note_range(map, entry, count)
    map.numbers += count
    return EXTENTS_OK


cdef inline void put(Extent *extent, uint64_t entry, uint32_t number, uint32_t count) noexcept nogil:
    extent.entry, extent.number, extent.count = entry, number, count


cdef inline void note_range(ExtentMap *map, uint64_t entry, uint32_t count) noexcept nogil:
    """Widen the range of entries of the map, before `numbers` counts them."""
    if not map.numbers:
        map.first, map.last = entry, entry + count - 1
        return
    map.unordered |= entry <= map.last
    map.first = min(map.first, entry)
    map.last = max(map.last, entry + count - 1)


cdef void extents_cut(ExtentMap *map, uint32_t keep) noexcept nogil:
    cdef const Extent *extent
    cdef uint32_t i
    if keep >= map.numbers:
        return
    while map.count and map.extents[map.count - 1].number >= keep:
        map.count -= 1
    if map.count:
        map.extents[map.count - 1].count = keep - map.extents[map.count - 1].number
    free_view(map)   # it lacks earlier copies of the entries that were cut
    map.numbers, map.unordered = 0, False
    for i in range(map.count):
        extent = &map.extents[i]
        note_range(map, extent.entry, extent.count)
        map.numbers += extent.count


cdef int extents_rewind(const ExtentMap *map, uint32_t keep, ExtentMap *past) noexcept nogil:
    cdef uint32_t i
    for i in range(map.count):
        if map.extents[i].number >= keep:
            break
        if extents_add(past, map.extents[i].entry, min(map.extents[i].count, keep - map.extents[i].number)) < 0:
            return EXTENTS_NO_MEMORY
    return EXTENTS_OK


cdef void extents_free(ExtentMap *map) noexcept nogil:
    free_view(map)
    free(map.extents)


cdef void free_view(ExtentMap *map) noexcept nogil:
    if map.view != NULL:
        free(map.view.extents)
        free(map.view)
        map.view = NULL


cdef uint64_t extents_bytes(const ExtentMap *map) noexcept nogil:
    cdef uint64_t size = map.room * sizeof(Extent)
    return size if map.view == NULL else size + sizeof(View) + map.view.room * sizeof(Extent)


cdef int64_t extents_find(ExtentMap *map, uint64_t entry) noexcept nogil:
    cdef const View *view
    cdef int64_t number = EXTENTS_ABSENT
    cdef uint32_t level, start, stop
    if not map.unordered:
        return find_among(map.extents, map.count, entry)
    if catch_up(map) < 0:
        return EXTENTS_NO_MEMORY
    view, stop = map.view, map.view.count
    level = view.levels
    while level and number < 0:
        level -= 1
        start = view.start[level]
        number = find_among(view.extents + start, stop - start, entry)
        stop = start
    return number


cdef int64_t find_among(const Extent *extents, uint32_t count, uint64_t entry) noexcept nogil:
    cdef uint32_t i = extents_until(extents, count, entry)
    if not i or entry >= end_of(&extents[i - 1]):
        return EXTENTS_ABSENT
    return extents[i - 1].number + <int64_t>(entry - extents[i - 1].entry)


cdef const Extent *extents_sorted(ExtentMap *map, uint32_t *count) noexcept nogil:
    cdef View *view
    if not map.unordered:
        count[0] = map.count
        return map.extents
    if catch_up(map) < 0:
        return NULL
    view = map.view
    while view.levels > 1:
        if merge(view) < 0:
            return NULL
    count[0] = view.count
    return view.extents


# ---- the view --------------------------------------------------------------------------------------------------

cdef int catch_up(ExtentMap *map) noexcept nogil:
    """Add the extents that came since the last lookup to the view."""
    cdef View *view
    cdef Extent extent
    cdef uint32_t i = map.count
    if map.view == NULL:
        map.view = <View *>calloc(1, sizeof(View))
        if map.view == NULL:
            return EXTENTS_NO_MEMORY
    view = map.view
    while i and map.extents[i - 1].number + map.extents[i - 1].count > view.numbers:
        i -= 1
    while i < map.count:
        extent = map.extents[i]
        if extent.number < view.numbers:   # it has grown since
            drop_below(&extent, extent.entry + (view.numbers - extent.number))
        if push(view, &extent) < 0:
            return EXTENTS_NO_MEMORY
        view.numbers = extent.number + extent.count
        i += 1
    return balance(view)


cdef int push(View *view, const Extent *extent) noexcept nogil:
    """Append an extent to the newest level if it lies above that, else begin a level with it."""
    cdef Extent *newest = &view.extents[view.count - 1] if view.levels else NULL
    cdef bint above = newest != NULL and end_of(newest) <= extent.entry
    if above and extent.entry == end_of(newest) and extent.number == newest.number + newest.count:
        newest.count += extent.count
        return EXTENTS_OK
    if not above and balance(view) < 0:
        return EXTENTS_NO_MEMORY
    if make_room(<void **>&view.extents, view.count + 1, &view.room, sizeof(Extent)) < 0:
        return EXTENTS_NO_MEMORY
    if not above:
        view.start[view.levels] = view.count
        view.levels += 1
    view.extents[view.count] = extent[0]
    view.count += 1
    return EXTENTS_OK


cdef int balance(View *view) noexcept nogil:
    cdef uint32_t below, newest
    while view.levels > 1:
        newest = view.count - view.start[view.levels - 1]
        below = view.start[view.levels - 1] - view.start[view.levels - 2]
        if below > 2 * newest:
            return EXTENTS_OK
        if merge(view) < 0:
            return EXTENTS_NO_MEMORY
    return EXTENTS_OK


cdef int merge(View *view) noexcept nogil:
    """Merge the two newest levels. Extents below the newer level stay in place."""
    cdef uint32_t start = view.start[view.levels - 2], middle = view.start[view.levels - 1], size
    cdef uint32_t below = extents_until(view.extents + start, middle - start, view.extents[middle].entry)
    cdef uint32_t newer = view.count - middle
    cdef Extent *merged
    start += below - 1 if below else 0
    merged = <Extent *>malloc((middle - start + 2 * <size_t>newer) * sizeof(Extent))
    if merged == NULL:
        return EXTENTS_NO_MEMORY
    size = overlay(view.extents + start, middle - start, view.extents + middle, newer, merged)
    if make_room(<void **>&view.extents, start + size, &view.room, sizeof(Extent)) < 0:
        free(merged)
        return EXTENTS_NO_MEMORY
    memcpy(view.extents + start, merged, size * sizeof(Extent))
    free(merged)
    view.count = start + size
    view.levels -= 1
    return EXTENTS_OK


cdef uint32_t overlay(const Extent *older, uint32_t olds, const Extent *newer, uint32_t news,
                      Extent *out) noexcept nogil:
    """Merge newer extents with the parts of older ones that they do not cover, ascending; return the count, which is at
    most olds + 2 * news."""
    cdef uint32_t i, j = 0, size = 0
    cdef Extent rest
    for i in range(olds):
        rest = older[i]
        while rest.count:
            while j < news and end_of(&newer[j]) <= rest.entry:
                out[size] = newer[j]
                size, j = size + 1, j + 1
            out[size] = rest
            if j == news or end_of(&rest) <= newer[j].entry:
                size += 1
                break
            if rest.entry < newer[j].entry:
                out[size].count = <uint32_t>(newer[j].entry - rest.entry)
                size += 1
            drop_below(&rest, end_of(&newer[j]))
    memcpy(out + size, newer + j, (news - j) * sizeof(Extent))
    return size + news - j


cdef inline void drop_below(Extent *extent, uint64_t entry) noexcept nogil:
    """Cut the entries below `entry` from an extent, perhaps all of it. `entry` is not below the extent."""
    cdef uint32_t gone = <uint32_t>min(entry - extent.entry, <uint64_t>extent.count)
    extent.entry += gone
    extent.number += gone
    extent.count -= gone
