"""The index of the active segment of a bookie's log: (ledger, entry) -> offset of the record.

`LedgerIndex` is in memory; `to_bytes` makes its file, which `sealed` reads once the segment is sealed. Offsets are bytes
from the beginning of the segment, header included. Of an entry that was added twice (sent again, or copied by repair;
both copies have the same bytes) the last copy counts.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport ALIGN, LONG_HEADER, SEGMENT_HEADER, SEGMENT_MAX
from pyreplog._native.ledger_log.extents cimport (
    EXTENTS_ABSENT, EXTENTS_NO_MEMORY, Extent, ExtentMap, end_of, extents_add, extents_find, extents_free,
    extents_rewind, extents_sorted, extents_until, make_room,
)
from pyreplog._native.ledger_log.index_file cimport BLOCK, begin_header, image_size, ledger_table, seal, words_of
from pyreplog._native.ledger_log.ledger_rows cimport (
    LedgerRow, Place, cut_row, end_of_record, ledgers_bytes, ledgers_find, ledgers_free, ledgers_grow, ledgers_row,
    records_below,
)
from pyreplog.errors import InvalidArgumentError


cdef int64_t list_entries(ExtentMap *map, const Place *places, uint32_t keep, uint64_t start, uint64_t stop,
                          Pair *pairs) noexcept nogil:
    """Collect the entries of [start, stop) in the first `keep` records, sorted; return their count, or INDEX_NO_MEMORY."""
    cdef uint32_t extent_count = 0, i
    cdef const Extent *extents = extents_sorted(map, &extent_count)
    cdef const Extent *extent
    cdef uint64_t entry, number
    cdef int64_t count = 0
    if extents == NULL:
        return INDEX_NO_MEMORY if map.unordered else 0
    i = extents_until(extents, extent_count, start)
    for i in range(i - (i > 0), extent_count):
        extent = &extents[i]
        if extent.entry >= stop:
            break
        for entry in range(max(start, extent.entry), min(stop, end_of(extent))):
            number = extent.number + (entry - extent.entry)
            if number >= keep:
                return count   # a map without a view: its entries increase with the records
            pairs[count].entry, pairs[count].place = entry, places[number].offset
            count += 1
    return count


cdef int sum_up(LedgerRow *row, LedgerRun *run) noexcept nogil:
    """Fill in a ledger's run, but for its place in the index file."""
    cdef uint32_t count, i
    cdef const Extent *extents = extents_sorted(&row.entries, &count)
    if extents == NULL:
        return INDEX_NO_MEMORY
    run.ledger, run.first, run.last, run.bytes = row.ledger, row.entries.first, row.entries.last, row.bytes
    run.entries, run.words = 0, words_of(run.first, run.last)
    for i in range(count):
        run.entries += extents[i].count
    return INDEX_OK


cdef int by_ledger(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const LedgerRun *>a).ledger, y = (<const LedgerRun *>b).ledger
    return (x > y) - (x < y)


cdef void write_items(uint32_t *item, const LedgerRun *run, const Place *places, const Extent *extents,
                      uint32_t count) noexcept nogil:
    cdef uint32_t i, k
    cdef uint64_t delta
    for i in range(count):
        delta = extents[i].entry - run.first
        for k in range(extents[i].count):
            item[0] = <uint32_t>(delta + k)
            if run.words == 3:
                item[1] = <uint32_t>((delta + k) >> 32)
            item[run.words - 1] = places[extents[i].number + k].offset
            item += run.words


cdef tuple columns(const Pair *pairs, int64_t count):
    import numpy
    cdef bytearray raw = bytearray(count * sizeof(Pair))
    cdef int64_t *out = <int64_t *><char *>raw
    cdef int64_t i
    for i in range(count):
        out[i], out[count + i] = pairs[i].entry, pairs[i].place * ALIGN
    both = numpy.frombuffer(raw, numpy.int64)
    return both[:count], both[count:]


