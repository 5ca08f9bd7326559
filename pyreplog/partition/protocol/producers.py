"""Idempotent producers: which batch of a producer is new, and which is a duplicate (KIP-98, KIP-360).

A producer numbers its records, and has at most five batches in flight. So the last five batches of each producer
suffice to tell a duplicate from a new batch, and from one before which another is missing. Every replica restores them
from a snapshot and the log behind it; a leader checks before it appends. Retention does not remove producers; they
expire.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyreplog.partition.protocol.error_codes import ErrorCode

BATCHES_KEPT = 5
SEQUENCES = 1 << 31
"""Number of sequence numbers: 0 follows 2^31 - 1."""
NO_PRODUCER_EPOCH = -1


class ProducerBatch(NamedTuple):
    """The header of a batch of an idempotent producer.

    Attributes:
        producer_id: id of the producer.
        epoch: epoch of the producer; a higher one fences lower ones.
        first_sequence: number of the first record.
        records: number of records, at least 1.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    records: int

    @property
    def last_sequence(self) -> int:
        return (self.first_sequence + self.records - 1) % SEQUENCES


class BatchMetadata(NamedTuple):
    """A batch in the log.

    Attributes:
        first_sequence: number of the first record.
        last_sequence: number of the last record.
        first_offset: offset of the first record.
        last_offset: offset of the last record.
    """

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ProducerStateEntry:
    """The state of one producer in a log.

    Attributes:
        epoch: the highest epoch of the producer.
        batches: the last five batches of that epoch, oldest first.
        used_us: time of its last append, microseconds.
    """

    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[BatchMetadata, ...] = ()
    used_us: int = 0

    def with_batch(self, epoch: int, batch: BatchMetadata, now_us: int) -> ProducerStateEntry:
        """Return the entry after another batch was appended."""
        earlier = self.batches if epoch == self.epoch else ()
        return ProducerStateEntry(epoch, (*earlier, batch)[-BATCHES_KEPT:], now_us)


class SequenceCheck(NamedTuple):
    """The verdict on the sequence number of a batch.

    Attributes:
        code: NONE: append the batch; DUPLICATE_SEQUENCE_NUMBER: the log holds it, answer as if it was appended; or the
            error.
        duplicate: the equal batch in the log.
    """

    code: ErrorCode
    duplicate: BatchMetadata | None = None


class ProducerStates:
    """The producers of one log, by id. Not for several threads at once.

    A truncated log needs a new object, from a snapshot before the cut and the batches behind it: only these have the
    older batches that the removed ones displaced. A log that retention trims keeps its object, because the next batch
    of a producer may follow one that retention removed.

    Args:
        entries: entries of a snapshot.
    """

    def __init__(self, entries: Iterable[tuple[int, ProducerStateEntry]] = ()) -> None:
        self._entries = dict(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def snapshot(self) -> tuple[tuple[int, ProducerStateEntry], ...]:
        """Return all producers with all their batches, so that the same duplicates are detected after a restart."""
        return tuple(self._entries.items())

    def check(self, batch: ProducerBatch) -> SequenceCheck:
        """Return whether a client's batch is to be appended.

        An unknown producer may begin with any number, because its state may have expired.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            return SequenceCheck(ErrorCode.NONE)
        if batch.epoch < entry.epoch:
            return SequenceCheck(ErrorCode.INVALID_PRODUCER_EPOCH)
        if batch.epoch > entry.epoch:
            is_first = batch.first_sequence == 0
            return SequenceCheck(ErrorCode.NONE if is_first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        for stored in entry.batches:
            if (stored.first_sequence, stored.last_sequence) == (batch.first_sequence, batch.last_sequence):
                return SequenceCheck(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, stored)
        follows = (entry.batches[-1].last_sequence + 1) % SEQUENCES == batch.first_sequence
        return SequenceCheck(ErrorCode.NONE if follows else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def append(self, batch: ProducerBatch, first_offset: int, now_us: int) -> None:
        """Note an appended batch. A follower calls it without `check`, which its leader called.

        Args:
            batch: the header of the batch.
            first_offset: offset of its first record.
            now_us: wall time, microseconds since 1970-01-01 UTC.
        """
        stored = BatchMetadata(
            batch.first_sequence, batch.last_sequence, first_offset, first_offset + batch.records - 1
        )
        entry = self._entries.get(batch.producer_id, ProducerStateEntry())
        self._entries[batch.producer_id] = entry.with_batch(batch.epoch, stored, now_us)

    def note_use(self, producer_id: int, now_us: int) -> None:
        """Note that a producer was active without a batch: a marker ended its transaction.

        Args:
            producer_id: id of the producer.
            now_us: wall time, microseconds since 1970-01-01 UTC.
        """
        entry = self._entries.get(producer_id)
        if entry is not None and now_us > entry.used_us:
            self._entries[producer_id] = replace(entry, used_us=now_us)

    def expire(self, before_us: int, keep: Container[int] = ()) -> list[int]:
        """Forget the producers that were last used before a time.

        Args:
            before_us: wall time, microseconds since 1970-01-01 UTC.
            keep: ids of producers that stay, because they have open transactions.

        Returns:
            The ids of the producers that were removed.
        """
        idle = [number for number, entry in self._entries.items() if entry.used_us < before_us and number not in keep]
        for number in idle:
            del self._entries[number]
        return idle
