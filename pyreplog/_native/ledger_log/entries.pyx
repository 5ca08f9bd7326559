"""Entries of ledgers as bytes: encoded by their writer, parsed by their receivers.

There is one encoding: frames carry the records that `encode_entries` makes, a bookie's log stores them (with its stamp
written in, see `intake`), and readers verify them. Threads: any; large jobs release the GIL.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pyreplog._native.layout cimport (
    ATTRIBUTES_MAX, FORM_ATTRIBUTES, FORM_KEY, FORM_LONG, KEY_MAX, KIND_BATCH, KIND_CONTROL, KIND_DATA, LONG_HEADER,
    LongHeader, RecordHead, SEGMENT_MAX,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.batch cimport RecordBatch, make_batch
from pyreplog._native.log.append_arguments cimport SequenceParts, get_buffer
from pyreplog._native.log.record cimport Part
from pyreplog._native.log.status cimport describe
from pyreplog._native.system.blocks cimport Block, give_block, make_block, take_block
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, RecordTooLargeError, WrongTypeError

CONTROL = LEDGERS
"""In an index, the control records of ledger L are entries of ledger L + CONTROL, numbered by their codes."""

cdef int64_t RELEASE_GIL_FROM = 1 << 18


# ---- encoding --------------------------------------------------------------------------------------------------

cdef class Entries:
    """Consecutive encoded entries of one ledger, in one buffer (`view`); made by `encode_entries`.

    first, last: entry ids. ledger_bytes, ledger_messages: the ledger's running totals, the last entry included.
    """

    def __init__(self):
        raise TypeError("entries are made by encode_entries")

    def __dealloc__(self):
        give_block(self.bytes, self.size)
        free(self.starts)

    def __len__(self):
        return self.count

    @property
    def last(self):
        return self.first + self.count - 1

    @property
    def nbytes(self):
        """Bytes of all the records."""
        return self.starts[self.count]

    @property
    def view(self):
        """The encoded records, not copied."""
        return rec.span(self, self.bytes, self.starts[self.count])

    @property
    def offsets(self):
        """uint32 offsets of the records in `view`, and where the last one ends: a view of len + 1 items."""
        return memoryview(rec.span(self, <const uint8_t *>self.starts, (self.count + 1) * 4)).cast("I")

    def totals(self, int64_t entry):
        """Return (bytes, messages) of the ledger up to and with one of these entries. Raises InvalidArgumentError."""
        cdef const LongHeader *header
        if not self.first <= entry < self.first + self.count:
            raise InvalidArgumentError(f"entry: expected {self.first} to {self.last}, found {entry}")
        header = <const LongHeader *>(self.bytes + self.starts[entry - self.first])
        return header.ledger_bytes, header.ledger_messages

    def __reduce__(self):
        raise TypeError("entries borrow native memory and cannot be pickled")


cdef void encode_long(uint8_t *dst, uint32_t length, const Part *part, uint8_t kind, int64_t time, int64_t ledger,
                      int64_t entry, int64_t lac, uint64_t ledger_bytes, uint64_t ledger_messages) noexcept nogil:
    cdef LongHeader *header = <LongHeader *>dst
    cdef uint8_t form = (FORM_LONG | (FORM_KEY if part.key_length >= 0 else 0)
                         | (FORM_ATTRIBUTES if part.attributes_length else 0))
    rec.write_head(dst, length, 0, kind, form, <uint16_t>(part.key_length if part.key_length > 0 else 0), time)
    header.ledger, header.entry, header.lac = ledger, entry, lac
    header.ledger_bytes, header.ledger_messages = ledger_bytes, ledger_messages
    rec.write_body(dst, LONG_HEADER, length, part)


def encode_entries(values, keys=None, event_times=None, *, int64_t ledger, int64_t first, int64_t lac, int64_t time,
                   uint64_t ledger_bytes=0, uint64_t ledger_messages=0, int64_t size_max=SEGMENT_MAX, messages=None,
                   attributes=None):
    """Encode values as entries first, first + 1, ... of a ledger.

    Args:
        values: value of each entry.
        keys: key of each entry or None; None: no entry has a key.
        event_times: event time of each entry, microseconds since 1970, or None; None: no entry has one.
        ledger: number of the ledger.
        first: number of the first entry.
        lac: LAC that the writer knows; -1: none.
        time: append time, microseconds since 1970.
        ledger_bytes: bytes of the ledger before these entries.
        ledger_messages: messages of the ledger before these entries.
        size_max: greatest size of one encoded record, bytes.
        messages: number of messages in each value, 1 or more: the entries are batches; None: they are data entries of
            one message each.
        attributes: encoded attributes of each entry (FORMAT.md, "Record"), bytes or None, in place of `event_times`;
            None: no entry has any.

    Returns:
        An `Entries`.

    Raises:
        WrongTypeError: an argument has the wrong type.
        InvalidArgumentError: an argument is out of range.
        RecordTooLargeError: a record is too large.
    """
    return encode(values, keys, event_times, ledger, first, lac, time, ledger_bytes, ledger_messages, size_max, messages,
                  attributes)


cdef Entries encode(values, keys, event_times, int64_t ledger, int64_t first, int64_t lac, int64_t time,
                    uint64_t ledger_bytes, uint64_t ledger_messages, int64_t size_max, messages, attributes):
    cdef SequenceParts batch = SequenceParts(values, keys, event_times, None)
    cdef tuple held = None if attributes is None else take_attributes(batch, attributes, event_times)
    cdef Entries entries = Entries.__new__(Entries)
    cdef _Counts counts = None if messages is None else _Counts(messages, batch.count, ledger_messages)
    cdef Py_ssize_t i
    cdef int64_t total = 0
    size_max = min(size_max, SEGMENT_MAX)
    if not (0 <= ledger < LEDGERS and 0 <= first <= INT64_MAX - batch.count and -1 <= lac):
        raise InvalidArgumentError(f"ledger {ledger}, entry {first}, LAC {lac}: ids are 0 or more and below 2**62, "
                                   "and -1 is no LAC")
    entries.starts = <uint32_t *>malloc((batch.count + 1) * sizeof(uint32_t))
    if entries.starts == NULL:
        raise MemoryError
    for i in range(batch.count):
        entries.starts[i] = <uint32_t>total
        total += rec.stride_of(check_part(&batch.parts[i], size_max))
        if total > <int64_t>0xffffffff:
            raise RecordTooLargeError(f"at most {0xffffffff} bytes of records in one call")
    entries.starts[batch.count] = <uint32_t>total
    entries.bytes = take_block(max(total, 1), &entries.size)
    if entries.bytes == NULL:
        raise MemoryError
    entries.ledger, entries.first, entries.count = ledger, first, batch.count
    entries.ledger_bytes, entries.ledger_messages = ledger_bytes, ledger_messages
    if total >= RELEASE_GIL_FROM:
        with nogil:
            encode_run(entries, batch.parts, counts, time, lac)
    else:
        encode_run(entries, batch.parts, counts, time, lac)
    return entries


cdef tuple take_attributes(SequenceParts batch, attributes, event_times):
    """Set the attributes of entries; return the objects that hold them."""
    cdef Py_ssize_t i
    cdef tuple items = tuple(attributes)
    if event_times is not None:
        raise InvalidArgumentError("attributes: expected none beside event times, which are attributes")
    if len(items) != batch.count:
        raise InvalidArgumentError(f"attributes: expected {batch.count}, one per value, found {len(items)}")
    for i in range(batch.count):
        if items[i] is None:
            continue
        if type(items[i]) is not bytes:
            raise WrongTypeError(f"attributes: expected bytes, found {type(items[i]).__name__}")
        batch.parts[i].attributes = <const uint8_t *>PyBytes_AS_STRING(items[i])
        batch.parts[i].attributes_length = len(items[i])
        if not are_attributes(batch.parts[i].attributes, batch.parts[i].attributes_length):
            raise InvalidArgumentError(f"attributes: expected tag, length and value of each, ascending by tag, found {items[i]!r}")
    return items


cdef bint are_attributes(const uint8_t *p, Py_ssize_t length) noexcept nogil:
    """Return whether bytes are attributes, ascending by tag."""
    cdef Py_ssize_t at = 0
    cdef int last = 0
    cdef uint16_t size
    while at < length:
        if length - at < 3 or p[at] < last:
            return False
        last = p[at]
        memcpy(&size, p + at + 1, 2)
        at += 3 + size
    return at == length


cdef class _Counts:
    """The number of messages in each entry."""

    cdef int64_t *at

    def __cinit__(self, messages, Py_ssize_t count, uint64_t ledger_messages):
        cdef Py_ssize_t i = 0
        cdef int64_t room = INT64_MAX - <int64_t>min(ledger_messages, <uint64_t>INT64_MAX)
        if not hasattr(messages, "__iter__"):
            raise WrongTypeError(f"messages: expected integers, found {type(messages).__name__}")
        cdef tuple items = tuple(messages)
        if len(items) != count:
            raise InvalidArgumentError(f"messages: expected {count}, one per value, found {len(items)}")
        self.at = <int64_t *>malloc(max(count, 1) * sizeof(int64_t))
        if self.at == NULL:
            raise MemoryError
        for i in range(count):
            if isinstance(items[i], bool) or not hasattr(items[i], "__index__"):
                raise WrongTypeError(f"messages: expected integers, found {type(items[i]).__name__}")
            if not 1 <= items[i] <= room:
                raise InvalidArgumentError(f"messages: expected 1 or more, below 2**63 in all, found {items[i]}")
            self.at[i] = items[i]
            room -= self.at[i]

    def __dealloc__(self):
        free(self.at)


cdef int64_t check_part(const Part *part, int64_t size_max) except -1:
    """Return the length of the part's record. Raises RecordTooLargeError."""
    cdef int64_t length = rec.part_length(part, LONG_HEADER)
    if part.key_length > KEY_MAX:
        raise RecordTooLargeError(f"key: at most {KEY_MAX} bytes, found {part.key_length}")
    if part.attributes_length > ATTRIBUTES_MAX:
        raise RecordTooLargeError(f"attributes: at most {ATTRIBUTES_MAX} bytes, found {part.attributes_length}")
    if rec.stride_of(length) > size_max:
        raise RecordTooLargeError(f"entry: at most {size_max} bytes encoded, found {rec.stride_of(length)}")
    return length


