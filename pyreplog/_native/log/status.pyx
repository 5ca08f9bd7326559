"""Status codes of the kernels, turned into exceptions. Nothing else in _native raises CorruptionError for a record."""

from libc.string cimport memcpy

cimport pyreplog._native.log.record as rec
from pyreplog._native.layout cimport (
    CRC_FROM, FORMAT_VERSION, KIND_BLANK, LONG_HEADER, LongHeader, RecordHead, SHORT_HEADER, ShortHeader, crc32c,
)
from pyreplog.errors import CorruptionError


cdef object corruption(object path, int64_t position, int64_t status, const uint8_t *p, int64_t space, uint32_t stamp):
    expected, actual = describe(status, p, space, stamp)
    return CorruptionError(path, position, expected, actual)


cdef tuple describe(int64_t status, const uint8_t *p, int64_t space, uint32_t stamp):
    cdef LongHeader ids     # a copy: an index that is wrong may lead to any byte
    cdef const RecordHead *head = &ids.head
    if status == rec.RECORD_ABSENT:
        return "a record", "zeros"
    if space < SHORT_HEADER:
        return f"a record header of {SHORT_HEADER} bytes", f"{space} bytes"
    memcpy(&ids, p, <size_t>min(space, <int64_t>LONG_HEADER))
    if status == rec.RECORD_LENGTH:
        return f"a record of at most {space} bytes", f"length {head.length}"
    if status == rec.RECORD_STAMP:
        return f"stamp {stamp:#010x} of this segment", f"{head.stamp:#010x}"
    if status == rec.RECORD_CRC:
        return f"CRC-32C {head.crc:#010x}", computed_crc(head, p, space)
    if status == rec.RECORD_KIND:
        return "a record kind from 1 to 5", f"{head.kind}"
    if status == rec.RECORD_FORM:
        return f"record version {FORMAT_VERSION} and known flags", f"form byte {head.form:#04x}"
    if status == rec.RECORD_PARTS:
        return f"key and attributes within {head.length} bytes", f"key of {head.key_length} bytes"
    if status == rec.RECORD_ENTRY:
        return "the next entry number", f"entry delta {(<const ShortHeader *>head).entry_delta}"
    if status == rec.RECORD_IDS:
        return "ids of the ledger and entries meant", f"ledger {ids.ledger}, entry {ids.entry}, LAC {ids.lac}"
    if status == rec.RECORD_BLANK:
        return "a record", "the end of the segment"
    return "an intact record", f"status {status}"


cdef str computed_crc(const RecordHead *head, const uint8_t *p, int64_t space):
    """Return the checksum that the bytes have. They may have changed since they were verified: a hole was punched."""
    cdef int64_t covered = SHORT_HEADER if head.kind == KIND_BLANK else rec.stride_of(head.length)
    if not SHORT_HEADER <= covered <= space:
        return f"length {head.length}, and that after the check"
    return f"{crc32c(head.length, p + CRC_FROM, covered - CRC_FROM):#010x}"
