"""The sparse index of one segment: one entry for each 4 KiB, and the range of event times in each 64 KiB.

It lies in memory while its segment is written; later it is mapped from a checksummed file and takes no private memory.
It can always be rebuilt from the segment. Threads: only the writer's thread notes records; lookups hold the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.mman cimport munmap

from pyreplog._native.layout cimport (
    ALIGN, FORMAT_COUNTED, FORMAT_VERSION, INDEX_BLOCK, INDEX_MAGIC, IndexHeader, PLACE_MASK, SEGMENT_HEADER, SEGMENT_MAX,
    SEGMENT_MIN, TIME_BLOCK, UNIFORM, crc32c,
)
from pyreplog._native.system.map_file cimport map_file
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidArgumentError


@cython.final
cdef class SparseIndex:
    """`SparseIndex(size)`: an empty index for a segment of `size` bytes.

    Raises InvalidArgumentError if no segment has this size.
    """

    def __cinit__(self, int64_t size):
        self.size = size
        self.boundary = SEGMENT_HEADER
        self.end = SEGMENT_HEADER

    def __init__(self, size):
        if self.blocks != NULL:
            raise InvalidArgumentError("this index was made before; make another one")
        if not SEGMENT_MIN <= self.size <= SEGMENT_MAX:
            raise InvalidArgumentError(f"size: expected {SEGMENT_MIN} to {SEGMENT_MAX} bytes, found {self.size}")
        self.capacity = self.size // INDEX_BLOCK + 2
        self.blocks = <IndexBlock *>malloc(self.capacity * sizeof(IndexBlock))
        if self.blocks == NULL:
            raise MemoryError

    def __dealloc__(self):  # runs no Python and keeps the GIL: `Reader.locate` relies on it
        if self.capacity:
            free(self.blocks)
            free(self.ranges)
        if self.image != NULL:
            munmap(<void *>self.image, self.length)

    @property
    def memory_bytes(self):
        """Bytes of private memory; 0 if the index is mapped from a file."""
        if not self.capacity:
            return 0
        return self.capacity * sizeof(IndexBlock) + (self.range_count * sizeof(TimeRange) if self.ranges else 0)

    cdef int check_notes(self, int64_t size) except -1:
        if not self.capacity or size != self.size:
            raise InvalidArgumentError(f"an index in memory of a segment of {size} bytes is needed, found one "
                                       f"{'in memory' if self.capacity else 'mapped from a file'} of {self.size}")
        return 0

    cdef void note(self, int64_t offset, int64_t stride, int64_t count, int64_t event_time) noexcept nogil:
        if offset + stride > self.boundary:
            self.open_block(offset)
            self.boundary = (offset + stride + INDEX_BLOCK - 1) & ~(<int64_t>INDEX_BLOCK - 1)
            self.run_stride = stride
            self.mixed = count != 1
        elif stride != self.run_stride or count != 1:
            self.mixed = True
        self.end = offset + stride
        self.entries += count
        if count > 1:
            self.counted = True
        if event_time != INT64_MIN:
            self.widen(offset, event_time)

    cdef void open_block(self, int64_t offset) noexcept nogil:
        if self.is_uniform():
            self.blocks[self.count - 1].place |= UNIFORM
        self.blocks[self.count].entry_delta = <uint32_t>self.entries
        self.blocks[self.count].place = <uint32_t>(offset // ALIGN)
        self.count += 1

    cdef bint is_uniform(self) noexcept nogil:
        return self.capacity and self.count and not self.mixed

    cdef void widen(self, int64_t offset, int64_t event_time) noexcept nogil:
        cdef TimeRange *met
        cdef TimeRange *ranges
        cdef int64_t i, count = self.size // TIME_BLOCK + 1
        if self.ranges == NULL:
            ranges = <TimeRange *>malloc(count * sizeof(TimeRange))
            if ranges == NULL:
                return  # lookups by event time do not find records that were not noted
            for i in range(count):
                ranges[i].low = INT64_MAX
                ranges[i].high = INT64_MIN
            self.ranges = ranges  # filled first: a lookup may run at this moment
            self.range_count = count
        met = &self.ranges[offset // TIME_BLOCK]
        if event_time < met.low:
            met.low = event_time
        if event_time > met.high:
            met.high = event_time

    cdef int64_t find(self, int64_t entry_delta, int64_t *stride, int64_t *delta) noexcept nogil:
        cdef int64_t at, place
        stride[0] = delta[0] = 0
        if not self.count:
            return SEGMENT_HEADER
        at = self.block_of(entry_delta)
        place = self.place_of(at)
        delta[0] = self.blocks[at].entry_delta
        if at + 1 < self.count:
            if self.blocks[at].place & UNIFORM:
                stride[0] = (self.place_of(at + 1) - place) // (self.blocks[at + 1].entry_delta - delta[0])
        elif self.capacity and not self.mixed:
            stride[0] = self.run_stride
        return place

    cdef int64_t place_of(self, int64_t at) noexcept nogil:
        return offset_of(self.blocks[at])

    cdef int64_t block_of(self, int64_t entry_delta) noexcept nogil:
        """Return the last block that begins at or before the entry, by one interpolation, or else by bisection."""
        cdef int64_t low = 0, high = self.count, middle
        cdef int64_t span = <int64_t>self.blocks[high - 1].entry_delta + 1
        middle = entry_delta * high // span
        if 1 <= middle < high - 2 and self.blocks[middle - 1].entry_delta <= entry_delta < self.blocks[middle + 2].entry_delta:
            low, high = middle - 1, middle + 2
        while high - low > 1:
            middle = (low + high) >> 1
            if self.blocks[middle].entry_delta <= entry_delta:
                low = middle
            else:
                high = middle
        return low

    def block(self, int64_t i):
        """Return (entry delta, offset) of block entry `i`. Raises IndexError."""
        if not 0 <= i < self.count:
            raise IndexError(i)
        return self.blocks[i].entry_delta, self.place_of(i)

    def __len__(self):
        return self.count

    def before(self, int64_t offset):
        """Return the offset of the last indexed record at or before `offset`; if there is none, of the first record."""
        cdef int64_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.place_of(middle) <= offset:
                low = middle + 1
            else:
                high = middle
        return self.place_of(low - 1) if low else SEGMENT_HEADER

    def event_time_blocks(self, int64_t low, int64_t high):
        """Return the ranges [start, stop) of offsets in which records with an event time in [low, high) may begin."""
        cdef int64_t i, start = 0, stop = 0
        cdef list spans = []
        for i in range(self.range_count):
            if self.ranges[i].low >= high or self.ranges[i].high < low:
                continue
            if stop != i * TIME_BLOCK:
                if stop:
                    spans.append((start, stop))
                start = i * TIME_BLOCK
            stop = (i + 1) * TIME_BLOCK
        if stop:
            spans.append((start, stop))
        return spans

    def to_bytes(self, bytes uuid not None, int64_t base, int64_t first_entry, uint32_t stamp,
                 int64_t time_low, int64_t time_high):
        """Return the bytes of the index file of a sealed segment (FORMAT.md). The index does not change.

        uuid: of the log. Raises InvalidArgumentError if it has not 16 bytes.
        """
        cdef IndexHeader header
        cdef int64_t count = self.count, range_count = self.range_count
        cdef int64_t blocks_bytes = count * sizeof(IndexBlock), ranges_bytes = range_count * sizeof(TimeRange)
        cdef bytes out
        cdef uint8_t *p
        if len(uuid) != 16:
            raise InvalidArgumentError(f"uuid: expected 16 bytes, found {len(uuid)}")
        out = PyBytes_FromStringAndSize(NULL, sizeof(IndexHeader) + blocks_bytes + ranges_bytes)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        memset(&header, 0, sizeof(IndexHeader))
        header.magic = INDEX_MAGIC
        header.version = header.min_reader = FORMAT_COUNTED if self.counted else FORMAT_VERSION
        memcpy(header.uuid, PyBytes_AS_STRING(uuid), 16)
        header.base, header.first_entry, header.entries = base, first_entry, self.entries
        header.end, header.stamp = <uint32_t>self.end, stamp
        header.blocks, header.ranges = <uint32_t>count, <uint32_t>range_count
        header.time_low, header.time_high = time_low, time_high
        memcpy(p + sizeof(IndexHeader), self.blocks, blocks_bytes)
        if count and self.is_uniform():  # set in the copy: the blocks may be mapped, and more records may follow
            (<IndexBlock *>(p + sizeof(IndexHeader)))[count - 1].place |= UNIFORM
        if ranges_bytes:
            memcpy(p + sizeof(IndexHeader) + blocks_bytes, self.ranges, ranges_bytes)
        header.body_crc = crc32c(0, p + sizeof(IndexHeader), blocks_bytes + ranges_bytes)
        header.crc = crc32c(0, <uint8_t *>&header + 12, sizeof(IndexHeader) - 12)
        memcpy(p, &header, sizeof(IndexHeader))
        return out

    @staticmethod
    def load(path, int64_t size, bytes uuid not None, int64_t base, int64_t first_entry, uint32_t stamp):
        """Map an index file, and return (index, time_low, time_high).

        Raises OSError if the file cannot be read, FormatVersionError, and CorruptionError if it is damaged or belongs
        to another segment. The caller then rebuilds the index from the segment.
        """
        cdef SparseIndex index = SparseIndex.__new__(SparseIndex, size)
        index.image = map_file(path, sizeof(IndexHeader), "an index", &index.length)
        times = index.adopt(path, index.image, index.length, uuid, base, first_entry, stamp)
        return index, *times

    cdef tuple adopt(self, path, const uint8_t *p, Py_ssize_t length, bytes uuid, int64_t base, int64_t first_entry,
                     uint32_t stamp):
        cdef const IndexHeader *header = <const IndexHeader *>p
        cdef const IndexBlock *blocks = <const IndexBlock *>(p + sizeof(IndexHeader))
        cdef int64_t body = length - <int64_t>sizeof(IndexHeader), i
        cdef tuple identity
        if body < 0 or header.magic != INDEX_MAGIC:
            raise CorruptionError(path, 0, "the magic of an index file", f"{bytes(p[:min(length, 8)])!r}")
        if header.crc != crc32c(0, p + 12, sizeof(IndexHeader) - 12):
            raise CorruptionError(path, 8, "an intact index header", "a wrong CRC-32C")
        if header.min_reader > FORMAT_COUNTED:
            raise FormatVersionError(path, header.min_reader, FORMAT_COUNTED)
        identity = (bytes(header.uuid[:16]), header.base, header.first_entry, header.stamp)
        if identity != (uuid, base, first_entry, stamp):
            raise CorruptionError(path, 16, f"the index of the segment at {base}", f"that of another, {identity}")
        if (body != <int64_t>header.blocks * <int64_t>sizeof(IndexBlock) + <int64_t>header.ranges * <int64_t>sizeof(TimeRange)
                or header.end > self.size or header.ranges > self.size // TIME_BLOCK + 1):
            raise CorruptionError(path, 56, f"{header.blocks} blocks and {header.ranges} ranges", f"{body} bytes")
        if header.body_crc != crc32c(0, p + sizeof(IndexHeader), body):
            raise CorruptionError(path, sizeof(IndexHeader), "intact index blocks", "a wrong CRC-32C")
        i = first_disordered(blocks, header.blocks, header.end, header.entries)
        if i >= 0:
            raise CorruptionError(
                path, sizeof(IndexHeader) + i * sizeof(IndexBlock), "block entries that ascend within the segment",
                f"{blocks[i].entry_delta} entries before offset {offset_of(blocks[i])}")
        self.blocks = <IndexBlock *>blocks
        self.count, self.range_count = header.blocks, header.ranges
        self.ranges = <TimeRange *>(p + sizeof(IndexHeader) + self.count * sizeof(IndexBlock)) if self.range_count else NULL
        self.end, self.entries, self.counted = header.end, header.entries, header.min_reader >= FORMAT_COUNTED
        return header.time_low, header.time_high


cdef int64_t first_disordered(const IndexBlock *blocks, int64_t count, int64_t end, int64_t entries) noexcept nogil:
    """Return the first block entry that does not follow the one before, or lies outside of the records; -1: all do.

    A lookup computes an address from two of them.
    """
    cdef int64_t i
    if not count:
        return -1
    if blocks[0].entry_delta or offset_of(blocks[0]) < SEGMENT_HEADER:
        return 0
    for i in range(1, count):
        if offset_of(blocks[i]) <= offset_of(blocks[i - 1]) or blocks[i].entry_delta < blocks[i - 1].entry_delta:
            return i
    return -1 if offset_of(blocks[count - 1]) < end and blocks[count - 1].entry_delta <= entries else count - 1


cdef inline int64_t offset_of(IndexBlock block) noexcept nogil:
    return <int64_t>(block.place & PLACE_MASK) * ALIGN
