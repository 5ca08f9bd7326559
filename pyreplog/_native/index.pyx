"""(ledger id, entry id) -> offset of the record, for the active segment of a log in which many ledgers interleave.

`LedgerIndex` is in memory; `to_bytes` makes the file of it that `sealed` reads once the segment is. Offsets are bytes
since the segment began, its header included.

Of an entry added twice (sent again, or copied by re-replication; both copies are the same bytes) the last one wins.
"""

import os
from pathlib import Path

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove, memset

from pyreplog._native.layout cimport ALIGN, FORMAT_VERSION, LONG_HEADER, SEGMENT_HEADER, SEGMENT_MAX, crc32c
from pyreplog.errors import InvalidArgumentError


cdef int make_room(void **items, uint32_t used, uint32_t *capacity, size_t size) noexcept nogil:
    """Room for one more item; grows by an eighth: realloc moves the pages of large blocks and copies nothing."""
    cdef uint32_t wanted = capacity[0] + capacity[0] // 8 + 64
    cdef void *moved
    if used < capacity[0]:
        return INDEX_OK
    moved = realloc(items[0], wanted * size)
    if moved == NULL:
        return INDEX_NO_MEMORY
    items[0], capacity[0] = moved, wanted
    return INDEX_OK


cdef int by_entry(const void *a, const void *b) noexcept nogil:
    cdef const Pair *x = <const Pair *>a
    cdef const Pair *y = <const Pair *>b
    return (x.entry > y.entry) - (x.entry < y.entry) or (x.place > y.place) - (x.place < y.place)


cdef int by_ledger(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const LedgerRun *>a).ledger, y = (<const LedgerRun *>b).ledger
    return (x > y) - (x < y)


cdef int64_t settle(Pair *pairs, int64_t records, bint unordered) noexcept nogil:
    """Sort records of a ledger, which are in log order, and keep the last copy of each entry; how many are left."""
    cdef int64_t count = 0, i
    if not unordered:
        return records
    qsort(pairs, records, sizeof(Pair), by_entry)
    for i in range(records):
        if i + 1 == records or pairs[i].entry != pairs[i + 1].entry:
            pairs[count] = pairs[i]
            count += 1
    return count


cdef void write_items(uint32_t *item, const LedgerRun *run, const Pair *pairs) noexcept nogil:
    cdef int64_t i
    cdef uint64_t delta
    for i in range(run.entries):
        delta = pairs[i].entry - run.first
        item[0] = <uint32_t>delta
        if run.words == 3:
            item[1] = <uint32_t>(delta >> 32)
        item[run.words - 1] = <uint32_t>pairs[i].place
        item += run.words


