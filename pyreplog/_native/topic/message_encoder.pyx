"""Encodes messages as the values of batch entries, cuts them into entries, compresses entries.

FORMAT.md, "Messages", has the bytes. Threads: any; large jobs release the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport (
    MESSAGES_CODEC_MAX, MESSAGES_DELIVER_AT, MESSAGES_EVENT_TIMES, MESSAGES_HEADER, MESSAGES_KEYS, MESSAGES_PROPERTIES,
    MESSAGES_RAW_MAX, MESSAGES_SEQUENCES, MESSAGES_VERSION, MessagesHeader, NO_KEY,
)
from pyreplog._native.log.append_arguments cimport SequenceParts, ColumnParts, Parts
from pyreplog._native.log.record cimport Part, span
from pyreplog._native.topic.message_fields cimport NAME_MAX, Int64Column, Properties
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError

cdef int64_t RELEASE_GIL_FROM = 1 << 18


# The size and layout of an entry of messages [start, stop) of a call.
ctypedef struct Plan:
    Py_ssize_t start
    Py_ssize_t stop
    int flags
    int64_t keys                  # bytes
    int64_t properties
    int64_t values
    int64_t raw_size
    int64_t body_at
    int64_t first_sequence
    int64_t last_sequence


@cython.final
cdef class Messages:
    """The messages of one call, checked: the arguments of `encode_slices`, except the sequence numbers.

    The arguments must not change before they are encoded. Raises the errors of `encode_messages`, but allows no
    messages. Threads: one at a time.

    Attributes:
        count: number of messages.
        size: bytes of keys, properties and values.
    """

    cdef Parts parts
    cdef Properties properties
    cdef Int64Column deliver_at
    cdef Int64Column sequences
    cdef bytes producer
    cdef const uint8_t *name      # the producer's
    cdef uint16_t name_length
    cdef int64_t first_sequence
    cdef readonly Py_ssize_t count
    cdef readonly int64_t size

    def __cinit__(self, values, keys=None, *, properties=None, event_times=None, deliver_at=None, producer=b""):
        self.parts = as_parts(values, keys, event_times)
        self.count, self.size = self.parts.count, self.parts.value_bytes + self.parts.key_bytes
        if not isinstance(producer, bytes):
            raise WrongTypeError(f"producer: expected bytes, found {type(producer).__name__}")
        if len(producer) > NAME_MAX:
            raise InvalidArgumentError(f"producer: at most {NAME_MAX} bytes, found {len(producer)}")
        self.producer, self.first_sequence = producer, -1
        self.name, self.name_length = <const uint8_t *>PyBytes_AS_STRING(producer), <uint16_t>len(producer)
        if properties is not None:
            self.properties = Properties(properties, self.count)
            self.size += self.properties_end(self.count - 1)
        if deliver_at is not None:
            self.deliver_at = Int64Column(deliver_at, self.count, "deliver_at", 0)
            self.check_deliver_at()

    def entries(self, runs=None, *, sequences=None, int64_t first_sequence=-1, Py_ssize_t messages_max,
                int64_t bytes_max):
        """Return (entries, number of messages of each) for the messages of runs, [(start, stop)]; None: for all.

        The other arguments are those of `encode_slices`, with one sequence for each message, whether a run has it or
        not.
        """
        cdef Py_ssize_t start, stop, end
        cdef list entries = [], counts = []
        if messages_max < 1:
            raise InvalidArgumentError(f"messages_max: expected at least 1, found {messages_max}")
        self.number(sequences, first_sequence)
        for start, end in ((0, self.count),) if runs is None else runs:
            if not 0 <= start <= end <= self.count:
                raise InvalidArgumentError(f"run: expected messages of {self.count}, found {start} to {end}")
            while start < end:
                stop = self.cut(start, end, messages_max, bytes_max)
                entries.append(self.encode(start, stop))
                counts.append(stop - start)
                start = stop
        return entries, counts

    cdef int number(self, sequences, int64_t first_sequence) except -1:
        if not self.count:
            raise InvalidArgumentError("values: expected at least one message, found none")
        if not -1 <= first_sequence <= INT64_MAX - self.count or first_sequence >= 0 and sequences is not None:
            raise InvalidArgumentError(f"first_sequence: expected -1 or, without sequences, one that leaves room for "
                                       f"{self.count} below 2**63, found {first_sequence}")
        self.sequences, self.first_sequence = None, first_sequence
        if sequences is not None:
            self.sequences = Int64Column(sequences, self.count, "sequences", None)
            self.check_sequences()
        return 0

    cdef int check_deliver_at(self) except -1:
        cdef Py_ssize_t i
        for i in range(self.deliver_at.count):
            if self.deliver_at.at[i] < 0:
                raise InvalidArgumentError(f"deliver_at: expected 0 or more, found {self.deliver_at.at[i]}")
        return 0

    cdef int check_sequences(self) except -1:
        cdef Py_ssize_t i
        cdef int64_t previous = -1
        for i in range(self.sequences.count):
            if self.sequences.at[i] <= previous:
                raise InvalidArgumentError(f"sequences: expected more than {previous} for message {i}, "
                                           f"found {self.sequences.at[i]}")
            previous = self.sequences.at[i]
        return 0

    cdef int64_t properties_end(self, Py_ssize_t i) noexcept nogil:
        return self.properties.ends[i] if i >= 0 else 0

    cdef int64_t size_of(self, Py_ssize_t i) noexcept nogil:
        """Return the bytes of key, properties and value of a message."""
        cdef const Part *part = &self.parts.parts[i]
        cdef int64_t size = part.value_length + (part.key_length if part.key_length > 0 else 0)
        if self.properties is not None:
            size += self.properties_end(i) - self.properties_end(i - 1)
        return size

    cdef Py_ssize_t cut(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t messages_max,
                        int64_t bytes_max) noexcept nogil:
        """Return the end of an entry that begins with message `start`, at most `end`; it has at least one message."""
        cdef Py_ssize_t stop = start + 1
        cdef int64_t size = self.size_of(start)
        while stop < end and stop - start < messages_max:
            size += self.size_of(stop)
            if size > bytes_max:
                break
            stop += 1
        return stop

    cdef void plan(self, Plan *plan) noexcept nogil:
        """Compute the sizes and the layout of an entry."""
        cdef Py_ssize_t i, count = plan.stop - plan.start
        cdef const Part *part
        plan.flags, plan.keys, plan.values, plan.properties = 0, 0, 0, 0
        for i in range(plan.start, plan.stop):
            part = &self.parts.parts[i]
            plan.values += part.value_length
            if part.key_length >= 0:
                plan.flags |= MESSAGES_KEYS
                plan.keys += part.key_length
            if part.event_time != INT64_MIN:
                plan.flags |= MESSAGES_EVENT_TIMES
            if self.deliver_at is not None and self.deliver_at.at[i]:
                plan.flags |= MESSAGES_DELIVER_AT
        if self.properties is not None:
            plan.properties = self.properties_end(plan.stop - 1) - self.properties_end(plan.start - 1)
            plan.flags |= MESSAGES_PROPERTIES if plan.properties else 0
        plan.first_sequence = plan.last_sequence = -1
        if self.sequences is not None:
            plan.first_sequence, plan.last_sequence = self.sequences.at[plan.start], self.sequences.at[plan.stop - 1]
            if plan.last_sequence - plan.first_sequence != count - 1:
                plan.flags |= MESSAGES_SEQUENCES
        elif self.first_sequence >= 0:
            plan.first_sequence = self.first_sequence + plan.start
            plan.last_sequence = plan.first_sequence + count - 1
        plan.body_at = aligned(MESSAGES_HEADER + self.name_length)
        plan.raw_size = columns_size(plan.flags, count) + plan.keys + plan.properties + plan.values

    cdef bytes encode(self, Py_ssize_t start, Py_ssize_t stop):
        cdef Plan plan
        cdef bytes out
        cdef uint8_t *p
        plan.start, plan.stop = start, stop
        self.plan(&plan)
        if plan.raw_size > MESSAGES_RAW_MAX:
            raise RecordTooLargeError(f"messages: at most {MESSAGES_RAW_MAX} bytes in one entry, found {plan.raw_size}")
        out = PyBytes_FromStringAndSize(NULL, plan.body_at + plan.raw_size)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        if plan.raw_size >= RELEASE_GIL_FROM:
            with nogil:
                self.write(&plan, p)
        else:
            self.write(&plan, p)
        return out

    cdef void write(self, const Plan *plan, uint8_t *out) noexcept nogil:
        cdef MessagesHeader *head = <MessagesHeader *>out
        cdef const Part *parts = self.parts.parts + plan.start
        cdef Py_ssize_t i, count = plan.stop - plan.start
        head.version, head.codec, head.flags, head.reserved = MESSAGES_VERSION, 0, <uint16_t>plan.flags, 0
        head.producer_length = self.name_length
        head.count, head.raw_size = <uint32_t>count, <uint32_t>plan.raw_size
        head.first_sequence, head.last_sequence = plan.first_sequence, plan.last_sequence
        memcpy(out + MESSAGES_HEADER, self.name, self.name_length)
        memset(out + MESSAGES_HEADER + self.name_length, 0, plan.body_at - MESSAGES_HEADER - self.name_length)
        out += plan.body_at
        cdef uint32_t *value_ends = take_u32(&out, count)
        cdef uint32_t *key_ends = take_u32(&out, count) if plan.flags & MESSAGES_KEYS else NULL
        if plan.flags & MESSAGES_EVENT_TIMES:
            for i in range(count):
                (<int64_t *>out)[i] = parts[i].event_time
            out += 8 * count
        if plan.flags & MESSAGES_SEQUENCES:
            memcpy(out, self.sequences.at + plan.start, 8 * count)
            out += 8 * count
        if plan.flags & MESSAGES_DELIVER_AT:
            memcpy(out, self.deliver_at.at + plan.start, 8 * count)
            out += 8 * count
        cdef uint32_t *property_ends = take_u32(&out, count) if plan.flags & MESSAGES_PROPERTIES else NULL
        if key_ends != NULL:
            out = write_keys(parts, count, key_ends, out)
        if property_ends != NULL:
            out = self.write_properties(plan, property_ends, out)
        write_values(parts, count, value_ends, out)

    cdef uint8_t *write_properties(self, const Plan *plan, uint32_t *ends, uint8_t *out) noexcept nogil:
        cdef int64_t start = self.properties_end(plan.start - 1)
        cdef Py_ssize_t i
        for i in range(plan.start, plan.stop):
            ends[i - plan.start] = <uint32_t>(self.properties.ends[i] - start)
        memcpy(out, self.properties.start + start, plan.properties)
        return out + plan.properties


cdef inline int64_t aligned(int64_t size) noexcept nogil:
    return (size + 7) & ~7


cdef int64_t columns_size(int flags, int64_t count) noexcept nogil:
    cdef int64_t size = aligned(4 * count)
    size += aligned(4 * count) if flags & MESSAGES_KEYS else 0
    size += 8 * count if flags & MESSAGES_EVENT_TIMES else 0
    size += 8 * count if flags & MESSAGES_SEQUENCES else 0
    size += 8 * count if flags & MESSAGES_DELIVER_AT else 0
    size += aligned(4 * count) if flags & MESSAGES_PROPERTIES else 0
    return size


cdef inline uint32_t *take_u32(uint8_t **out, Py_ssize_t count) noexcept nogil:
    """Reserve a column; its padding is zero."""
    cdef uint32_t *column = <uint32_t *>out[0]
    if count & 1:
        column[count] = 0
    out[0] += aligned(4 * count)
    return column


cdef uint8_t *write_keys(const Part *parts, Py_ssize_t count, uint32_t *ends, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t end = 0
    for i in range(count):
        if parts[i].key_length < 0:
            ends[i] = end | NO_KEY
            continue
        memcpy(out + end, parts[i].key, parts[i].key_length)
        end += <uint32_t>parts[i].key_length
        ends[i] = end
    return out + end


cdef void write_values(const Part *parts, Py_ssize_t count, uint32_t *ends, uint8_t *out) noexcept nogil:
    """Write values; those that lie end to end are copied in one go."""
    cdef Py_ssize_t i
    cdef uint32_t end = 0, copied = 0
    cdef const uint8_t *run = parts[0].value if count else NULL
    for i in range(count):
        if parts[i].value != run + (end - copied):
            if end > copied:
                memcpy(out + copied, run, end - copied)
            run, copied = parts[i].value, end
        end += <uint32_t>parts[i].value_length
        ends[i] = end
    if end > copied:
        memcpy(out + copied, run, end - copied)


cdef Parts as_parts(values, keys, event_times):
    if isinstance(values, Parts):
        if keys is not None or event_times is not None:
            raise InvalidArgumentError("values: expected keys and event times to be among the parts given")
        return values
    if is_column(values):
        return ColumnParts(values, keys, event_times)
    return SequenceParts(values, keys, event_times, None)


cdef bint is_column(values) except -1:
    """Return whether `values` is one object for all values: (offsets, data), a numpy or an Arrow array."""
    if type(values) is tuple:
        return len(values) == 2 and not isinstance(values[0], (bytes, bytearray, memoryview))
    return hasattr(values, "dtype") or hasattr(values, "buffers")


def encode_messages(values, keys=None, *, properties=None, event_times=None, deliver_at=None, sequences=None,
                    producer=b"", int64_t first_sequence=-1):
    """Return the value of a batch entry with these messages.

    Raises WrongTypeError or InvalidArgumentError; RecordTooLargeError beyond 64 MiB.

    Args:
        values: bytes-like objects, or one column: (offsets, data), a numpy or a pyarrow array, as for `append_columns`;
            or Parts.
        keys: likewise; None: no keys.
        properties: dicts of str to str or bytes, or None.
        event_times: microseconds since the epoch; None: none.
        deliver_at: microseconds since the epoch; None or 0: at once.
        sequences: ascending integers from 0 on.
        producer: name of the producer.
        first_sequence: without `sequences`, the first of consecutive numbers; -1: no numbers.
    """
    cdef Messages messages = Messages(values, keys, properties=properties, event_times=event_times,
                                      deliver_at=deliver_at, producer=producer)
    messages.number(sequences, first_sequence)
    return messages.encode(0, messages.count)


def encode_slices(values, keys=None, *, properties=None, event_times=None, deliver_at=None, sequences=None,
                  producer=b"", int64_t first_sequence=-1, Py_ssize_t messages_max, int64_t bytes_max):
    """Encode messages into several entries; return (entries, number of messages of each).

    Each entry has at most `messages_max` messages, and at most `bytes_max` bytes of keys, properties and values, or one
    message. The other arguments, and the errors, are those of `encode_messages`.
    """
    cdef Messages messages = Messages(values, keys, properties=properties, event_times=event_times,
                                      deliver_at=deliver_at, producer=producer)
    return messages.entries(
        sequences=sequences, first_sequence=first_sequence, messages_max=messages_max, bytes_max=bytes_max)


def compress_entry(bytes entry not None, int codec, compress):
    """Return an encoded entry with its body compressed, or as it is if that makes it no smaller.

    codec: 1 zstd, 2 lz4. compress: called with the body, a memoryview; returns a bytes-like object.
    """
    cdef MessagesHeader head
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(entry)
    cdef int64_t body_at, size = PyBytes_GET_SIZE(entry)
    cdef bytes packed
    if not 1 <= codec <= MESSAGES_CODEC_MAX:
        raise InvalidArgumentError(f"codec: expected 1 to {MESSAGES_CODEC_MAX}, found {codec}")
    memcpy(&head, p, min(size, <int64_t>MESSAGES_HEADER))
    body_at = aligned(MESSAGES_HEADER + head.producer_length) if size >= MESSAGES_HEADER else INT64_MAX
    if body_at > size or head.version != MESSAGES_VERSION or head.codec or head.raw_size != size - body_at:
        raise InvalidArgumentError("entry: expected a result of encode_messages, not compressed")
    packed = bytes(memoryview(compress(span(entry, p + body_at, size - body_at))))
    if body_at + len(packed) >= size:
        return entry
    head.codec = <uint8_t>codec
    return (<char *>&head)[:MESSAGES_HEADER] + entry[MESSAGES_HEADER:body_at] + packed
