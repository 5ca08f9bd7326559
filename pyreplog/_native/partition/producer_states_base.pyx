"""The last five batches of each idempotent producer, and the check of a batch against them.

Threads: the owner of the log calls it under its lock, one at a time.
"""

from libc.stdint cimport int64_t
from libc.string cimport memmove

from pyreplog._native.machines.named cimport item
from pyreplog.errors import InvalidArgumentError

cdef enum:
    # error codes of Kafka's protocol
    NO_ERROR = 0
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47

    SEQUENCE_MASK = 0x7FFFFFFF      # of sequence numbers: 0 follows 2^31 - 1


cdef class ProducerEntry:
    """The state of one producer in a log.

    epoch: the highest epoch of the producer. used_us: time of its last append, microseconds.
    """

    @property
    def batches(self):
        """The last batches of that epoch, oldest first: first and last sequence number, first and last offset."""
        return [fields_of(&self.batches[at]) for at in range(self.count)]


cdef class ProducerStatesBase:
    """Base of ProducerStates, which describes the rules' names and makes the objects that callers see."""

    def __cinit__(self):
        self.entries = {}

    def __len__(self):
        return len(self.entries)

    def _restore(self, int64_t producer_id, int epoch, int64_t used_us, batches):
        """Set the state of a producer, from a snapshot."""
        cdef ProducerEntry entry = ProducerEntry()
        cdef StoredBatch *stored
        if not 1 <= len(batches) <= BATCHES_KEPT:
            raise InvalidArgumentError(f"producer {producer_id}: expected 1 to {BATCHES_KEPT} batches, found {len(batches)}")
        entry.epoch, entry.used_us = epoch, used_us
        for batch in batches:
            stored = &entry.batches[entry.count]
            stored.first_sequence, stored.last_sequence, stored.first_offset, stored.last_offset = batch
            entry.count += 1
        self.entries[producer_id] = entry

    def _items(self):
        """Return the pairs of producer id and ProducerEntry."""
        return self.entries.items()

    def _check(self, batch):
        """Return the error code of a ProducerBatch, 0 for a new one; for a duplicate the fields of the stored batch."""
        cdef StoredBatch *duplicate = NULL
        cdef int code = self.check_sequences(item(batch, 0), item(batch, 1), item(batch, 2), item(batch, 3), &duplicate)
        return code if duplicate == NULL else fields_of(duplicate)

    cdef int check_sequences(self, int64_t producer_id, int epoch, int64_t first_sequence, int64_t records,
                             StoredBatch **duplicate) except -2:
        cdef ProducerEntry entry = self.entries.get(producer_id)
        cdef int64_t last_sequence = (first_sequence + records - 1) & SEQUENCE_MASK
        cdef int64_t next_sequence
        cdef int at
        duplicate[0] = NULL
        if entry is None:
            return NO_ERROR
        if epoch < entry.epoch:
            return INVALID_PRODUCER_EPOCH
        if epoch > entry.epoch:
            return NO_ERROR if first_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
        for at in range(entry.count):
            if entry.batches[at].first_sequence == first_sequence and entry.batches[at].last_sequence == last_sequence:
                duplicate[0] = &entry.batches[at]
                return DUPLICATE_SEQUENCE_NUMBER
        next_sequence = (<int64_t>entry.batches[entry.count - 1].last_sequence + 1) & SEQUENCE_MASK
        return NO_ERROR if first_sequence == next_sequence else OUT_OF_ORDER_SEQUENCE_NUMBER

    def append(self, batch, int64_t first_offset, int64_t now_us):
        """Note an appended batch. A follower calls it without `check`, which its leader called.

        Args:
            batch: the ProducerBatch.
            first_offset: offset of its first record.
            now_us: wall time, microseconds since 1970-01-01 UTC.
        """
        self.note_batch(item(batch, 0), item(batch, 1), item(batch, 2), item(batch, 3), first_offset, now_us)

    cdef int note_batch(self, int64_t producer_id, int epoch, int64_t first_sequence, int64_t records,
                        int64_t first_offset, int64_t now_us) except -1:
        cdef ProducerEntry entry = self.entries.get(producer_id)
        cdef StoredBatch *stored
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry()
            entry.epoch = epoch
        if entry.epoch != epoch:
            entry.epoch, entry.count = epoch, 0
        if entry.count == BATCHES_KEPT:
            memmove(&entry.batches[0], &entry.batches[1], (BATCHES_KEPT - 1) * sizeof(StoredBatch))
            entry.count -= 1
        stored = &entry.batches[entry.count]
        stored.first_sequence = <int>first_sequence
        stored.last_sequence = <int>((first_sequence + records - 1) & SEQUENCE_MASK)
        stored.first_offset, stored.last_offset = first_offset, first_offset + records - 1
        entry.count += 1
        entry.used_us = now_us
        return 0

    def note_use(self, int64_t producer_id, int64_t now_us):
        """Note that a producer was active without a batch: a marker ended its transaction.

        Args:
            producer_id: id of the producer.
            now_us: wall time, microseconds since 1970-01-01 UTC.
        """
        cdef ProducerEntry entry = self.entries.get(producer_id)
        if entry is not None:
            entry.used_us = max(entry.used_us, now_us)

    def expire(self, int64_t before_us, keep=()):
        """Forget the producers that were last used before a time.

        Args:
            before_us: wall time, microseconds since 1970-01-01 UTC.
            keep: ids of producers that stay, because they have open transactions.

        Returns:
            The ids of the producers that were removed.
        """
        cdef ProducerEntry entry
        idle = []
        for producer_id, state in self.entries.items():
            entry = state
            if entry.used_us < before_us and producer_id not in keep:
                idle.append(producer_id)
        for producer_id in idle:
            del self.entries[producer_id]
        return idle


cdef tuple fields_of(const StoredBatch *stored):
    return stored.first_sequence, stored.last_sequence, stored.first_offset, stored.last_offset
