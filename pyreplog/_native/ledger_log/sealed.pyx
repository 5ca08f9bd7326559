"""The index of a sealed segment, a sorted and mapped file: (ledger, entry) -> offset of the record. `index` writes it.

Only an intact index answers "not here" (None). Any doubt raises CorruptionError, and the caller builds the index anew
from the segment.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint16_t
from libc.stdlib cimport calloc, free, malloc
from posix.mman cimport munmap

from pyreplog._native.layout cimport ALIGN, FORMAT_VERSION, SEGMENT_HEADER, crc32c
from pyreplog._native.ledger_log.index cimport INDEX_ABSENT, INDEX_DAMAGED, INDEX_NO_MEMORY, INDEX_OK, check_ids, columns
from pyreplog._native.ledger_log.index_file cimport (
    BLOCK, DATA_MAX, HEADER_CRC_FROM, LEDGER_MAGIC, image_size, ledger_table, rounded, words_of,
)
from pyreplog._native.system.map_file cimport map_file
from pyreplog.errors import ClosedError, CorruptionError


cdef inline uint64_t item_at(const LedgerRun *run, int64_t i) noexcept nogil:
    """Return the offset in the file of item `i` of a run."""
    return run.run + <uint64_t>i * run.words * 4


cdef inline uint64_t delta_at(const uint8_t *image, const LedgerRun *run, int64_t i) noexcept nogil:
    """Return the distance of item `i` from the run's first entry. Its block must be intact."""
    cdef const uint32_t *item = <const uint32_t *>(image + item_at(run, i))
    return item[0] if run.words == 2 else item[0] | <uint64_t>item[1] << 32


cdef bint note(Damage *damage, uint64_t position, const char *subject, uint64_t expected, uint64_t actual) noexcept nogil:
    """Note a damage at `position` of the file; return False."""
    damage.position, damage.subject, damage.expected, damage.actual = position, subject, expected, actual
    return False


cdef int expect(object path, int64_t position, str subject, object expected, object actual) except -1:
    if expected != actual:
        raise CorruptionError(path, position, f"{subject} {expected}", f"{actual}")
    return 0


