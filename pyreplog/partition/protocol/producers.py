"""Idempotent producers: which batch of a producer is new, and which is a duplicate (KIP-98, KIP-360).

A producer numbers its records, and has at most five batches in flight. So the last five batches of each producer
suffice to tell a duplicate from a new batch, and from one before which another is missing. Every replica restores them
from a snapshot and the log behind it; a leader checks before it appends. Retention does not remove producers; they
expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyreplog._native.partition.producer_states_base import ProducerStatesBase
from pyreplog.partition.protocol.error_codes import ErrorCode

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


class SequenceCheck(NamedTuple):
    """The verdict on the sequence number of a batch.

    Attributes:
        code: NONE: append the batch; DUPLICATE_SEQUENCE_NUMBER: the log holds it, answer as if it was appended; or the
            error.
        duplicate: the equal batch in the log.
    """

    code: ErrorCode
    duplicate: BatchMetadata | None = None


_CHECKED = {code: SequenceCheck(code) for code in ErrorCode}


class ProducerStates(ProducerStatesBase):
    """The producers of one log, by id. Not for several threads at once.

    A truncated log needs a new object, from a snapshot before the cut and the batches behind it: only these have the
    older batches that the removed ones displaced. A log that retention trims keeps its object, because the next batch
    of a producer may follow one that retention removed.

    Args:
        entries: entries of a snapshot.
    """

    def __init__(self, entries: Iterable[tuple[int, ProducerStateEntry]] = ()) -> None:
        for number, entry in entries:
            self._restore(number, entry.epoch, entry.used_us, entry.batches)

    def snapshot(self) -> tuple[tuple[int, ProducerStateEntry], ...]:
        """Return all producers with all their batches, so that the same duplicates are detected after a restart."""
        return tuple(
            (number, ProducerStateEntry(entry.epoch, tuple(map(BatchMetadata._make, entry.batches)), entry.used_us))
            for number, entry in self._items()
        )

    def check(self, batch: ProducerBatch) -> SequenceCheck:
        """Return whether a client's batch is to be appended.

        An unknown producer may begin with any number, because its state may have expired.
        """
        checked = self._check(batch)
        if isinstance(checked, int):
            return _CHECKED[checked]  # type: ignore[index]
        return SequenceCheck(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, BatchMetadata._make(checked))