cdef void encode_run(Entries entries, const Part *parts, _Counts counts, int64_t time, int64_t lac) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint8_t kind = KIND_DATA if counts is None else KIND_BATCH
    for i in range(entries.count):
        entries.ledger_bytes += <uint64_t>parts[i].value_length
        entries.ledger_messages += <uint64_t>(1 if counts is None else counts.at[i])
        encode_long(entries.bytes + entries.starts[i], <uint32_t>rec.part_length(&parts[i], LONG_HEADER), &parts[i],
                    kind, time, entries.ledger, entries.first + i, lac, entries.ledger_bytes, entries.ledger_messages)


def encode_control(int64_t ledger, int64_t code, value, *, int64_t lac, int64_t time):
    """Encode a control record of a ledger; `code` is its kind, and the newest record of a kind counts.

    Arguments and errors are those of `encode_entries`.
    """
    cdef Py_buffer buffer
    cdef Part part
    cdef int64_t length
    cdef bytes out
    if not (0 <= ledger < LEDGERS and 0 <= code < INT64_MAX and -1 <= lac):
        raise InvalidArgumentError(f"ledger {ledger}, code {code}, LAC {lac}: ids are 0 or more and below 2**62, "
                                   "and -1 is no LAC")
    get_buffer(value, &buffer, "value")
    try:
        part.key, part.attributes, part.value = NULL, NULL, <const uint8_t *>buffer.buf
        part.key_length, part.attributes_length, part.value_length = -1, 0, buffer.len
        length = check_part(&part, SEGMENT_MAX)
        out = PyBytes_FromStringAndSize(NULL, rec.stride_of(length))
        encode_long(<uint8_t *>PyBytes_AS_STRING(out), length, &part, KIND_CONTROL, time, ledger, code, lac, 0, 0)
    finally:
        PyBuffer_Release(&buffer)
    return out