cdef void seal(uint8_t *image) noexcept nogil:
    """Fill in the CRC table, its roots and the header's own CRC."""
    cdef IndexFileHeader *header = <IndexFileHeader *>image
    cdef uint64_t data_end = header.data_end, table = rounded(data_end), size = image_size(data_end), i
    cdef uint32_t *crcs = <uint32_t *>(image + table)
    memset(image + data_end, 0, size - data_end)
    for i in range(table // BLOCK - 1):
        crcs[i] = crc32c(0, image + (i + 1) * BLOCK, BLOCK)
    for i in range((size - table) // BLOCK):
        header.roots[i] = crc32c(0, image + table + i * BLOCK, BLOCK)
    header.crc = crc32c(0, image + HEADER_CRC_FROM, BLOCK - HEADER_CRC_FROM)


cdef tuple columns(const Pair *pairs, int64_t count):
    import numpy
    cdef bytearray raw = bytearray(count * sizeof(Pair))
    cdef int64_t *out = <int64_t *><char *>raw
    cdef int64_t i
    for i in range(count):
        out[i], out[count + i] = pairs[i].entry, pairs[i].place * ALIGN
    both = numpy.frombuffer(raw, numpy.int64)
    return both[:count], both[count:]


cdef object ledger_table(bytes runs):
    import numpy
    return numpy.frombuffer(runs, numpy.dtype({
        "names": ["ledger", "first", "last", "bytes", "entries"],
        "formats": ["<i8", "<i8", "<i8", "<u8", "<u4"],
        "offsets": [0, 8, 16, 24, 40],
        "itemsize": sizeof(LedgerRun),
    }))


cdef int check_ids(int64_t ledger, int64_t entry) except -1:
    if ledger < 0 or entry < 0:
        raise InvalidArgumentError(f"ledger and entry ids are 0 or more, got ledger {ledger}, entry {entry}")
    return 0


cdef int hold_column(object column, Py_buffer *view) except -1:
    PyObject_GetBuffer(column, view, PyBUF_STRIDES | PyBUF_FORMAT)
    if view.ndim != 1 or view.strides[0] != sizeof(int64_t) or view.format not in (b"l", b"q"):
        PyBuffer_Release(view)
        raise InvalidArgumentError(f"a column is a contiguous array of int64, got {column!r:.80}")
    return 0


cdef class LedgerIndex:
    """`LedgerIndex()`: the index of a segment that is being written, in memory.

    Records are added in log order: `offset` (bytes, a multiple of 8) at or after the end of the record added before,
    `stride` bytes long, padding included. Entries of a ledger may come in any order, with gaps, and more than once.
    Takes up to 40 bytes per record, from a few thousand on, and 80 per ledger.

    Threads: every method and C function may be called from any thread at any time. Each holds the index's own lock
    while it works; batches let go of the GIL. Only `save` waits for a disk; `to_bytes` and `remove_from` of a million
    records take tens of milliseconds, and lookups wait for them.
    """

    def __cinit__(self):
        self.end = SEGMENT_HEADER
        if widen(&self.node_slots) < 0 or widen(&self.row_slots) < 0:
            raise MemoryError

    def __dealloc__(self):
        free(self.nodes)
        free(self.rows)
        free(self.node_slots.slot)
        free(self.row_slots.slot)

    @property
    def count(self):
        """Distinct (ledger, entry) pairs held."""
        with self.lock:
            return self.entries_held

    @property
    def memory_bytes(self):
        """Bytes of memory allocated."""
        with self.lock:
            return (self.node_capacity * sizeof(Node) + self.row_capacity * sizeof(LedgerRow)
                    + (<uint64_t>self.node_slots.mask + self.row_slots.mask + 2) * sizeof(uint32_t))

    def add(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride):
        """Note a record. InvalidArgumentError: a negative id, or a place not after the record added before."""
        cdef int status = ledger_index_add(self, ledger, entry, offset, stride)
        if status < 0:
            self.refuse(status, ledger, entry, offset, stride)

    def add_batch(self, ledgers, entries, offsets, strides):
        """Note many records: four int64 arrays of one length. All of them, or none when one is refused as in `add`."""
        cdef Py_buffer views[4]
        cdef const int64_t *column[4]
        cdef int64_t failed = 0
        cdef int held = 0, status
        try:
            for source in (ledgers, entries, offsets, strides):
                hold_column(source, &views[held])
                column[held] = <const int64_t *>views[held].buf
                held += 1
                if views[held - 1].shape[0] != views[0].shape[0]:
                    raise InvalidArgumentError("the four columns differ in length")
            with nogil:
                status = ledger_index_add_batch(
                    self, views[0].shape[0], column[0], column[1], column[2], column[3], &failed)
            if status < 0:
                self.refuse(status, column[0][failed], column[1][failed], column[2][failed], column[3][failed])
        finally:
            while held:
                held -= 1
                PyBuffer_Release(&views[held])

    def get(self, int64_t ledger, int64_t entry):
        """Offset of the entry's last copy; None: definitely not here. InvalidArgumentError: a negative id."""
        check_ids(ledger, entry)
        cdef int64_t offset = ledger_index_find(self, ledger, entry)
        return offset if offset >= 0 else None

    def last_entry(self, int64_t ledger):
        """Highest entry id of the ledger; None: it has no entry here."""
        cdef const LedgerRow *row
        with self.lock:
            row = self.row_of(ledger)
            return row.last if row != NULL else None

    def entries(self, int64_t ledger, int64_t start, int64_t stop):
        """(entry ids, offsets) of the ledger's entries start <= id < stop: int64 arrays, sorted by id, no id twice.

        Costs the smaller of stop - start and the ledger's number of records.
        """
        check_ids(ledger, start)
        cdef Pair *pairs = NULL
        cdef int64_t count
        with nogil, self.lock:
            count = self.collect(ledger, start, stop, &pairs)
        try:
            if count < 0:
                raise MemoryError
            return columns(pairs, count)
        finally:
            free(pairs)

    def ledgers(self):
        """Table of the ledgers, sorted: a numpy array with fields ledger, first, last (entry ids), bytes (sum of the
        strides of its records, every copy counted) and entries (how many distinct ids)."""
        with self.lock:
            runs = PyBytes_FromStringAndSize(NULL, self.row_count * sizeof(LedgerRun))
            self.directory(<LedgerRun *>PyBytes_AS_STRING(runs))
        return ledger_table(runs)

    def remove_from(self, int64_t offset):
        """Forget every record that is not wholly below `offset`, as a truncation of the segment does.

        An entry whose last copy is cut is found at the copy before it. Costs the number of records kept.
        """
        with nogil, self.lock:
            self.cut(offset)

    def to_bytes(self, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """The index file of the segment, once sealed: its log's uuid (16 bytes), base (position), stamp and `end`, the
        offset after its last record. InvalidArgumentError: another size of uuid, or an end before the last record's."""
        cdef IndexFileHeader *header
        cdef LedgerRun *runs
        cdef uint64_t data_end
        cdef int status
        if len(uuid) != 16:
            raise InvalidArgumentError(f"a log's uuid has 16 bytes, got {len(uuid)}")
        with self.lock:
            if not self.end <= end <= SEGMENT_MAX:
                raise InvalidArgumentError(f"end is from {self.end} to {SEGMENT_MAX}, got {end}")
            directory = PyBytes_FromStringAndSize(NULL, self.row_count * sizeof(LedgerRun))
            runs = <LedgerRun *>PyBytes_AS_STRING(directory)
            with nogil:
                data_end = self.directory(runs)
            made = PyBytes_FromStringAndSize(NULL, image_size(data_end))
            header = <IndexFileHeader *>PyBytes_AS_STRING(made)
            memset(header, 0, sizeof(IndexFileHeader))
            header.magic, header.version, header.min_reader = LEDGER_MAGIC, FORMAT_VERSION, FORMAT_VERSION
            memcpy(header.uuid, PyBytes_AS_STRING(uuid), 16)
            header.base, header.end, header.stamp = base, end, stamp
            header.ledgers, header.entries, header.data_end = self.row_count, self.entries_held, data_end
            with nogil:
                status = self.write(<uint8_t *>header, runs)
        if status < 0:
            raise MemoryError
        return made

    def save(self, path, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """Write `to_bytes(...)` to a new file with mode 0600, in place of any file of that name.

        Neither synced nor renamed: the caller does both before it relies on the file. Errors: those of `to_bytes`;
        OSError, then part of the file may be left.
        """
        made = self.to_bytes(uuid=uuid, base=base, stamp=stamp, end=end)
        Path(path).unlink(missing_ok=True)   # never written in place: whoever has the old file mapped keeps it whole
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(made)

    cdef int refuse(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) except -1:
        if status == INDEX_NO_MEMORY:
            raise MemoryError
        check_ids(ledger, entry)
        raise InvalidArgumentError(
            f"ledger {ledger}, entry {entry}: expected a record of {LONG_HEADER} bytes or more, a multiple of {ALIGN},"
            f" between offsets {self.end} and {SEGMENT_MAX}; found {stride} bytes at {offset}")

    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil:
        if (ledger < 0 or entry < 0 or offset < self.end or offset > SEGMENT_MAX
                or stride < LONG_HEADER or stride > SEGMENT_MAX - offset or (offset | stride) % ALIGN):
            return INDEX_REFUSED
        if self.reserve() < 0:
            return INDEX_NO_MEMORY
        self.link(ledger, entry, offset, stride)
        return INDEX_OK

    cdef int reserve(self) noexcept nogil:
        """Room for one more record, of one more ledger."""
        cdef const Node *node
        cdef uint32_t i
        if (make_room(<void **>&self.nodes, self.records, &self.node_capacity, sizeof(Node)) < 0
                or make_room(<void **>&self.rows, self.row_count, &self.row_capacity, sizeof(LedgerRow)) < 0):
            return INDEX_NO_MEMORY
        if crowded(&self.node_slots, self.entries_held):
            if widen(&self.node_slots) < 0:
                return INDEX_NO_MEMORY
            for i in range(self.records):
                node = &self.nodes[i]
                self.node_slot(node.row, node.entry)[0] = slot_for(hash_of(node.row, node.entry), i)
        if crowded(&self.row_slots, self.row_count):
            if widen(&self.row_slots) < 0:
                return INDEX_NO_MEMORY
            for i in range(self.row_count):
                self.row_slot(self.rows[i].ledger)[0] = slot_for(mix(self.rows[i].ledger), i)
        return INDEX_OK

    cdef void link(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil:
        """Append a record for which there is room."""
        cdef LedgerRow *row = self.row_for(ledger)
        cdef uint32_t at = row - self.rows
        cdef Node *node = &self.nodes[self.records]
        cdef uint32_t *slot = self.node_slot(at, entry)
        node.entry, node.row, node.previous = entry, at, row.newest
        node.place, node.stride = <uint32_t>(offset // ALIGN), <uint32_t>(stride // ALIGN)
        if slot[0] == 0:
            self.entries_held += 1
            row.entries += 1
        slot[0] = slot_for(hash_of(at, entry), self.records)
        row.unordered |= row.records > 0 and entry <= row.last
        row.first = min(row.first, entry)
        row.last = max(row.last, entry)
        row.bytes += stride
        row.records += 1
        self.records += 1
        row.newest = self.records
        self.end = offset + stride

    cdef LedgerRow *row_for(self, int64_t ledger) noexcept nogil:
        """The ledger's row, which is added when there is none."""
        cdef uint32_t *slot = self.row_slot(ledger)
        cdef LedgerRow *row
        if not slot[0]:
            row = &self.rows[self.row_count]
            memset(row, 0, sizeof(LedgerRow))
            row.ledger, row.first, row.last = ledger, INT64_MAX, -1
            slot[0] = slot_for(mix(ledger), self.row_count)
            self.row_count += 1
        return &self.rows[number_in(slot[0])]

    cdef LedgerRow *row_of(self, int64_t ledger) noexcept nogil:
        """The ledger's row, or NULL."""
        cdef uint32_t slot = self.row_slot(ledger)[0]
        return &self.rows[number_in(slot)] if slot else NULL

    cdef uint32_t *row_slot(self, int64_t ledger) noexcept nogil:
        """The slot that refers to the ledger's row, or the empty one where it belongs."""
        cdef uint64_t hash = mix(ledger)
        cdef uint32_t i = <uint32_t>hash & self.row_slots.mask
        cdef uint32_t slot = self.row_slots.slot[i]
        while slot and not (alike(slot, hash) and self.rows[number_in(slot)].ledger == ledger):
            i = (i + 1) & self.row_slots.mask
            slot = self.row_slots.slot[i]
        return &self.row_slots.slot[i]

    cdef uint32_t *node_slot(self, uint32_t row, int64_t entry) noexcept nogil:
        """The slot that refers to the entry's last copy, or the empty one where it belongs."""
        cdef uint64_t hash = hash_of(row, entry)
        cdef uint32_t i = <uint32_t>hash & self.node_slots.mask
        cdef uint32_t slot = self.node_slots.slot[i]
        while slot and not (alike(slot, hash) and self.nodes[number_in(slot)].entry == entry
                            and self.nodes[number_in(slot)].row == row):
            i = (i + 1) & self.node_slots.mask
            slot = self.node_slots.slot[i]
        return &self.node_slots.slot[i]

    cdef void cut(self, int64_t offset) noexcept nogil:
        """Keep the records that end at or below `offset`. They are linked anew, in the arrays where they are: a row's
        number is the rank of its ledger's first record, so that neither records nor kept rows move."""
        cdef uint32_t keep = self.records, i
        cdef Node node
        while keep and (<int64_t>self.nodes[keep - 1].place + self.nodes[keep - 1].stride) * ALIGN > offset:
            keep -= 1
        if keep == self.records:
            return
        memset(self.node_slots.slot, 0, (<size_t>self.node_slots.mask + 1) * sizeof(uint32_t))
        memset(self.row_slots.slot, 0, (<size_t>self.row_slots.mask + 1) * sizeof(uint32_t))
        self.records = self.row_count = self.entries_held = 0
        self.end = SEGMENT_HEADER
        for i in range(keep):
            node = self.nodes[i]
            self.link(self.rows[node.row].ledger, node.entry, <int64_t>node.place * ALIGN, <int64_t>node.stride * ALIGN)

    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs) noexcept nogil:
        """Sorted entries of [start, stop) into new memory at `pairs`; their count, or INDEX_NO_MEMORY."""
        cdef const LedgerRow *row = self.row_of(ledger)
        cdef int64_t last
        if row == NULL or stop <= max(start, row.first):
            return 0
        pairs[0] = <Pair *>malloc(row.records * sizeof(Pair))
        if pairs[0] == NULL:
            return INDEX_NO_MEMORY
        start, last = max(start, row.first), min(stop - 1, row.last)
        if last - start < row.records:
            return self.look_up(row, start, last, pairs[0])
        return self.gather(row, start, last, pairs[0])

    cdef int64_t look_up(self, const LedgerRow *row, int64_t start, int64_t last, Pair *pairs) noexcept nogil:
        """Entries of [start, last], sorted, each found by its id; their count."""
        cdef int64_t count = 0, i
        cdef uint32_t slot
        for i in range(last - start + 1):
            slot = self.node_slot(row - self.rows, start + i)[0]
            if slot:
                pairs[count].entry, pairs[count].place = start + i, self.nodes[number_in(slot)].place
                count += 1
        return count

    cdef int64_t gather(self, const LedgerRow *row, int64_t start, int64_t last, Pair *pairs) noexcept nogil:
        """Entries of [start, last], sorted, found among all of the ledger's records; their count."""
        cdef uint32_t number = row.newest
        cdef int64_t i = row.records
        cdef const Node *node
        while number:
            node = &self.nodes[number - 1]
            if start <= node.entry <= last:
                i -= 1
                pairs[i].entry, pairs[i].place = node.entry, node.place
            number = node.previous
        memmove(pairs, pairs + i, (row.records - i) * sizeof(Pair))
        return settle(pairs, row.records - i, row.unordered)

    cdef void distribute(self, Pair *pairs, uint32_t *filled) noexcept nogil:
        """All records, row after row, those of a row in log order; `filled[row]` is where its last one ends.
        One pass in the order of memory: several times faster than a walk along every row's chain."""
        cdef uint32_t i, at = 0
        cdef const Node *node
        for i in range(self.row_count):
            filled[i] = at
            at += self.rows[i].records
        for i in range(self.records):
            node = &self.nodes[i]
            at = filled[node.row]
            pairs[at].entry, pairs[at].place = node.entry, node.place
            filled[node.row] = at + 1

    cdef uint64_t directory(self, LedgerRun *runs) noexcept nogil:
        """A run for each ledger, sorted, with its place in the index file; where the last one ends."""
        cdef uint64_t end = BLOCK + self.row_count * sizeof(LedgerRun)
        cdef const LedgerRow *row
        cdef uint32_t i
        for i in range(self.row_count):
            row = &self.rows[i]
            runs[i].ledger, runs[i].first, runs[i].last, runs[i].bytes = row.ledger, row.first, row.last, row.bytes
            runs[i].entries, runs[i].words = row.entries, words_of(row.first, row.last)
        qsort(runs, self.row_count, sizeof(LedgerRun), by_ledger)
        for i in range(self.row_count):
            runs[i].run = end
            end += <uint64_t>runs[i].entries * runs[i].words * 4
        return end

    cdef int write(self, uint8_t *image, const LedgerRun *runs) noexcept nogil:
        """Directory, runs and CRCs behind a header that is filled in."""
        cdef Pair *pairs = <Pair *>malloc((<size_t>self.records + 1) * sizeof(Pair))
        cdef uint32_t *filled = <uint32_t *>malloc((<size_t>self.row_count + 1) * sizeof(uint32_t))
        cdef const LedgerRow *row
        cdef uint32_t i, at
        cdef int status = INDEX_NO_MEMORY
        if pairs != NULL and filled != NULL:
            memcpy(image + BLOCK, runs, self.row_count * sizeof(LedgerRun))
            self.distribute(pairs, filled)
            for i in range(self.row_count):
                row = self.row_of(runs[i].ledger)
                at = filled[row - self.rows] - row.records
                settle(pairs + at, row.records, row.unordered)
                write_items(<uint32_t *>(image + runs[i].run), &runs[i], pairs + at)
            seal(image)
            status = INDEX_OK
        free(pairs)
        free(filled)
        return status


cdef int ledger_index_add(LedgerIndex index, int64_t ledger, int64_t entry, int64_t offset,
                          int64_t stride) noexcept nogil:
    with index.lock:
        return index.append(ledger, entry, offset, stride)


cdef int ledger_index_add_batch(LedgerIndex index, int64_t count, const int64_t *ledgers, const int64_t *entries,
                                const int64_t *offsets, const int64_t *strides, int64_t *failed) noexcept nogil:
    cdef int64_t i, end
    cdef int status
    with index.lock:
        end = index.end
        for i in range(count):
            status = index.append(ledgers[i], entries[i], offsets[i], strides[i])
            if status < 0:
                index.cut(end)
                failed[0] = i
                return status
    return INDEX_OK


cdef int64_t ledger_index_find(LedgerIndex index, int64_t ledger, int64_t entry) noexcept nogil:
    cdef const LedgerRow *row
    cdef uint32_t slot
    with index.lock:
        row = index.row_of(ledger)
        slot = index.node_slot(row - index.rows, entry)[0] if row != NULL else 0
        return <int64_t>index.nodes[number_in(slot)].place * ALIGN if slot else INDEX_ABSENT
