"""(ledger id, entry id) -> offset of the record, for one segment of a log in which many ledgers interleave.

`LedgerIndex` is the active segment's, in memory. `SealedIndex` is a sealed segment's: a sorted file, mapped. Offsets
are bytes since the segment began, its header included. Only an intact index answers "not here" (None): whatever is in
doubt raises CorruptionError, and the caller builds the index again from the segment.

Of an entry added twice (sent again, or copied by re-replication; both copies are the same bytes) the last one wins.
"""

import contextlib
import os
import warnings

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap

from pyreplog._native.layout cimport ALIGN, FORMAT_VERSION, LONG_HEADER, SEGMENT_HEADER, SEGMENT_MAX, crc32c
from pyreplog.errors import ClosedError, CorruptionError, InvalidArgumentError

cdef uint32_t NUMBER = 0x00ffffff        # of a hash slot: number + 1
cdef uint32_t TAG = 0xff000000           # of a hash slot: bits of the hash
cdef uint32_t FIRST_SLOTS = 64
cdef uint64_t CRC_FROM_HEADER = 12       # the header's CRC leaves out what is before this
cdef uint64_t LARGEST_DATA_END = <uint64_t>ROOTS * (BLOCK // 4) * BLOCK   # what the header's roots can cover


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """SplitMix64's finalizer: every bit of `x` moves every bit of the result."""
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline uint64_t hash_of(uint32_t row, int64_t entry) noexcept nogil:
    return mix(<uint64_t>entry + <uint64_t>row * <uint64_t>0x9e3779b97f4a7c15)


cdef inline uint32_t tagged(uint64_t hash, uint32_t number) noexcept nogil:
    return (<uint32_t>(hash >> 32) & TAG) | (number + 1)


cdef inline bint crowded(const Slots *slots, uint32_t used) noexcept nogil:
    return <uint64_t>used * 10 >= (<uint64_t>slots.mask + 1) * 7


cdef int widen(Slots *slots) noexcept nogil:
    """Twice the slots (at least FIRST_SLOTS), all empty; the caller fills them again."""
    cdef uint32_t count = (slots.mask + 1) * 2 if slots.slot != NULL else FIRST_SLOTS
    cdef uint32_t *fresh = <uint32_t *>calloc(count, sizeof(uint32_t))
    if fresh == NULL:
        return INDEX_NO_MEMORY
    free(slots.slot)
    slots.slot, slots.mask = fresh, count - 1
    return INDEX_OK


cdef void *enlarged(void *items, uint32_t *capacity, size_t size) noexcept nogil:
    """`items` with room for an eighth more: realloc moves pages of large blocks and copies nothing."""
    cdef uint32_t wanted = capacity[0] + capacity[0] // 8 + 64
    cdef void *moved = realloc(items, wanted * size)
    if moved != NULL:
        capacity[0] = wanted
    return moved


cdef int by_entry(const void *a, const void *b) noexcept nogil:
    cdef const Pair *x = <const Pair *>a
    cdef const Pair *y = <const Pair *>b
    if x.entry != y.entry:
        return 1 if x.entry > y.entry else -1
    return (x.place > y.place) - (x.place < y.place)


cdef int by_ledger(const void *a, const void *b) noexcept nogil:
    cdef int64_t x = (<const LedgerRun *>a).ledger, y = (<const LedgerRun *>b).ledger
    return (x > y) - (x < y)


cdef inline uint32_t words_of(int64_t first, int64_t last) noexcept nogil:
    """u32 words of an item: the entry's distance from the first one, and the place."""
    return 2 if last - first <= <int64_t>0xffffffff else 3


cdef inline uint64_t item_at(const LedgerRun *run, int64_t i) noexcept nogil:
    """Offset in the file of item `i` of the run."""
    return run.run + <uint64_t>i * run.words * 4


cdef inline uint64_t delta_at(const uint8_t *image, const LedgerRun *run, int64_t i) noexcept nogil:
    """Distance of item `i` from the run's first entry; its block must have been found intact."""
    cdef const uint32_t *item = <const uint32_t *>(image + item_at(run, i))
    return item[0] if run.words == 2 else item[0] | <uint64_t>item[1] << 32


cdef int64_t settle(const LedgerRow *row, Pair *pairs) noexcept nogil:
    """Sort the records of a ledger, which are in log order, and keep the last copy of each entry; how many are left."""
    cdef int64_t count = 0, i
    if not row.unordered:
        return row.records
    qsort(pairs, row.records, sizeof(Pair), by_entry)
    for i in range(row.records):
        if count and pairs[count - 1].entry == pairs[i].entry:
            count -= 1
        pairs[count] = pairs[i]
        count += 1
    return count


cdef uint32_t *write_items(uint32_t *item, const LedgerRow *row, uint32_t words, Pair *pairs) noexcept nogil:
    """The run of a ledger; where the next one begins."""
    cdef int64_t count = settle(row, pairs), i
    cdef uint64_t delta
    for i in range(count):
        delta = pairs[i].entry - row.first
        item[0] = <uint32_t>delta
        if words == 3:
            item[1] = <uint32_t>(delta >> 32)
        item[words - 1] = <uint32_t>pairs[i].place
        item += words
    return item


cdef uint64_t rounded(uint64_t size) noexcept nogil:
    return (size + BLOCK - 1) // BLOCK * BLOCK


cdef uint64_t image_size(uint64_t data_end) noexcept nogil:
    """Bytes of a file whose runs end at `data_end`: header, data and CRC table, each in whole blocks."""
    return rounded(data_end) + rounded((rounded(data_end) // BLOCK - 1) * 4)


cdef void seal(uint8_t *image, uint64_t data_end) noexcept nogil:
    """Fill in the CRC table, its roots and the header's own CRC."""
    cdef IndexFileHeader *header = <IndexFileHeader *>image
    cdef uint64_t table = rounded(data_end), size = image_size(data_end), i
    cdef uint32_t *crcs = <uint32_t *>(image + table)
    memset(image + data_end, 0, size - data_end)
    for i in range(table // BLOCK - 1):
        crcs[i] = crc32c(0, image + (i + 1) * BLOCK, BLOCK)
    for i in range((size - table) // BLOCK):
        header.roots[i] = crc32c(0, image + table + i * BLOCK, BLOCK)
    header.crc = crc32c(0, image + CRC_FROM_HEADER, BLOCK - CRC_FROM_HEADER)


cdef tuple columns(const Pair *pairs, int64_t count):
    """(entry ids, offsets) as numpy int64 arrays over one new buffer."""
    import numpy
    cdef bytearray raw = PyByteArray_FromStringAndSize(NULL, 2 * count * sizeof(int64_t))
    cdef int64_t *out = <int64_t *>PyByteArray_AS_STRING(raw)
    cdef int64_t i
    for i in range(count):
        out[i] = pairs[i].entry
        out[count + i] = pairs[i].place * ALIGN
    both = numpy.frombuffer(raw, numpy.int64)
    return both[:count], both[count:]


cdef object ledger_table(bytes runs):
    """LedgerRun structures as a numpy table of what they say about ledgers."""
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


cdef int expect(object path, int64_t position, str what, object expected, object found) except -1:
    if expected != found:
        raise CorruptionError(path, position, f"{what} {expected}", f"{found}")
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
        cdef uint64_t slots
        with self.lock:
            slots = <uint64_t>self.node_slots.mask + 1 + self.row_slots.mask + 1
            return (self.node_capacity * sizeof(Node) + self.row_capacity * sizeof(LedgerRow)
                    + slots * sizeof(uint32_t))

    def add(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride):
        """Note a record. InvalidArgumentError: a negative id, or a place not after the record added before."""
        cdef int status = ledger_index_add(self, ledger, entry, offset, stride)
        if status < 0:
            raise self.refusal(status, ledger, entry, offset, stride)

    def add_batch(self, ledgers, entries, offsets, strides):
        """Note many records: four int64 arrays of one length. All of them, or none when one is refused as in `add`."""
        cdef Py_buffer views[4]
        cdef const int64_t *column[4]
        cdef int64_t failed = 0, count
        cdef int held = 0, status
        try:
            for source in (ledgers, entries, offsets, strides):
                hold_column(source, &views[held])
                column[held] = <const int64_t *>views[held].buf
                held += 1
                if views[held - 1].shape[0] != views[0].shape[0]:
                    raise InvalidArgumentError("the four columns differ in length")
            count = views[0].shape[0]
            with nogil:
                status = ledger_index_add_batch(self, count, column[0], column[1], column[2], column[3], &failed)
            if status < 0:
                raise self.refusal(status, column[0][failed], column[1][failed], column[2][failed], column[3][failed])
        finally:
            while held:
                held -= 1
                PyBuffer_Release(&views[held])

    def get(self, int64_t ledger, int64_t entry):
        """Offset of the entry's last copy; None: definitely not in this segment.

        InvalidArgumentError: a negative id.
        """
        check_ids(ledger, entry)
        cdef int64_t offset = ledger_index_find(self, ledger, entry)
        return offset if offset >= 0 else None

    def last_entry(self, int64_t ledger):
        """Highest entry id of the ledger; None: it has no entry here."""
        cdef uint32_t slot
        with self.lock:
            slot = self.row_slot(ledger)[0]
            return self.rows[(slot & NUMBER) - 1].last if slot else None

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
        cdef uint64_t data_end
        cdef int status
        if len(uuid) != 16:
            raise InvalidArgumentError(f"a log's uuid has 16 bytes, got {len(uuid)}")
        with self.lock:
            if not self.end <= end <= SEGMENT_MAX:
                raise InvalidArgumentError(f"end is from {self.end} to {SEGMENT_MAX}, got {end}")
            data_end = self.runs_end()
            made = PyBytes_FromStringAndSize(NULL, image_size(data_end))
            header = <IndexFileHeader *>PyBytes_AS_STRING(made)
            memset(header, 0, sizeof(IndexFileHeader))
            header.magic, header.version, header.min_reader = LEDGER_MAGIC, FORMAT_VERSION, FORMAT_VERSION
            memcpy(header.uuid, PyBytes_AS_STRING(uuid), 16)
            header.base, header.end, header.stamp = base, end, stamp
            header.ledgers, header.entries, header.data_end = self.row_count, self.entries_held, data_end
            with nogil:
                status = self.write(<uint8_t *>header, data_end)
        if status < 0:
            raise MemoryError
        return made

    def save(self, path, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """Write `to_bytes(...)` to a new file with mode 0600, in place of any file of that name.

        Neither synced nor renamed: the caller does both before it relies on the file. Errors: those of `to_bytes`;
        OSError, then part of the file may be left.
        """
        made = self.to_bytes(uuid=uuid, base=base, stamp=stamp, end=end)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)   # never written in place: whoever has the old file mapped keeps it whole
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(made)

    cdef object refusal(self, int status, int64_t ledger, int64_t entry, int64_t offset, int64_t stride):
        if status == INDEX_NO_MEMORY:
            return MemoryError()
        if status == INDEX_IDS:
            return InvalidArgumentError(f"ledger and entry ids are 0 or more, got ledger {ledger}, entry {entry}")
        return InvalidArgumentError(
            f"ledger {ledger}, entry {entry}: expected a record of {LONG_HEADER} bytes or more, a multiple of {ALIGN},"
            f" between offsets {self.end} and {SEGMENT_MAX}; found {stride} bytes at {offset}")

    cdef int append(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil:
        if ledger < 0 or entry < 0:
            return INDEX_IDS
        if (offset < self.end or offset > SEGMENT_MAX or stride < LONG_HEADER or stride > SEGMENT_MAX - offset
                or (offset | stride) % ALIGN):
            return INDEX_PLACE
        if self.reserve() < 0:
            return INDEX_NO_MEMORY
        self.link(ledger, entry, offset, stride)
        return INDEX_OK

    cdef int reserve(self) noexcept nogil:
        """Room for one more record, of one more ledger."""
        cdef uint32_t i
        if self.records == self.node_capacity:
            moved = enlarged(self.nodes, &self.node_capacity, sizeof(Node))
            if moved == NULL:
                return INDEX_NO_MEMORY
            self.nodes = <Node *>moved
        if self.row_count == self.row_capacity:
            moved = enlarged(self.rows, &self.row_capacity, sizeof(LedgerRow))
            if moved == NULL:
                return INDEX_NO_MEMORY
            self.rows = <LedgerRow *>moved
        if crowded(&self.node_slots, self.entries_held):
            if widen(&self.node_slots) < 0:
                return INDEX_NO_MEMORY
            for i in range(self.records):
                self.node_slot(self.nodes[i].row, self.nodes[i].entry)[0] = tagged(
                    hash_of(self.nodes[i].row, self.nodes[i].entry), i)
        if crowded(&self.row_slots, self.row_count):
            if widen(&self.row_slots) < 0:
                return INDEX_NO_MEMORY
            for i in range(self.row_count):
                self.row_slot(self.rows[i].ledger)[0] = tagged(mix(self.rows[i].ledger), i)
        return INDEX_OK

    cdef void link(self, int64_t ledger, int64_t entry, int64_t offset, int64_t stride) noexcept nogil:
        """Append a record for which there is room."""
        cdef uint32_t at = self.row_for(ledger)
        cdef LedgerRow *row = &self.rows[at]
        cdef Node *node = &self.nodes[self.records]
        cdef uint32_t *slot
        node.entry, node.row, node.previous = entry, at, row.newest
        node.place, node.stride = <uint32_t>(offset // ALIGN), <uint32_t>(stride // ALIGN)
        slot = self.node_slot(at, entry)
        if slot[0] == 0:
            self.entries_held += 1
            row.entries += 1
        slot[0] = tagged(hash_of(at, entry), self.records)
        row.unordered |= row.records > 0 and entry <= row.last
        row.first = min(row.first, entry)
        row.last = max(row.last, entry)
        row.bytes += stride
        row.records += 1
        self.records += 1
        row.newest = self.records
        self.end = offset + stride

    cdef uint32_t row_for(self, int64_t ledger) noexcept nogil:
        """Number of the ledger's row, which is added when there is none."""
        cdef uint32_t *slot = self.row_slot(ledger)
        cdef LedgerRow *row
        if slot[0]:
            return (slot[0] & NUMBER) - 1
        row = &self.rows[self.row_count]
        memset(row, 0, sizeof(LedgerRow))
        row.ledger, row.first, row.last = ledger, INT64_MAX, -1
        slot[0] = tagged(mix(ledger), self.row_count)
        self.row_count += 1
        return self.row_count - 1

    cdef uint32_t *row_slot(self, int64_t ledger) noexcept nogil:
        """The slot that refers to the ledger's row, or the empty one where it belongs."""
        cdef uint64_t hash = mix(ledger)
        cdef uint32_t tag = tagged(hash, 0) & TAG, i = <uint32_t>hash & self.row_slots.mask
        cdef uint32_t slot = self.row_slots.slot[i]
        while slot and not (slot & TAG == tag and self.rows[(slot & NUMBER) - 1].ledger == ledger):
            i = (i + 1) & self.row_slots.mask
            slot = self.row_slots.slot[i]
        return &self.row_slots.slot[i]

    cdef uint32_t *node_slot(self, uint32_t row, int64_t entry) noexcept nogil:
        """The slot that refers to the entry's last copy, or the empty one where it belongs."""
        cdef uint64_t hash = hash_of(row, entry)
        cdef uint32_t tag = tagged(hash, 0) & TAG, i = <uint32_t>hash & self.node_slots.mask
        cdef uint32_t slot = self.node_slots.slot[i]
        cdef const Node *node
        while slot:
            node = &self.nodes[(slot & NUMBER) - 1]
            if slot & TAG == tag and node.entry == entry and node.row == row:
                break
            i = (i + 1) & self.node_slots.mask
            slot = self.node_slots.slot[i]
        return &self.node_slots.slot[i]

    cdef int64_t find(self, int64_t ledger, int64_t entry) noexcept nogil:
        cdef uint32_t slot = self.row_slot(ledger)[0]
        if slot:
            slot = self.node_slot((slot & NUMBER) - 1, entry)[0]
        return <int64_t>self.nodes[(slot & NUMBER) - 1].place * ALIGN if slot else INDEX_ABSENT

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
        cdef uint32_t slot = self.row_slot(ledger)[0], at = (slot & NUMBER) - 1
        cdef const LedgerRow *row = &self.rows[at]
        cdef int64_t count = 0, found, i, final
        if not slot:
            return 0
        start, final = max(start, row.first), min(stop - 1, row.last)
        if stop <= start or final < start:
            return 0
        pairs[0] = <Pair *>malloc(row.records * sizeof(Pair))
        if pairs[0] == NULL:
            return INDEX_NO_MEMORY
        if final - start >= row.records:
            found = self.gather(row, pairs[0])
            for i in range(found):
                if start <= pairs[0][i].entry <= final:
                    pairs[0][count] = pairs[0][i]
                    count += 1
            return count
        for i in range(final - start + 1):
            slot = self.node_slot(at, start + i)[0]
            if slot:
                pairs[0][count].entry, pairs[0][count].place = start + i, self.nodes[(slot & NUMBER) - 1].place
                count += 1
        return count

    cdef int64_t gather(self, const LedgerRow *row, Pair *pairs) noexcept nogil:
        """All entries of a ledger, sorted, the last copy of each; room for `row.records` is needed."""
        cdef uint32_t number = row.newest, i = row.records
        while number:
            i -= 1
            pairs[i].entry, pairs[i].place = self.nodes[number - 1].entry, self.nodes[number - 1].place
            number = self.nodes[number - 1].previous
        return settle(row, pairs)

    cdef void distribute(self, Pair *pairs, uint32_t *filled) noexcept nogil:
        """All records, row after row, those of a row in log order; `filled[row]` is where its last one ends.

        One pass in the order of memory: several times faster than to gather every row by its chain.
        """
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

    cdef void directory(self, LedgerRun *runs) noexcept nogil:
        """A run for each ledger, sorted; `run` is the number of its row until the run has a place in a file."""
        cdef const LedgerRow *row
        cdef uint32_t i
        for i in range(self.row_count):
            row = &self.rows[i]
            runs[i].ledger, runs[i].first, runs[i].last, runs[i].bytes = row.ledger, row.first, row.last, row.bytes
            runs[i].run, runs[i].entries, runs[i].words = i, row.entries, words_of(row.first, row.last)
        qsort(runs, self.row_count, sizeof(LedgerRun), by_ledger)

    cdef uint64_t runs_end(self) noexcept nogil:
        """Where the last run ends in the index file."""
        cdef uint64_t end = BLOCK + self.row_count * sizeof(LedgerRun)
        cdef uint32_t i
        for i in range(self.row_count):
            end += <uint64_t>self.rows[i].entries * words_of(self.rows[i].first, self.rows[i].last) * 4
        return end

    cdef int write(self, uint8_t *image, uint64_t data_end) noexcept nogil:
        """Directory, runs and CRCs behind a header that is filled in."""
        cdef LedgerRun *runs = <LedgerRun *>(image + BLOCK)
        cdef uint32_t *item = <uint32_t *>(runs + self.row_count)
        cdef Pair *pairs = <Pair *>malloc((<size_t>self.records + 1) * sizeof(Pair))
        cdef uint32_t *filled = <uint32_t *>malloc((<size_t>self.row_count + 1) * sizeof(uint32_t))
        cdef const LedgerRow *row
        cdef uint32_t i, at
        if pairs == NULL or filled == NULL:
            free(pairs)
            free(filled)
            return INDEX_NO_MEMORY
        self.directory(runs)
        self.distribute(pairs, filled)
        for i in range(self.row_count):
            row = &self.rows[runs[i].run]
            at = filled[runs[i].run] - row.records
            runs[i].run = <uint8_t *>item - image
            item = write_items(item, row, runs[i].words, pairs + at)
        free(pairs)
        free(filled)
        seal(image, data_end)
        return INDEX_OK


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
    with index.lock:
        return index.find(ledger, entry)


cdef class SealedIndex:
    """The index of a sealed segment: its file, mapped. `SealedIndex.open(...)` makes one; `with` closes it.

    Opening reads the header block alone, whatever the file's size. Every other 4 KiB block is checked against its
    CRC-32C when a lookup first reads it, and trusted from then on while the file is mapped. The file must not be
    truncated or written while it is open; it may be unlinked or replaced.

    Threads: any, at any time. A lookup of blocks not in the page cache waits for the disk; `entries` lets go of the GIL
    meanwhile, the others do not.
    """

    def __dealloc__(self):
        self.unmap()

    def __del__(self):
        if self.is_open:
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=1, source=self)

    def __enter__(self):
        self.check_open()
        return self

    def __exit__(self, *exc_info):
        self.close()

    @staticmethod
    def open(path, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """Map the index of the segment with this log uuid, base (position), stamp and end (offset).

        Errors: OSError when the file cannot be read; CorruptionError when its header is damaged, of an unknown version,
        of another segment, or does not fit the file's size.
        """
        cdef SealedIndex index = SealedIndex.__new__(SealedIndex)
        index.map_file(path)
        index.adopt(path, uuid, base, stamp, end)
        return index

    def close(self):
        """Unmap the file; later calls raise ClosedError. Again: nothing happens."""
        self.is_open = False
        if not self.users:
            self.unmap()

    @property
    def count(self):
        """Distinct (ledger, entry) pairs in the file."""
        self.check_open()
        return self.header.entries

    def get(self, int64_t ledger, int64_t entry):
        """Offset of the entry's record; None: definitely not in this segment.

        Errors: CorruptionError when that cannot be told; InvalidArgumentError: a negative id; ClosedError.
        """
        check_ids(ledger, entry)
        cdef Damage damage
        self.check_open()
        cdef int64_t offset = sealed_index_find(self, ledger, entry, &damage)
        if offset == INDEX_DAMAGED:
            raise self.error(&damage)
        return offset if offset >= 0 else None

    def last_entry(self, int64_t ledger):
        """Highest entry id of the ledger; None: it has no entry here. Errors: CorruptionError, ClosedError."""
        cdef const LedgerRun *run = NULL
        cdef Damage damage
        self.check_open()
        cdef int status = self.find_run(ledger, &run, &damage)
        if status == INDEX_DAMAGED:
            raise self.error(&damage)
        return run.last if status == INDEX_OK else None

    def entries(self, int64_t ledger, int64_t start, int64_t stop):
        """(entry ids, offsets) of the ledger's entries start <= id < stop: int64 arrays, sorted by id.

        Errors: CorruptionError, InvalidArgumentError: a negative id; ClosedError.
        """
        check_ids(ledger, start)
        cdef Pair *pairs = NULL
        cdef Damage damage
        cdef int64_t count
        self.check_open()
        self.users += 1
        try:
            with nogil:
                count = self.collect(ledger, start, stop, &pairs, &damage)
            if count == INDEX_DAMAGED:
                raise self.error(&damage)
            if count == INDEX_NO_MEMORY:
                raise MemoryError
            return columns(pairs, count)
        finally:
            free(pairs)
            self.users -= 1
            if not self.is_open:   # closed by another thread meanwhile
                self.close()

    def ledgers(self):
        """Table of the ledgers, as of `LedgerIndex.ledgers`. Errors: CorruptionError, ClosedError."""
        cdef Damage damage
        self.check_open()
        size = self.header.ledgers * sizeof(LedgerRun)
        if not self.intact(BLOCK, BLOCK + size, &damage):
            raise self.error(&damage)
        return ledger_table(PyBytes_FromStringAndSize(<const char *>self.image + BLOCK, size))

    cdef int map_file(self, object path) except -1:
        cdef int descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        cdef void *mapped
        try:
            self.size = os.fstat(descriptor).st_size
            if self.size < BLOCK:
                raise CorruptionError(path, 0, f"a ledger index of at least {BLOCK} bytes", f"{self.size} bytes")
            mapped = mmap(NULL, self.size, PROT_READ, MAP_SHARED, descriptor, 0)
            if mapped == MAP_FAILED:
                raise OSError(errno, os.strerror(errno), os.fspath(path))
        finally:
            os.close(descriptor)
        self.image = <const uint8_t *>mapped
        self.header = <const IndexFileHeader *>mapped
        return 0

    cdef int adopt(self, object path, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1:
        """Take the header for true, if it is."""
        cdef const IndexFileHeader *header = self.header
        cdef uint32_t crc = crc32c(0, self.image + CRC_FROM_HEADER, BLOCK - CRC_FROM_HEADER)
        cdef uint64_t directory_end = BLOCK + header.ledgers * sizeof(LedgerRun)
        expect(path, 0, "magic", LEDGER_MAGIC, header.magic)
        expect(path, 8, "CRC-32C of the header", header.crc, crc)
        expect(path, 14, "lowest version of a reader at most", FORMAT_VERSION,
               max(header.min_reader, <uint16_t>FORMAT_VERSION))
        expect(path, 16, "uuid of the log", uuid, bytes(header.uuid[:16]))
        expect(path, 32, "base of the segment", base, header.base)
        expect(path, 40, "end of the segment's records", end, header.end)
        expect(path, 48, "stamp of the segment", stamp, header.stamp)
        if (not directory_end <= header.data_end <= min(self.size, LARGEST_DATA_END)
                or header.entries > header.data_end // 8):
            raise CorruptionError(
                path, 52, f"runs that fit into {min(self.size, LARGEST_DATA_END)} bytes",
                f"{header.ledgers} ledgers, {header.entries} entries, runs up to {header.data_end}")
        if image_size(header.data_end) != self.size:
            raise CorruptionError(path, 64, f"a file of {image_size(header.data_end)} bytes", f"{self.size} bytes")
        self.table = rounded(header.data_end)
        self.proven = <uint8_t *>calloc(self.size // BLOCK, 1)
        if self.proven == NULL:
            raise MemoryError
        self.path, self.is_open = path, True
        return 0

    cdef int check_open(self) except -1:
        if not self.is_open:
            raise ClosedError("the ledger index is not open" if self.path is None else f"{self.path} was closed")
        return 0

    cdef void unmap(self) noexcept:
        if self.image != NULL:
            munmap(<void *>self.image, self.size)
        free(self.proven)
        self.image, self.header, self.proven = NULL, NULL, NULL

    cdef object error(self, const Damage *damage):
        if damage.kind == DAMAGED_BLOCK:
            return CorruptionError(self.path, damage.position, f"a block with CRC-32C {damage.expected:#010x}",
                                   f"{damage.found:#010x}")
        if damage.kind == DAMAGED_RUN:
            return CorruptionError(self.path, damage.position, f"a run of items below {damage.expected}",
                                   f"one from {damage.found}")
        return CorruptionError(self.path, damage.position, f"an offset from {SEGMENT_HEADER} to {damage.expected}",
                               f"{damage.found}")

    cdef bint intact(self, uint64_t start, uint64_t stop, Damage *damage) noexcept nogil:
        """Whether the blocks that hold bytes [start, stop) of the file are what was written."""
        cdef uint64_t block, crc, table_block
        for block in range(start // BLOCK, (stop + BLOCK - 1) // BLOCK):
            if self.proven[block]:
                continue
            crc = self.table + (block - 1) * 4
            table_block = crc // BLOCK
            if not self.proven[table_block] and not self.check(
                    table_block, self.header.roots[table_block - self.table // BLOCK], damage):
                return False
            if not self.check(block, (<const uint32_t *>(self.image + crc))[0], damage):
                return False
        return True

    cdef bint check(self, uint64_t block, uint32_t expected, Damage *damage) noexcept nogil:
        cdef uint32_t found = crc32c(0, self.image + block * BLOCK, BLOCK)
        if found != expected:
            damage.kind, damage.position = DAMAGED_BLOCK, block * BLOCK
            damage.expected, damage.found = expected, found
            return False
        self.proven[block] = 1   # threads that race here write the same
        return True

    cdef int find_run(self, int64_t ledger, const LedgerRun **run, Damage *damage) noexcept nogil:
        cdef uint64_t low = 0, high = self.header.ledgers, middle, at
        while low < high:
            middle = (low + high) // 2
            at = BLOCK + middle * sizeof(LedgerRun)
            if not self.intact(at, at + sizeof(LedgerRun), damage):
                return INDEX_DAMAGED
            run[0] = <const LedgerRun *>(self.image + at)
            if run[0].ledger == ledger:
                return INDEX_OK if self.plausible(run[0], damage) else INDEX_DAMAGED
            if run[0].ledger < ledger:
                low = middle + 1
            else:
                high = middle
        return INDEX_ABSENT

    cdef bint plausible(self, const LedgerRun *run, Damage *damage) noexcept nogil:
        """Whether the run lies in the file: its CRC says what was written, not that the writer was right."""
        cdef uint64_t data = BLOCK + self.header.ledgers * sizeof(LedgerRun), end = self.header.data_end
        if (data <= run.run <= end and run.run % 4 == 0 and run.entries and 0 <= run.first <= run.last
                and run.words == words_of(run.first, run.last)
                and <uint64_t>run.entries * run.words * 4 <= end - run.run):
            return True
        damage.kind, damage.position = DAMAGED_RUN, <const uint8_t *>run - self.image
        damage.expected, damage.found = end, run.run
        return False

    cdef int64_t lower_bound(self, const LedgerRun *run, uint64_t delta, Damage *damage) noexcept nogil:
        """Number of the first item at or above `delta` (distance from the run's first entry), or INDEX_DAMAGED.

        A few guesses by interpolation, which hit dense and evenly striped runs at once; then bisection.
        """
        cdef int64_t low = 0, high = run.entries, middle
        cdef uint64_t low_delta = 0, high_delta = <uint64_t>(run.last - run.first) + 1, found
        cdef int guesses = 4
        while low < high:
            if guesses == 0:
                middle = (low + high) // 2
            elif delta <= low_delta:
                middle = low
            elif delta >= high_delta:
                middle = high - 1
            else:
                guesses -= 1
                middle = low + <int64_t>(<double>(delta - low_delta) * (high - low) / (high_delta - low_delta))
                middle = min(middle, high - 1)
            if not self.intact(item_at(run, middle), item_at(run, middle + 1), damage):
                return INDEX_DAMAGED
            found = delta_at(self.image, run, middle)
            if found == delta:
                return middle
            if found < delta:
                low, low_delta = middle + 1, found + 1
            else:
                high, high_delta = middle, found
        return low

    cdef int64_t place_of(self, const LedgerRun *run, int64_t i, Damage *damage) noexcept nogil:
        """Place (offset / 8) in item `i` of the run, whose block is intact; INDEX_DAMAGED when it is no place."""
        cdef uint64_t at = item_at(run, i + 1) - 4
        cdef int64_t place = (<const uint32_t *>(self.image + at))[0]
        if SEGMENT_HEADER <= place * ALIGN < self.header.end:
            return place
        damage.kind, damage.position = DAMAGED_OFFSET, at
        damage.expected, damage.found = self.header.end, place * ALIGN
        return INDEX_DAMAGED

    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs,
                         Damage *damage) noexcept nogil:
        """Entries of [start, stop) into new memory at `pairs`; their count, INDEX_DAMAGED or INDEX_NO_MEMORY."""
        cdef const LedgerRun *run = NULL
        cdef int64_t low, high, i
        cdef int status = self.find_run(ledger, &run, damage)
        if status != INDEX_OK:
            return 0 if status == INDEX_ABSENT else status
        if stop <= max(start, run.first) or start > run.last:
            return 0
        low = self.lower_bound(run, max(start, run.first) - run.first, damage)
        high = self.lower_bound(run, <uint64_t>(min(stop - 1, run.last) - run.first) + 1, damage)
        if low < 0 or high < 0 or not self.intact(item_at(run, low), item_at(run, high), damage):
            return INDEX_DAMAGED
        if high <= low:
            return 0
        pairs[0] = <Pair *>malloc((high - low) * sizeof(Pair))
        if pairs[0] == NULL:
            return INDEX_NO_MEMORY
        for i in range(low, high):
            pairs[0][i - low].entry = run.first + <int64_t>delta_at(self.image, run, i)
            pairs[0][i - low].place = self.place_of(run, i, damage)
            if pairs[0][i - low].place < 0:
                return INDEX_DAMAGED
        return high - low


cdef int64_t sealed_index_find(SealedIndex index, int64_t ledger, int64_t entry, Damage *damage) noexcept nogil:
    cdef const LedgerRun *run = NULL
    cdef int64_t i
    cdef int status = index.find_run(ledger, &run, damage)
    if status != INDEX_OK:
        return status
    if not run.first <= entry <= run.last:
        return INDEX_ABSENT
    i = index.lower_bound(run, entry - run.first, damage)
    if i < 0:
        return INDEX_DAMAGED
    if i == run.entries or delta_at(index.image, run, i) != <uint64_t>(entry - run.first):
        return INDEX_ABSENT
    i = index.place_of(run, i, damage)
    return i * ALIGN if i >= 0 else INDEX_DAMAGED
