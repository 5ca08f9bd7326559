"""ProducerSequences: which batches of an idempotent producer a topic on ledgers has already. No I/O."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from pyreplog.future import AppendFuture

WRAP = 1 << 31
"""Kafka's sequence numbers go on with 0 behind 2^31 - 1; those of a topic do not."""

RECENT = 5
"""Batches with an outcome that are known: as many as a client sends without an outcome."""


class SequenceVerdict(Enum):
    """The decision about a batch of an idempotent producer."""

    NEW = "append it"
    DUPLICATE = "it is stored, and no longer known"
    OUT_OF_ORDER = "a batch before it is missing"


class SequencedBatch:
    """A batch that was submitted.

    Attributes:
        first: number of its first record.
        end: number behind its last record.
        outcome: future of the offsets.
    """

    __slots__ = ("end", "first", "outcome")

    def __init__(self, first: int, end: int, outcome: AppendFuture[Any]) -> None:
        self.first, self.end, self.outcome = first, end, outcome


class ProducerSequences:
    """The sequence numbers of one epoch of one producer in one partition. One thread uses them.

    Records are numbered from 0 on without a wrap: `number_of` finds the number that belongs to a sequence number.

    Args:
        next_number: number of the next record that the topic expects; None: any one, because nothing is known.
        deduplicates: whether the topic drops the records of a batch that it has already.
    """

    def __init__(self, next_number: int | None, *, deduplicates: bool) -> None:
        self._next, self._deduplicates = next_number, deduplicates
        self._recent: deque[SequencedBatch] = deque()  # by first number

    def number_of(self, sequence: int) -> int:
        """Return the number of a record: of those with this sequence number, the one next to the expected one."""
        if self._next is None:
            return sequence
        behind = (sequence - self._next + WRAP // 2) % WRAP - WRAP // 2
        return self._next + behind if self._next + behind >= 0 else sequence

    def check(self, sequence: int, count: int) -> SequenceVerdict | SequencedBatch:
        """Return what to do with a batch; a SequencedBatch: it is the same, and has that one's outcome.

        Args:
            sequence: sequence number of its first record.
            count: number of its records.
        """
        first = self.number_of(sequence)
        if self._next is None or first == self._next:
            return SequenceVerdict.NEW
        if first > self._next:
            return SequenceVerdict.OUT_OF_ORDER
        if first + count > self._next:
            return SequenceVerdict.NEW if self._deduplicates else SequenceVerdict.OUT_OF_ORDER
        for batch in self._recent:
            if (batch.first, batch.end) == (first, first + count):
                return batch
        return SequenceVerdict.DUPLICATE

    def push(self, sequence: int, count: int, outcome: AppendFuture[Any]) -> SequencedBatch:
        """Note that a new batch was submitted.

        Args:
            sequence: sequence number of its first record.
            count: number of its records.
            outcome: future of its offsets; call `failed` if it fails.
        """
        first = self.number_of(sequence)
        pushed = SequencedBatch(first, first + count, outcome)
        self._recent.append(pushed)
        self._next = first + count
        for batch in sorted(self._recent, key=lambda each: each.first):  # those behind one that failed, and came again
            if batch.first == self._next:
                self._next = batch.end
        done = [batch for batch in self._recent if batch.outcome.done()]
        for batch in done[:-RECENT]:
            self._recent.remove(batch)
        return pushed

    def failed(self, batch: SequencedBatch) -> None:
        """Note that a batch is not stored and will not be: the producer sends it again, before later ones.

        Args:
            batch: the batch.
        """
        if batch in self._recent:
            self._recent.remove(batch)
            self._next = batch.first if self._next is None else min(self._next, batch.first)

    @property
    def is_busy(self) -> bool:
        """Whether a batch has no outcome yet."""
        return any(not batch.outcome.done() for batch in self._recent)