cdef class SealedIndex:
    """The index of a sealed segment, as a mapped file; made by `SealedIndex.open`. Close it, or use `with`.

    Opening reads only the header block. Each other block of 4 KiB is checked against its CRC-32C when a lookup reads it
    first, and trusted while the file is mapped. The file must not be truncated or written while it is open; it may be
    unlinked or replaced.

    Threads: any, at any time. A lookup of blocks outside of the page cache waits for the disk; `entries` releases the
    GIL meanwhile, the other methods do not.
    """

    def __dealloc__(self):  # runs no Python and keeps the GIL: see `Reader.locate`
        self.unmap()

    def __enter__(self):
        self.check_open()
        return self

    def __exit__(self, *exc_info):
        self.close()

    @staticmethod
    def open(path, *, bytes uuid not None, int64_t base, uint32_t stamp, int64_t end):
        """Map the index file of the segment with this log uuid, base (position), stamp and end (offset).

        Raises OSError if the file cannot be read, and CorruptionError if its header is damaged, of an unknown version, of
        another segment, or does not fit the size of the file.
        """
        cdef SealedIndex index = SealedIndex.__new__(SealedIndex)
        index.image = map_file(path, BLOCK, "a ledger index", &index.size)
        index.header = <const IndexFileHeader *>index.image
        index.adopt(path, uuid, base, stamp, end)
        return index

    def close(self):
        """Unmap the file; later calls of other methods raise ClosedError. A second call does nothing."""
        self.is_open = False
        if not self.users:
            self.unmap()

    @property
    def count(self):
        """Number of distinct (ledger, entry) pairs in the file."""
        self.check_open()
        return self.header.entries

    def get(self, int64_t ledger, int64_t entry):
        """Return the offset of an entry's record; None: it is not in this segment.

        Raises CorruptionError if that is unknown, InvalidArgumentError for a negative number, and ClosedError.
        """
        check_ids(ledger, entry)
        cdef Damage damage
        self.check_open()
        cdef int64_t offset = sealed_index_find(self, ledger, entry, &damage)
        if offset == INDEX_DAMAGED:
            raise self.error(&damage)
        return offset if offset >= 0 else None

    def last_entry(self, int64_t ledger):
        """Return the highest entry of a ledger; None: it has no entry here. Raises CorruptionError and ClosedError."""
        cdef const LedgerRun *run = NULL
        cdef Damage damage
        self.check_open()
        cdef int status = self.find_run(ledger, &run, &damage)
        if status == INDEX_DAMAGED:
            raise self.error(&damage)
        return run.last if status == INDEX_OK else None

    def entries(self, int64_t ledger, int64_t start, int64_t stop):
        """Return (entries, offsets) of a ledger's entries [start, stop) as int64 arrays, ascending.

        Raises CorruptionError, InvalidArgumentError for a negative number, and ClosedError.
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
        """Return the table of the ledgers, as `LedgerIndex.ledgers`. Raises CorruptionError and ClosedError."""
        cdef Damage damage
        self.check_open()
        size = self.header.ledgers * sizeof(LedgerRun)
        if not self.intact(BLOCK, BLOCK + size, &damage):
            raise self.error(&damage)
        return ledger_table(PyBytes_FromStringAndSize(<const char *>self.image + BLOCK, size))

    cdef int adopt(self, object path, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1:
        """Check the header, and adopt it."""
        cdef const IndexFileHeader *header = self.header
        cdef uint32_t crc = crc32c(0, self.image + HEADER_CRC_FROM, BLOCK - HEADER_CRC_FROM)
        cdef uint64_t directory_end = BLOCK + header.ledgers * sizeof(LedgerRun)
        expect(path, 0, "magic", LEDGER_MAGIC, header.magic)
        expect(path, 8, "CRC-32C of the header", header.crc, crc)
        expect(path, 14, "lowest version of a reader at most", FORMAT_VERSION,
               max(header.min_reader, <uint16_t>FORMAT_VERSION))
        expect(path, 16, "uuid of the log", uuid, bytes(header.uuid[:16]))
        expect(path, 32, "base of the segment", base, header.base)
        expect(path, 40, "end of the segment's records", end, header.end)
        expect(path, 48, "stamp of the segment", stamp, header.stamp)
        if (not directory_end <= header.data_end <= min(self.size, DATA_MAX)
                or header.entries > header.data_end // 8):
            raise CorruptionError(
                path, 52, f"runs that fit into {min(self.size, DATA_MAX)} bytes",
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
        return CorruptionError(self.path, damage.position, f"{damage.subject.decode()} {damage.expected:#x}",
                               f"{damage.actual:#x}")

    cdef bint intact(self, uint64_t start, uint64_t stop, Damage *damage) noexcept nogil:
        """Whether the blocks with bytes [start, stop) of the file are intact."""
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
        cdef uint32_t actual = crc32c(0, self.image + block * BLOCK, BLOCK)
        if actual != expected:
            return note(damage, block * BLOCK, "a block with CRC-32C", expected, actual)
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
        """Whether the run lies in the file: an intact CRC does not prove that the writer was right."""
        cdef uint64_t data = BLOCK + self.header.ledgers * sizeof(LedgerRun), end = self.header.data_end
        if (data <= run.run <= end and run.run % 4 == 0 and run.entries and 0 <= run.first <= run.last
                and run.words == words_of(run.first, run.last)
                and <uint64_t>run.entries * run.words * 4 <= end - run.run):
            return True
        return note(damage, <const uint8_t *>run - self.image, "a run of items below", end, run.run)

    cdef int64_t lower_bound(self, const LedgerRun *run, uint64_t delta, Damage *damage) noexcept nogil:
        """Return the number of the first item at or above `delta` (distance from the run's first entry), or INDEX_DAMAGED.

        Up to four guesses by interpolation, which find items of dense and evenly striped runs at once; then bisection.
        """
        cdef int64_t low = 0, high = run.entries, middle
        cdef uint64_t low_delta = 0, high_delta = <uint64_t>(run.last - run.first) + 1, middle_delta
        cdef int guesses = 4
        if delta >= high_delta:
            return high
        while low < high:   # low_delta <= delta < high_delta, whatever the items say
            if guesses:
                guesses -= 1
                middle = low + <int64_t>(<double>(delta - low_delta) * (high - low) / (high_delta - low_delta))
                middle = min(middle, high - 1)
            else:
                middle = (low + high) // 2
            if not self.intact(item_at(run, middle), item_at(run, middle + 1), damage):
                return INDEX_DAMAGED
            middle_delta = delta_at(self.image, run, middle)
            if middle_delta == delta:
                return middle
            if middle_delta < delta:
                low, low_delta = middle + 1, middle_delta + 1
            else:
                high, high_delta = middle, middle_delta
        return low

    cdef int64_t place_of(self, const LedgerRun *run, int64_t i, Damage *damage) noexcept nogil:
        """Return the place (offset / 8) in item `i` of the run, whose block is intact; INDEX_DAMAGED: it is no place."""
        cdef uint64_t at = item_at(run, i + 1) - 4
        cdef int64_t place = (<const uint32_t *>(self.image + at))[0]
        if SEGMENT_HEADER <= place * ALIGN < self.header.end:
            return place
        note(damage, at, "an offset in records that end at", self.header.end, place * ALIGN)
        return INDEX_DAMAGED

    cdef int64_t collect(self, int64_t ledger, int64_t start, int64_t stop, Pair **pairs,
                         Damage *damage) noexcept nogil:
        """Collect entries of [start, stop) in new memory at `pairs`; return their count, INDEX_DAMAGED or INDEX_NO_MEMORY.
        """
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