# ---- parsing ---------------------------------------------------------------------------------------------------

cdef int64_t check_entry(const uint8_t *p, int64_t space) noexcept nogil:
    cdef int64_t stride
    if space < LONG_HEADER:
        return rec.RECORD_LENGTH
    stride = rec.check_record(p, space, (<const rec.RecordHead *>p).stamp)
    if stride == rec.RECORD_BLANK:
        return rec.RECORD_KIND
    return stride if stride < 0 else check_ids(p, stride)


cdef int refuse(const uint8_t *p, int64_t offset, int64_t length, int64_t fault) except -1:
    """Raise the error of a bad record; reads a copy of its header, because the bytes may change meanwhile."""
    cdef int64_t space = length - offset, stride
    cdef bytes kept
    cdef const LongHeader *header
    if space < LONG_HEADER:
        raise InvalidRecordsError(offset, f"a record of at least {LONG_HEADER} bytes", f"{space} bytes")
    stride = rec.stride_of((<const LongHeader *>(p + offset)).head.length)
    kept = PyBytes_FromStringAndSize(<const char *>p + offset, min(space, max(stride, LONG_HEADER)))
    header = <const LongHeader *>PyBytes_AS_STRING(kept)
    if header.head.length < LONG_HEADER:
        raise InvalidRecordsError(offset, f"a record of at least {LONG_HEADER} bytes", f"length {header.head.length}")
    if rec.stride_of(header.head.length) > len(kept):
        fault = rec.RECORD_LENGTH
    expected, actual = describe(fault, <const uint8_t *>header, len(kept), 0)
    raise InvalidRecordsError(offset, expected, actual)


