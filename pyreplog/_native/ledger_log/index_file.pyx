"""The file of a ledger index: its header, its checksums, and its directory as a table."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport FORMAT_VERSION, crc32c
from pyreplog.errors import InvalidArgumentError


cdef int begin_header(IndexFileHeader *header, bytes uuid, int64_t base, uint32_t stamp, int64_t end) except -1:
    if len(uuid) != 16:
        raise InvalidArgumentError(f"uuid: expected 16 bytes, found {len(uuid)}")
    memset(header, 0, sizeof(IndexFileHeader))
    header.magic, header.version, header.min_reader = LEDGER_MAGIC, FORMAT_VERSION, FORMAT_VERSION
    memcpy(header.uuid, PyBytes_AS_STRING(uuid), 16)
    header.base, header.end, header.stamp = base, end, stamp
    return 0


cdef void seal(uint8_t *image) noexcept nogil:
    cdef IndexFileHeader *header = <IndexFileHeader *>image
    cdef uint64_t data_end = header.data_end, table = rounded(data_end), size = image_size(data_end), i
    cdef uint32_t *crcs = <uint32_t *>(image + table)
    memset(image + data_end, 0, size - data_end)
    for i in range(table // BLOCK - 1):
        crcs[i] = crc32c(0, image + (i + 1) * BLOCK, BLOCK)
    for i in range((size - table) // BLOCK):
        header.roots[i] = crc32c(0, image + table + i * BLOCK, BLOCK)
    header.crc = crc32c(0, image + HEADER_CRC_FROM, BLOCK - HEADER_CRC_FROM)


cdef object ledger_table(bytes runs):
    import numpy
    return numpy.frombuffer(runs, numpy.dtype({
        "names": ["ledger", "first", "last", "bytes", "entries"],
        "formats": ["<i8", "<i8", "<i8", "<u8", "<u4"],
        "offsets": [0, 8, 16, 24, 40],
        "itemsize": sizeof(LedgerRun),
    }))
