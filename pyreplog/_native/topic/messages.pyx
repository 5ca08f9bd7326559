"""Messages of a topic's entries, as numpy columns over the bytes that were read.

Threads: a batch is immutable; any thread may use it. It keeps the entries that it views, and decompressed bodies,
alive.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.number cimport PyNumber_AsSsize_t
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t

from pyreplog._native.layout cimport LongHeader, RecordHead
from pyreplog._native.log.batch cimport RecordBatch
from pyreplog._native.log.record cimport span, stride_of, value_of
from pyreplog._native.system.blocks cimport Block, int64_array, make_block
from pyreplog._native.topic.message cimport make_message
from pyreplog._native.topic.message_columns cimport (
    BYTES_BEFORE, COLUMN_DELIVER_AT, COLUMN_ENTRY_INDEX, COLUMN_EVENT_TIME, COLUMN_KEY_HASH, COLUMN_KEY_SIZE,
    COLUMN_OFFSET, COLUMN_PUBLISH_TIME, COLUMN_SEQUENCE, COLUMN_SIZE, ENTRIES_BEFORE, ENTRY_COUNT, ENTRY_FIRST,
    ENTRY_ID, ENTRY_ORIGIN_FIRST, ENTRY_ORIGIN_KEY, ENTRY_ORIGIN_PUBLISH_TIME, ENTRY_SEQUENCE, ENTRY_SIZE, Place,
    gather, gather_entries, gather_hashes, measure, pack,
)
from pyreplog._native.topic.message_entry cimport (
    MessageEntry, MessageTable, key_size, key_start, origin_of, properties_of, read_table, value_size, value_start,
)
from pyreplog._native.topic.message_iterator cimport iterate
from pyreplog._native.topic import message
from pyreplog.errors import InvalidArgumentError, WrongTypeError

globals()["Message"] = message.Message  # a cimported name is not visible to Python code

cdef int64_t RELEASE_GIL_FROM = 1 << 16   # messages
cdef int64_t RELEASE_GIL_BYTES = 1 << 18


def decode_messages(RecordBatch batch not None, *, int64_t offset, int64_t entries, int64_t size, decompress=None,
                    int64_t raw_max=INT64_MAX):
    """Return a MessageBatch of all messages of a batch of one ledger's entries, ascending.

    An entry that is no batch entry is one message. Large jobs release the GIL.

    Args:
        batch: the records of the entries.
        offset: messages of the topic before the ledger.
        entries: entries of the topic before the ledger.
        size: value bytes of the topic before the ledger.
        decompress: called with (codec, memoryview, raw size) for each compressed body; returns a bytes-like object.
            None: no body may be compressed.
        raw_max: bytes of all compressed bodies together after decompression, at most. The batch ends before the entry that
            would be too much, but has at least one entry.

    Raises:
        InvalidEntryError: an entry is malformed; the error says which one, where, what was expected and found.
        ReplogError: what `decompress` raises.
    """
    cdef MessageTable table
    cdef Block block
    cdef Place *places
    cdef Py_ssize_t i
    cdef uint32_t k
    if offset < 0 or size < 0 or not 0 <= entries <= INT64_MAX >> 1:
        raise InvalidArgumentError(f"totals before a ledger: expected 0 or more, found {offset}, {entries}, {size}")
    table = read_table(batch, offset, entries, size, decompress, raw_max)
    block = make_block(table.messages * sizeof(Place))
    places = <Place *>block.data
    for i in range(table.count):
        for k in range(table.entries[i].count):
            places[0].entry, places[0].number = <uint32_t>i, k
            places += 1
    return make_batch(table, block, <const Place *>block.data, table.messages)


cdef MessageBatch make_batch(MessageTable table, Block block, const Place *places, Py_ssize_t count):
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    batch.table, batch.block, batch.places, batch.count = table, block, places, count
    return batch


@cython.final
cdef class MessageBatch:
    """Messages, ascending by offset, as numpy columns; made by `decode_messages`.

    Columns have one item for each message, and are created when they are first read. Those named entry_… and …_before
    have one item for each entry that was read, also for entries without a message in a `select` or `slice`. Times are
    microseconds since the epoch. Iterating gives `Message`s.
    """

    def __cinit__(self):
        self.columns = {}
        self.value_total = -1

    def __init__(self):
        raise TypeError("batches of messages are made by decode_messages")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        cdef const Place *place = self.places + self.checked(index)
        return make_message(self.table, &self.table.entries[place.entry], place.number)

    cdef Py_ssize_t checked(self, index) except -1:
        cdef Py_ssize_t i = PyNumber_AsSsize_t(index, IndexError)
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"message {i} out of range({self.count})")
        return i

    def __iter__(self):
        return iterate(self.table, self.block, self.places, self.count)

    def __reduce__(self):
        raise TypeError("a MessageBatch views its entries and cannot be pickled; take its columns or values")

    cdef object column(self, int which):
        cdef Block block
        array = self.columns.get(which)
        if array is None:
            import numpy
            block = make_block(self.count * sizeof(int64_t))
            if self.count >= RELEASE_GIL_FROM:
                with nogil:
                    gather(self.table.entries, self.places, self.count, which, <int64_t *>block.data)
            else:
                gather(self.table.entries, self.places, self.count, which, <int64_t *>block.data)
            array = self.columns[which] = numpy.frombuffer(block, numpy.int64)
        return array

    cdef object entry_column(self, int which):
        cdef Block block
        array = self.columns.get(which)
        if array is None:
            import numpy
            block = make_block(self.table.count * sizeof(int64_t))
            gather_entries(self.table, which, <int64_t *>block.data)
            array = self.columns[which] = numpy.frombuffer(block, numpy.int64)
        return array

    @property
    def offset(self):
        """Offset of each message in the topic."""
        return self.column(COLUMN_OFFSET)

    @property
    def publish_time(self):
        """When each message's entry was appended in this cluster."""
        return self.column(COLUMN_PUBLISH_TIME)

    @property
    def event_time(self):
        """The time that the producer set; NO_EVENT_TIME (the smallest int64): none."""
        return self.column(COLUMN_EVENT_TIME)

    @property
    def deliver_at(self):
        """When each message may be delivered; 0: at once."""
        return self.column(COLUMN_DELIVER_AT)

    @property
    def sequence(self):
        """The producer's number for each message; -1: none."""
        return self.column(COLUMN_SEQUENCE)

    @property
    def size(self):
        """Bytes of each value."""
        return self.column(COLUMN_SIZE)

    @property
    def value_bytes(self):
        """Bytes of all values."""
        cdef Py_ssize_t i = 0, last
        cdef const MessageEntry *entry
        if self.value_total < 0:
            self.value_total = 0
            while i < self.count:
                entry = &self.table.entries[self.places[i].entry]
                last = i + entry.count - 1 - self.places[i].number  # if all other messages of the entry follow
                if last >= self.count or self.places[last].entry != self.places[i].entry:
                    last = i
                self.value_total += value_start(entry, self.places[last].number) \
                    - value_start(entry, self.places[i].number) + value_size(entry, self.places[last].number)
                i = last + 1
        return self.value_total

    @property
    def key_size(self):
        """Bytes of each key; -1: no key."""
        return self.column(COLUMN_KEY_SIZE)

    @property
    def entry_index(self):
        """int32: the index of the entry of each message."""
        cdef Block block
        cdef int32_t *out
        cdef Py_ssize_t i
        array = self.columns.get(COLUMN_ENTRY_INDEX)
        if array is None:
            import numpy
            block = make_block(self.count * sizeof(int32_t))
            out = <int32_t *>block.data
            for i in range(self.count):
                out[i] = <int32_t>self.places[i].entry
            array = self.columns[COLUMN_ENTRY_INDEX] = numpy.frombuffer(block, numpy.int32)
        return array

    def key_hash(self):
        """Return uint32: murmur3 of each key, seed 0; no key counts as an empty one."""
        cdef Block block
        array = self.columns.get(COLUMN_KEY_HASH)
        if array is None:
            import numpy
            block = make_block(self.count * sizeof(uint32_t))
            gather_hashes(self.table.entries, self.places, self.count, <uint32_t *>block.data)
            array = self.columns[COLUMN_KEY_HASH] = numpy.frombuffer(block, numpy.uint32)
        return array

    @property
    def first(self):
        """Offset of the first message; -1: there is none."""
        return self.table.entries[self.places[0].entry].first + self.places[0].number if self.count else -1

    @property
    def last(self):
        """Offset of the last message; -1: there is none."""
        cdef const Place *place = self.places + self.count - 1
        return self.table.entries[place.entry].first + place.number if self.count else -1

    @property
    def end(self):
        """Offset behind the last entry that was read, whatever was selected; without entries that of the ledger's
        start.
        """
        return self.table.end

    @property
    def ledger(self):
        """Ledger of the entries; -1: there is none."""
        return self.table.ledger

    @property
    def entries(self):
        """Number of entries that were read."""
        return self.table.count

    @property
    def first_entry(self):
        """Id of the first entry that was read; -1: there is none."""
        return (<const LongHeader *>self.table.entries[0].record).entry if self.table.count else -1

    @property
    def last_entry(self):
        """Id of the last entry that was read; -1: there is none."""
        return (<const LongHeader *>self.table.entries[self.table.count - 1].record).entry if self.table.count else -1

    @property
    def stored_bytes(self):
        """Stored value bytes of all entries that were read."""
        cdef int64_t total = 0
        cdef Py_ssize_t i
        for i in range(self.table.count):
            total += self.table.entries[i].size
        return total

    @property
    def is_whole(self):
        """Whether it has all messages of the entries that were read."""
        return self.count == self.table.messages

    @property
    def is_numbered(self):
        """Whether any entry has a producer's name and sequence numbers."""
        cdef Py_ssize_t i
        for i in range(self.table.count):
            if self.table.entries[i].producer_length and self.table.entries[i].last_sequence >= 0:
                return True
        return False

    @property
    def entry_id(self):
        """Id of each entry in the ledger."""
        return self.entry_column(ENTRY_ID)

    @property
    def entry_first(self):
        """Offset of each entry's first message."""
        return self.entry_column(ENTRY_FIRST)

    @property
    def entry_count(self):
        """Number of messages of each entry."""
        return self.entry_column(ENTRY_COUNT)

    @property
    def entry_size(self):
        """Stored value bytes of each entry."""
        return self.entry_column(ENTRY_SIZE)

    @property
    def entry_sequence(self):
        """Sequence number of each entry's last message; -1: none."""
        return self.entry_column(ENTRY_SEQUENCE)

    @property
    def entry_producer(self):
        """Name of each entry's producer, a list of bytes; empty: none."""
        cdef Py_ssize_t i
        cdef const MessageEntry *entries = self.table.entries
        return [PyBytes_FromStringAndSize(<const char *>entries[i].producer, entries[i].producer_length)
                for i in range(self.table.count)]

    @property
    def entry_origin_key(self):
        """uint64: the key of each entry's origin; 0 for entries that were published here. See `pyreplog.origins`."""
        import numpy
        return self.entry_column(ENTRY_ORIGIN_KEY).view(numpy.uint64)

    @property
    def entry_origin_first(self):
        """Offset at its origin of each entry's first message; -1 for entries that were published here."""
        return self.entry_column(ENTRY_ORIGIN_FIRST)

    @property
    def entry_origin_publish_time(self):
        """When each entry was appended at its origin; the smallest int64 for entries that were published here."""
        return self.entry_column(ENTRY_ORIGIN_PUBLISH_TIME)

    def entry_origin(self, Py_ssize_t index):
        """Return the origin attribute of the entry with an index, bytes; None: it was published here."""
        cdef int64_t length
        cdef const uint8_t *origin = origin_of(self.checked_entry(index).record, &length)
        return None if origin == NULL else PyBytes_FromStringAndSize(<const char *>origin, length)

    def entry_value(self, Py_ssize_t index):
        """Return the value of the entry with an index as it is stored, a read-only memoryview, which keeps it alive."""
        cdef const MessageEntry *entry = self.checked_entry(index)
        return span(self.table, value_of(entry.record), entry.size)

    cdef const MessageEntry *checked_entry(self, Py_ssize_t index) except NULL:
        if not 0 <= index < self.table.count:
            raise IndexError(f"entry {index} out of range({self.table.count})")
        return &self.table.entries[index]

    @property
    def entries_before(self):
        """Entries of the topic before each entry."""
        return self.entry_column(ENTRIES_BEFORE)

    @property
    def bytes_before(self):
        """Value bytes of the topic before each entry."""
        return self.entry_column(BYTES_BEFORE)

    @property
    def ledger_start(self):
        """(offset, entries, size): messages, entries and value bytes of the topic before the ledger."""
        cdef const MessageEntry *entry = self.table.entries
        if self.table.count == 0:
            return self.table.end, self.table.entries_start, self.table.bytes_start
        return (entry.first + entry.count - <int64_t>(<const LongHeader *>entry.record).ledger_messages,
                self.table.entries_start, self.table.bytes_start)

    @property
    def partition(self):
        """The partition of a partitioned topic that it comes from; -1: not known.

        The consumer sets it, for all batches and messages of the same entries.
        """
        return self.table.partition

    @partition.setter
    def partition(self, int32_t partition):
        self.table.partition = partition

    def records(self):
        """Return the entries as they were read, a list of memoryviews of whole records; each keeps all alive."""
        cdef Py_ssize_t i
        cdef const MessageEntry *entries = self.table.entries
        return [span(self.table, entries[i].record, stride_of((<const RecordHead *>entries[i].record).length))
                for i in range(self.table.count)]

    def values(self):
        """Return the values as a list of bytes, copied."""
        cdef list out = PyList_New(self.count)
        cdef Py_ssize_t i
        cdef const MessageEntry *entry
        for i in range(self.count):
            entry = &self.table.entries[self.places[i].entry]
            value = PyBytes_FromStringAndSize(<const char *>entry.values + value_start(entry, self.places[i].number),
                                              value_size(entry, self.places[i].number))
            Py_INCREF(value)
            PyList_SET_ITEM(out, i, value)
        return out

    def views(self):
        """Return the values as a list of read-only memoryviews; each keeps the entries alive."""
        cdef Py_ssize_t i
        cdef const MessageEntry *entry
        cdef list out = []
        for i in range(self.count):
            entry = &self.table.entries[self.places[i].entry]
            out.append(span(self.table, entry.values + value_start(entry, self.places[i].number),
                            value_size(entry, self.places[i].number)))
        return out

    def keys(self):
        """Return the keys as a list of bytes; None: no key."""
        cdef Py_ssize_t i
        cdef int64_t size
        cdef const MessageEntry *entry
        cdef list out = []
        for i in range(self.count):
            entry = &self.table.entries[self.places[i].entry]
            size = key_size(entry, self.places[i].number)
            out.append(None if size < 0 else PyBytes_FromStringAndSize(
                <const char *>entry.keys + key_start(entry, self.places[i].number), size))
        return out

    def packed(self, *, bint keys=False):
        """Return (offsets, data): the values (or keys) end to end in a numpy uint8 array; offsets is int64 of len + 1.
        """
        cdef Py_buffer starts, data
        cdef int64_t total
        cdef const MessageEntry *entries = self.table.entries
        import numpy
        offsets = numpy.empty(self.count + 1, numpy.int64)
        PyObject_GetBuffer(offsets, &starts, PyBUF_WRITABLE)
        total = measure(entries, self.places, self.count, keys, <int64_t *>starts.buf)
        out = numpy.empty(total, numpy.uint8)
        if total:
            PyObject_GetBuffer(out, &data, PyBUF_WRITABLE)
            if total >= RELEASE_GIL_BYTES:
                with nogil:
                    pack(entries, self.places, self.count, keys, <const int64_t *>starts.buf, <uint8_t *>data.buf)
            else:
                pack(entries, self.places, self.count, keys, <const int64_t *>starts.buf, <uint8_t *>data.buf)
            PyBuffer_Release(&data)
        PyBuffer_Release(&starts)
        return offsets, out

    def properties(self, index):
        """Return the properties of the message with an index in the batch: a dict of str to bytes."""
        cdef const Place *place = self.places + self.checked(index)
        return properties_of(&self.table.entries[place.entry], place.number)

    def select(self, indices):
        """Return a batch of some of the messages. indices: ascending integers, each from 0 to len - 1 (numpy array)."""
        cdef Py_buffer buffer
        cdef const int64_t *wanted
        cdef Py_ssize_t i, count
        cdef Place *places
        cdef Block block
        import numpy
        array = numpy.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise WrongTypeError(f"indices: expected integers of one dimension, found {array.dtype} of {array.shape}")
        PyObject_GetBuffer(int64_array(array), &buffer, PyBUF_SIMPLE)
        try:
            wanted, count = <const int64_t *>buffer.buf, buffer.len // sizeof(int64_t)
            for i in range(count):
                if not 0 <= wanted[i] < self.count:
                    raise IndexError(f"message {wanted[i]} out of range({self.count})")
                if i and wanted[i] <= wanted[i - 1]:
                    raise InvalidArgumentError(f"indices must ascend, found {wanted[i]} behind {wanted[i - 1]}")
            block = make_block(count * sizeof(Place))
            places = <Place *>block.data
            for i in range(count):
                places[i] = self.places[wanted[i]]
        finally:
            PyBuffer_Release(&buffer)
        return make_batch(self.table, block, <const Place *>block.data, count)

    def slice(self, Py_ssize_t start, Py_ssize_t stop):
        """Return the messages [start, stop) as a batch. Raises IndexError unless 0 <= start <= stop <= len."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"messages {start} to {stop} out of range({self.count})")
        return make_batch(self.table, self.block, self.places + start, stop - start)

    def __repr__(self):
        return f"MessageBatch({self.count} messages of {self.table.count} entries, up to offset {self.table.end})"
