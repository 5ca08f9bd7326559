"""What goes to a topic's ledgers together, and who is told what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from pyreplog._native.topic.messageencoder import Messages, compress_entry
from pyreplog.errors import RecordTooLargeError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.topic.client.publishing.batcher import MessageGroup
from pyreplog.topic.model.compression import codec_number, compressor
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers, Sequences, check_sequence

STAGE_BYTES = 512 << 10
"""What waits while something is on its way is sent with it behind it, but for so much, which goes at once."""

ENTRY_OVERHEAD = 512
"""What an entry of one message, with its record, has at most beside the producer's name, keys, properties, values."""
COLUMN_BYTES = 40
"""What a message takes in an entry beside them, at most."""

Share = tuple[bytes, Sequences]
"""A producer, and numbers of its messages."""


class Encoder(NamedTuple):
    """How entries of a topic are made. bytes_max: of keys, properties and values; entry_bytes_max: of an entry with
    its record."""

    messages_max: int
    bytes_max: int
    entry_bytes_max: int
    codec: int
    compress: Callable[[memoryview], bytes] | None

    @classmethod
    def of(cls, config: TopicConfig, entry_bytes_max: int) -> Encoder:
        """MissingExtraError: what its compression needs is not installed."""
        bytes_max = min(config.batch_bytes, (entry_bytes_max - ENTRY_OVERHEAD) // 2)
        return cls(
            min(config.batch_messages, max(bytes_max // COLUMN_BYTES, 1)),  # the columns take no more than the rest
            bytes_max,
            entry_bytes_max,
            codec_number(config.compression),
            compressor(config.compression),
        )

    def check_size(self, size: int) -> None:
        """RecordTooLargeError: an entry of so many bytes is too large, however it is compressed."""
        if size > self.entry_bytes_max - ENTRY_OVERHEAD:
            raise RecordTooLargeError(
                f"message: at most {self.entry_bytes_max - ENTRY_OVERHEAD} bytes, with what belongs to it, found {size}"
            )

    def finish(self, entries: list[bytes]) -> list[bytes]:
        """Compressed, if they are to be."""
        if self.compress is None:
            return entries
        return [compress_entry(entry, self.codec, self.compress) for entry in entries]


class PublishBatch(ABC):
    """Messages whose order among others is settled, on their way to a sink, which keeps this object until it has
    settled it.

    entries, counts: what they are encoded as, and how many messages each entry has, once `is_ready`; a sink that has
    stored the first of them for good cuts them off. entry_bytes: of these entries. messages: those that are not dropped
    as duplicates; messages_given: with these. size: bytes of all before they are encoded, about.
    """

    is_gathered = False
    """Whether other messages may wait for its outcome, to go together."""
    is_ready = False
    """Encoded, or failed to be."""
    failure: Exception | None = None
    """Why it could not be encoded."""
    is_settled = False
    """Its outcome is known: `offsets`, or an `error`."""
    offsets: Sequence[int] = range(0)
    """Of its messages, once they are stored; -1 for those that the sink dropped as duplicates."""
    error: BaseException | None = None
    """Why they are not stored, or why that is unknown."""
    is_unstored = False
    """Nothing of it is stored, or will be, whatever kind of error it is."""

    entry_bytes = 0
    cut_bytes = cut_entries = 0
    """Of the entries that were cut off."""
    first_offset = -1
    """Of its first message, once some of its entries are cut off."""
    refusals = 0
    """How often bookies refused it."""
    session = 0
    """The producer session that it was sent through, at a sink that has such; 0: it is still to be sent."""
    was_sent = False
    """Through any session."""

    messages: int
    messages_given: int
    size: int
    entries: Sequence[bytes] = ()
    counts: Sequence[int] = ()
    on_settled: Callable[[PublishBatch], object]
    """Called by `settle`, maybe in a callback, where nobody may wait."""

    @abstractmethod
    def encode(self, encoder: Encoder) -> None:
        """Make the entries. Errors: those of `encode_slices`, and RecordTooLargeError."""

    @abstractmethod
    def shares(self) -> Iterator[Share]:
        """Those that have producers and numbers."""

    @abstractmethod
    def outcomes(self) -> list[Outcome]:
        """For `settle_all`, once it is settled: those who wait, and what they are told."""

    def cut(self, count: int, size: int) -> None:
        """Its first `count` entries, which have `size` bytes, are stored for good."""
        self.entries, self.counts = self.entries[count:], self.counts[count:]
        self.entry_bytes -= size
        self.cut_entries += count
        self.cut_bytes += size

    def settle(self, error: BaseException | None = None) -> None:
        """Its outcome is known: the sink has noted its `offsets`, or there is an error."""
        self.error = error
        self.is_settled = True
        self.on_settled(self)


class BatchEntrant(PublishBatch):
    """A batch that comes whole, and has not got its place yet. future: gives the offsets of the stored messages."""

    future: AppendFuture[range]

    @abstractmethod
    def sift(self, producers: Producers) -> bytes | None:
        """Keep only the messages that were not published before: `messages` says how many. Returns a producer, if some
        of its messages are in doubt until others have an outcome: then nothing is dropped. Errors: SequenceError,
        InvalidArgumentError."""

    def outcomes(self) -> list[Outcome]:
        self.future.expect(stored_of(self.offsets))
        return [(self.future, self.error)]


class Gathered(PublishBatch):
    """Groups of single messages, one entry each."""

    is_gathered = True

    def __init__(self, groups: Sequence[MessageGroup]) -> None:
        self.groups = groups
        self.counts: list[int] = []
        self.size = 0
        for group in groups:
            self.counts.append(len(group.singles))
            self.size += group.size
        self.messages = self.messages_given = sum(self.counts)

    def encode(self, encoder: Encoder) -> None:
        self.entries = encoder.finish([group.encode() for group in self.groups])

    def shares(self) -> Iterator[Share]:
        for group in self.groups:
            sequences = group.sequences
            if group.producer and sequences is not None:
                yield group.producer, sequences

    def outcomes(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        numbers, error = iter(self.offsets), self.error
        for group in self.groups:
            for single in group.singles:
                if error is None:
                    single.future.expect(next(numbers))
                outcomes.append((single.future, error))
        return outcomes


class Whole(BatchEntrant):
    """A batch that was published as such."""

    def __init__(
        self, producer: bytes, batch: Messages, sequences: Sequences | None, future: AppendFuture[range]
    ) -> None:
        self.producer, self.batch, self.sequences, self.future = producer, batch, sequences, future
        self.messages = self.messages_given = batch.count
        self.size = batch.size
        self._runs: list[tuple[int, int]] = [(0, self.messages)]

    def sift(self, producers: Producers) -> bytes | None:
        name = self.producer
        if not name:
            return None
        if self.sequences is None:
            first = producers.next_sequence(name)
            check_sequence(first + self.messages - 1)
            self.sequences = range(first, first + self.messages)
        new = producers.sift(name, self.sequences)
        if new is None:
            return name
        if not new.all():
            self._keep(new)
        return None

    def _keep(self, new: NDArray[numpy.bool_]) -> None:
        """Only these messages: the others were published before."""
        edges = numpy.flatnonzero(numpy.diff(new, prepend=False, append=False))
        self._runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        self.messages = int(new.sum())

    def encode(self, encoder: Encoder) -> None:
        numbers = self.sequences
        entries, self.counts = self.batch.entries(
            self._runs,
            sequences=None if isinstance(numbers, range) else numbers,
            first_sequence=numbers.start if isinstance(numbers, range) else -1,
            messages_max=encoder.messages_max,
            bytes_max=encoder.bytes_max,
        )
        if self.size > encoder.bytes_max:  # else they are one entry or several, all of which fit
            encoder.check_size(max(map(len, entries)) - len(self.producer))
        self.entries = entries if encoder.compress is None else encoder.finish(entries)

    def shares(self) -> Iterator[Share]:
        if self.producer and self.sequences is not None:
            for start, stop in self._runs:
                yield self.producer, self.sequences[start:stop]


def stored_of(offsets: Sequence[int]) -> range:
    """Offsets of what is stored, of messages whose sink dropped some as duplicates: it gives -1 for those."""
    if type(offsets) is range:
        return offsets
    stored = [offset for offset in offsets if offset >= 0]
    return range(stored[0], stored[-1] + 1) if stored else range(0)