cdef int check_ids(int64_t ledger, int64_t entry) except -1:
    if ledger < 0 or entry < 0:
        raise InvalidArgumentError(f"expected numbers of 0 or more, found ledger {ledger}, entry {entry}")
    return 0


cdef int hold_column(object column, Py_buffer *view) except -1:
    PyObject_GetBuffer(column, view, PyBUF_STRIDES | PyBUF_FORMAT)
    if view.ndim != 1 or view.strides[0] != sizeof(int64_t) or view.format not in (b"l", b"q"):
        PyBuffer_Release(view)
        raise InvalidArgumentError(f"a column is a contiguous array of int64, got {column!r:.80}")
    return 0


cdef class LedgerIndex:
    """`LedgerIndex()`: the index of a segment that is being written, in memory.

    Records are added in log order: `offset` (bytes, a multiple of 8) is at or after the end of the record before,
    `stride` is its length with padding. Entries of a ledger may come in any order, with gaps, and more than once. The
    index takes 8 to 10 bytes for a record, 16 to 20 for one that is not the next entry of its ledger, and about 200 for
    a ledger. If entry numbers do not only increase, a view for lookups takes up to as much again.

    Threads: any thread may call any method or C function at any time; each holds the index's own lock, and batches
    release the GIL. `to_bytes` and `remove_from` of a million records take milliseconds, for which lookups wait. The
    first lookup in a ledger after a million entries came out of order takes a tenth of a second.
    """

    def __cinit__(self):
        self.end = SEGMENT_HEADER
        if ledgers_grow(&self.table) < 0:
            raise MemoryError

    def __dealloc__(self):
        ledgers_free(&self.table)

    @property
    def count(self):
        """Number of distinct (ledger, entry) pairs."""
        cdef IndexFileHeader header
        with self.lock:
            self.sorted_runs(&header)
        return header.entries

    @property
    def memory_bytes(self):
        """Allocated memory, bytes."""
        with self.lock:
            return ledgers_bytes(&self.table)

    def add(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride):
        """Add a record. Raises InvalidArgumentError for a negative number, or a place before the end of the last record.
        """
        cdef int status
        with self.lock:
            status = self.append_one(ledger, entry, offset, stride)
        if status < 0:
            self.refuse(status, ledger, entry, offset, stride)

    def add_batch(self, ledgers, entries, offsets, strides):
        """Add many records, given as four int64 arrays of one length: all, or none if `add` would refuse one."""
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
            with nogil, self.lock:
                status = self.append_all(column, views[0].shape[0], &failed)
            if status < 0:
                self.refuse(status, column[0][failed], column[1][failed], column[2][failed], column[3][failed])
        finally:
            while held:
                held -= 1
                PyBuffer_Release(&views[held])

    def get(self, int64_t ledger, int64_t entry):
        """Return the offset of the entry's last copy; None: it is not here. Raises InvalidArgumentError."""
        check_ids(ledger, entry)
        cdef int64_t number = EXTENTS_ABSENT, place = 0
        cdef LedgerRow *row
        with self.lock:
            row = ledgers_find(&self.table, ledger)
            if row != NULL:
                number = extents_find(&row.entries, entry)
            if number >= 0:
                place = row.places[number].offset
        if number == EXTENTS_NO_MEMORY:
            raise MemoryError
        return place * ALIGN if number >= 0 else None

    def last_entry(self, int64_t ledger):
        """Return the highest entry of a ledger; None: it has no entry here."""
        cdef const LedgerRow *row
        with self.lock:
            row = ledgers_find(&self.table, ledger)
            return row.entries.last if row != NULL else None

    def share(self, int64_t ledger):
        """Return (lowest entry, highest entry, bytes, entries) of a ledger, as in `ledgers`; None: it has no entry here."""
        cdef LedgerRow *row
        cdef LedgerRun run
        cdef int status
        with self.lock:
            row = ledgers_find(&self.table, ledger)
            if row == NULL:
                return None
            status = sum_up(row, &run)
        if status < 0:
            raise MemoryError
        return run.first, run.last, run.bytes, run.entries

    def entries(self, int64_t ledger, int64_t start, int64_t stop, int64_t below=INT64_MAX):
        """Return (entries, offsets) of a ledger's entries [start, stop) as int64 arrays, ascending and distinct.

        below: leave out records at or beyond this offset.
        """
        check_ids(ledger, start)
        cdef Pair *pairs = NULL
        cdef int64_t count
        with nogil, self.lock:
            count = self.collect(ledger, start, stop, below, &pairs)
        try:
            if count < 0:
                raise MemoryError
            return columns(pairs, count)
        finally:
            free(pairs)

    def ledgers(self):
        """Return the table of the ledgers, sorted: a numpy array with the fields ledger, first and last (entry numbers),
        bytes (strides of all records, every copy counted) and entries (number of distinct entries)."""
        cdef IndexFileHeader header
        with self.lock:
            runs = self.sorted_runs(&header)
        return ledger_table(runs)

    def remove_from(self, int64_t offset):
        """Remove every record that is not wholly below `offset`, as a truncation of the segment does.

        If the last copy of an entry is removed, the copy before it counts again.
        """
        with nogil, self.lock:
            self.cut(offset)

    def to_bytes(self, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """Return the content of the index file of a sealed segment.

        uuid: of its log, 16 bytes. base: its position. stamp: its stamp. end: offset behind its last record. Raises
        InvalidArgumentError.
        """
        cdef IndexFileHeader header
        cdef uint8_t *image
        begin_header(&header, uuid, base, stamp, end)
        with self.lock:
            if not self.end <= end <= SEGMENT_MAX:
                raise InvalidArgumentError(f"end: expected {self.end} to {SEGMENT_MAX}, found {end}")
            runs = self.sorted_runs(&header)
            content = PyBytes_FromStringAndSize(NULL, image_size(header.data_end))
            image = <uint8_t *>PyBytes_AS_STRING(content)
            memcpy(image, &header, sizeof(IndexFileHeader))
            memcpy(image + BLOCK, PyBytes_AS_STRING(runs), header.ledgers * sizeof(LedgerRun))
            with nogil:
                self.write_runs(image)
                seal(image)
        return content

    cdef int refuse(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) except -1:
        if status == INDEX_NO_MEMORY:
            raise MemoryError
        check_ids(ledger, entry)
        raise InvalidArgumentError(
            f"ledger {ledger}, entry {entry}: expected a record of {LONG_HEADER} bytes or more, a multiple of {ALIGN},"
            f" between offsets {self.end} and {SEGMENT_MAX}; found {stride} bytes at {offset}")

    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, const uint32_t *strides,
                    uint32_t count) noexcept nogil:
        cdef LedgerRow *row
        cdef Place *place
        cdef int64_t end = offset
        cdef uint32_t i
        if ledger < 0 or entry < 0 or entry - 1 > INT64_MAX - count or not self.end <= offset <= SEGMENT_MAX:
            return INDEX_REFUSED
        for i in range(count):
            if strides[i] < LONG_HEADER or (offset | strides[i]) % ALIGN:
                return INDEX_REFUSED
            end += strides[i]
        if end > SEGMENT_MAX:
            return INDEX_REFUSED
        row = ledgers_row(&self.table, ledger)
        if (row == NULL
                or make_room(<void **>&row.places, row.entries.numbers + <uint64_t>count, &row.room, sizeof(Place)) < 0
                or extents_add(&row.entries, entry, count) < 0):
            return INDEX_NO_MEMORY
        self.ledgers_held += row.entries.numbers == count
        place = row.places + row.entries.numbers - count
        for i in range(count):
            place[i].offset, place[i].stride = <uint32_t>(offset // ALIGN), strides[i] // ALIGN
            offset += strides[i]
        row.bytes += end - place[0].offset * <int64_t>ALIGN
        self.end = end
        return INDEX_OK

    cdef int append_one(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil:
        cdef uint32_t size = <uint32_t>stride
        return self.append(ledger, entry, offset, &size, 1) if 0 < stride <= SEGMENT_MAX else INDEX_REFUSED

    cdef int append_all(self, const int64_t **columns, int64_t count, int64_t *failed) noexcept nogil:
        """Add the rows of `add_batch`: all, or none, and `failed` is the number of the refused row."""
        cdef int64_t end = self.end, i
        cdef int status
        for i in range(count):
            status = self.append_one(columns[0][i], columns[1][i], columns[2][i], columns[3][i])
            if status < 0:
                self.cut(end)
                failed[0] = i
                return status
        return INDEX_OK

    cdef void cut(self, int64_t offset) noexcept nogil:
        cdef uint32_t i
        cdef LedgerRow *row
        if offset >= self.end:
            return
        self.end, self.ledgers_held = SEGMENT_HEADER, 0
        for i in range(self.table.count):
            row = &self.table.rows[i]
            cut_row(row, offset)
            if row.entries.numbers:
                self.ledgers_held += 1
                self.end = max(self.end, end_of_record(row, row.entries.numbers - 1))

    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, int64_t below, Pair **pairs) noexcept nogil:
        """Collect entries of [start, stop), sorted, in new memory at `pairs`; return their count, or INDEX_NO_MEMORY."""
        cdef LedgerRow *row = ledgers_find(&self.table, ledger)
        cdef ExtentMap past
        cdef uint32_t keep
        cdef int64_t count
        if row == NULL or stop <= start or <uint64_t>start > row.entries.last:
            return 0
        keep = records_below(row, below)
        pairs[0] = <Pair *>malloc(min(<uint64_t>(stop - start), <uint64_t>keep + 1) * sizeof(Pair))
        if pairs[0] == NULL:
            return INDEX_NO_MEMORY
        if keep == row.entries.numbers or not row.entries.unordered:
            return list_entries(&row.entries, row.places, keep, start, stop, pairs[0])
        memset(&past, 0, sizeof(ExtentMap))
        count = INDEX_NO_MEMORY
        if extents_rewind(&row.entries, keep, &past) == 0:
            count = list_entries(&past, row.places, keep, start, stop, pairs[0])
        extents_free(&past)
        return count

    cdef bytes sorted_runs(self, IndexFileHeader *header):
        """Return the directory of the file, a LedgerRun for each ledger, sorted; set the counts and `data_end` of the header.
        """
        cdef int status
        runs = PyBytes_FromStringAndSize(NULL, self.ledgers_held * sizeof(LedgerRun))
        cdef LedgerRun *run = <LedgerRun *>PyBytes_AS_STRING(runs)
        with nogil:
            status = self.directory(run, header)
        if status < 0:
            raise MemoryError
        return runs

    cdef int directory(self, LedgerRun *runs, IndexFileHeader *header) noexcept nogil:
        cdef uint32_t i, count = 0
        for i in range(self.table.count):
            if self.table.rows[i].entries.numbers:
                if sum_up(&self.table.rows[i], &runs[count]) < 0:
                    return INDEX_NO_MEMORY
                count += 1
        qsort(runs, count, sizeof(LedgerRun), by_ledger)
        header.ledgers, header.entries = count, 0
        header.data_end = BLOCK + count * sizeof(LedgerRun)
        for i in range(count):
            runs[i].run = header.data_end
            header.data_end += <uint64_t>runs[i].entries * runs[i].words * 4
            header.entries += runs[i].entries
        return INDEX_OK

    cdef void write_runs(self, uint8_t *image) noexcept nogil:
        """Write the items of all ledgers behind the directory, which is in place and has just sorted them."""
        cdef const LedgerRun *runs = <const LedgerRun *>(image + BLOCK)
        cdef const Extent *extents
        cdef LedgerRow *row
        cdef uint32_t i, count = 0
        for i in range(self.ledgers_held):
            row = ledgers_find(&self.table, runs[i].ledger)
            extents = extents_sorted(&row.entries, &count)
            write_items(<uint32_t *>(image + runs[i].run), &runs[i], row.places, extents, count)