def parse_entries(data, *, int64_t ledger, int64_t first, int64_t last):
    """Parse and verify encoded records of a peer: entries of `ledger`, ascending, from `first` to `last`.

    Returns a RecordBatch, which refers to `data`; do not change `data`. A bad record ends the batch before it, and
    `next_position` is its offset. Raises InvalidRecordsError if the first record is bad. The GIL is released.
    """
    cdef Py_buffer buffer
    cdef int64_t at = 0, stride = 0, count = 0, length
    cdef uint32_t *offsets
    cdef const uint8_t *p
    get_buffer(data, &buffer, "records")
    p, length = <const uint8_t *>buffer.buf, buffer.len
    view = memoryview(data)  # keeps it exported
    PyBuffer_Release(&buffer)
    if length > <int64_t>0xffffffff:
        raise InvalidArgumentError(f"records: at most {0xffffffff} bytes, found {length}")
    offsets = <uint32_t *>malloc(2 * (length // LONG_HEADER + 1) * sizeof(uint32_t))
    if offsets == NULL:
        raise MemoryError
    with nogil:
        while at < length:
            stride = check_entry(p + at, length - at)
            if stride > 0 and not is_wanted(p + at, ledger, first, last):
                stride = rec.RECORD_IDS
            if stride < 0:
                break
            first = (<const LongHeader *>(p + at)).entry + 1
            offsets[count] = <uint32_t>at
            count += 1
            at += stride
        stride = 0 if stride > 0 else stride
        offsets = fit_columns(offsets, count, p)
    if stride < 0 and count == 0:
        free(offsets)
        refuse(p, at, length, stride)
    return make_batch(view, p, 0, -1, offsets, offsets + count, count, False, at)


cdef inline bint is_wanted(const uint8_t *p, int64_t ledger, int64_t first, int64_t last) noexcept nogil:
    cdef const LongHeader *header = <const LongHeader *>p
    return header.ledger == ledger and first <= header.entry <= last and header.head.kind != KIND_CONTROL


cdef uint32_t *fit_columns(uint32_t *offsets, int64_t count, const uint8_t *p) noexcept nogil:
    """Value sizes behind the offsets."""
    cdef int64_t i
    for i in range(count):
        offsets[count + i] = <uint32_t>rec.value_length_of(p + offsets[i])
    return offsets


cdef inline bint is_readable(const LongHeader *header, int64_t space) noexcept nogil:
    """Whether a record of the long form, its parts and the next record lie where its header says. Its CRC is not checked."""
    cdef int64_t stride = rec.stride_of(header.head.length)
    return (header.head.form & FORM_LONG and header.head.length >= LONG_HEADER and stride <= space
            and rec.check_form(<const uint8_t *>header, stride) > 0)


cdef class _Buffers:
    """Buffers of encoded records that are merged."""

    cdef Py_buffer *views
    cdef int64_t *at              # offset of the next record of each
    cdef Py_ssize_t count

    def __cinit__(self, list parts not None):
        cdef Py_ssize_t i, wanted = max(len(parts), 1)
        self.views = <Py_buffer *>malloc(wanted * sizeof(Py_buffer))
        self.at = <int64_t *>malloc(wanted * sizeof(int64_t))
        if self.views == NULL or self.at == NULL:
            raise MemoryError
        for i in range(len(parts)):
            get_buffer(parts[i], &self.views[i], "records")
            self.at[i] = 0
            self.count += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])
        free(self.views)
        free(self.at)

    cdef int64_t size(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef int64_t total = 0
        for i in range(self.count):
            total += self.views[i].len
        return total

    cdef const uint8_t *lowest(self) noexcept nogil:
        """Return the lowest address of the buffers if offsets of 32 bits from there reach all of them; else NULL."""
        cdef Py_ssize_t i
        cdef const uint8_t *low = NULL
        cdef const uint8_t *end = NULL
        cdef const uint8_t *p
        for i in range(self.count):
            if self.views[i].len == 0:
                continue
            p = <const uint8_t *>self.views[i].buf
            low = p if low == NULL or p < low else low
            end = p + self.views[i].len if p + self.views[i].len > end else end
        return low if end - low <= <int64_t>0xffffffff else NULL

    cdef const LongHeader *take(self) noexcept nogil:
        """Take the record with the lowest entry, of equal ones that of the first buffer; NULL: there are no more."""
        cdef Py_ssize_t i, best = -1
        cdef const LongHeader *header
        cdef const LongHeader *lowest = NULL
        for i in range(self.count):
            if self.at[i] + LONG_HEADER > self.views[i].len:
                continue
            header = <const LongHeader *>(<const uint8_t *>self.views[i].buf + self.at[i])
            if not is_readable(header, self.views[i].len - self.at[i]):
                continue
            if lowest == NULL or header.entry < lowest.entry:
                lowest = header
                best = i
        if lowest != NULL:
            self.at[best] += rec.stride_of(lowest.head.length)
        return lowest


def merge_entries(list parts not None, *, int64_t last):
    """Merge the entries up to `last` of several buffers into one RecordBatch, ascending. The GIL is released.

    The batch refers to the buffers if they lie within 4 GiB; do not change them. Else the records are copied.

    parts: buffers of encoded records, each ascending and verified by `parse_entries`. Of an entry that is in several
    buffers, the first buffer's record counts.
    """
    cdef _Buffers buffers = _Buffers(parts)
    cdef int64_t total = buffers.size(), at = 0, count = 0, stride, previous = -1
    cdef uint8_t *p = <uint8_t *>buffers.lowest()
    cdef bint copied = p == NULL
    cdef Block copy = None
    cdef RecordBatch batch
    cdef const LongHeader *header
    cdef uint32_t *offsets = <uint32_t *>malloc(2 * (total // LONG_HEADER + 1) * sizeof(uint32_t))
    if offsets == NULL:
        raise MemoryError
    if copied:
        copy = make_block(total)
        p = copy.data
    with nogil:
        header = buffers.take()
        while header != NULL and header.entry <= last:
            stride = rec.stride_of(header.head.length)
            if header.entry != previous and at + stride <= total:
                if copied:
                    memcpy(p + at, header, stride)
                offsets[count] = <uint32_t>(at if copied else <const uint8_t *>header - p)
                count += 1
                at += stride
                previous = header.entry
            header = buffers.take()
        offsets = fit_columns(offsets, count, p)
    batch = make_batch(memoryview(copy) if copied else buffers, p, 0, -1, offsets, offsets + count, count, False, at)
    batch.scattered = not copied and len(parts) > 1
    return batch


# ---- comparing -------------------------------------------------------------------------------------------------

cdef int64_t stride_at(const uint8_t *p, int64_t space) noexcept nogil:
    """Return the stride of a record of the long form, or -1 if it does not fit."""
    cdef int64_t stride
    if space < LONG_HEADER:
        return -1
    stride = rec.stride_of((<const LongHeader *>p).head.length)
    return stride if LONG_HEADER <= stride <= space else -1


cdef bint is_equal(const uint8_t *p, const uint8_t *q, int64_t stride) noexcept nogil:
    """Whether two records are equal but for their stamps, which the log writes."""
    cdef LongHeader head = (<const LongHeader *>p)[0]
    head.head.stamp = (<const LongHeader *>q).head.stamp
    return not memcmp(&head, q, LONG_HEADER) and not memcmp(p + LONG_HEADER, q + LONG_HEADER, stride - LONG_HEADER)


cdef int64_t compare(const uint8_t *p, int64_t length, const uint8_t *q, int64_t other_length,
                     int64_t *differs) noexcept nogil:
    cdef int64_t at = 0, other_at = 0, count = 0, stride, other
    while at < length and other_at < other_length:
        stride, other = stride_at(p + at, length - at), stride_at(q + other_at, other_length - other_at)
        if stride < 0 or other < 0:
            break
        if (<const LongHeader *>(p + at)).entry > (<const LongHeader *>(q + other_at)).entry:
            other_at += other
            continue
        if (<const LongHeader *>(p + at)).entry == (<const LongHeader *>(q + other_at)).entry:
            if stride != other or not is_equal(p + at, q + other_at, stride):
                differs[0] = at
                break
            count += 1
        at += stride
    return count


def compare_entries(records, stored):
    """Compare encoded entries with stored ones. The GIL is released.

    Args:
        records: entries, ascending, verified by `parse_entries`.
        stored: stored entries of the same ledger, ascending and verified. Their stamps do not matter.

    Returns:
        How many of the records are stored with equal bytes, and the offset of the first one in whose place another
        record is stored, -1 if there is none. Records behind that one are not compared.
    """
    cdef Py_buffer given, other
    cdef int64_t count, differs = -1
    get_buffer(records, &given, "records")
    try:
        get_buffer(stored, &other, "stored")
        try:
            with nogil:
                count = compare(<const uint8_t *>given.buf, given.len, <const uint8_t *>other.buf, other.len, &differs)
            return count, differs
        finally:
            PyBuffer_Release(&other)
    finally:
        PyBuffer_Release(&given)
