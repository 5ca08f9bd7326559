"""What goes to a topic's ledgers together, and who is told what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from pyreplog._native.topic.messageencoder import Messages, compress_entry
from pyreplog.errors import RecordTooLargeError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.topic.client.publishing.batcher import MessageGroup
from pyreplog.topic.model.compression import codec_number, compressor
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Sequences

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


class PublishBatch(Protocol):
    """Messages whose order among others is settled. entries, counts: what they are encoded as, once `is_ready`, unless
    there is a `failure`. messages: those that are not dropped as duplicates; messages_given: with these. size: bytes of
    all before they are encoded, about."""

    entries: list[bytes]
    counts: list[int]
    is_ready: bool
    failure: Exception | None
    messages: int
    messages_given: int
    size: int
    is_gathered: bool

    def encode(self, encoder: Encoder) -> None:
        """Make the entries. Errors: those of `encode_slices`, and RecordTooLargeError."""
        ...

    def shares(self) -> Iterator[Share]:
        """Those that have producers and numbers."""
        ...

    def outcomes(self, offsets: range, error: BaseException | None) -> list[Outcome]:
        """For `settle_all`: the offsets are theirs, unless there is an error."""
        ...


class Gathered:
    """Groups of single messages, one entry each."""

    is_gathered = True

    def __init__(self, groups: Sequence[MessageGroup]) -> None:
        self.groups = groups
        self.entries: list[bytes] = []
        self.counts: list[int] = []
        self.size = 0
        for group in groups:
            self.counts.append(len(group.singles))
            self.size += group.size
        self.messages = self.messages_given = sum(self.counts)
        self.is_ready = False
        self.failure: Exception | None = None

    def encode(self, encoder: Encoder) -> None:
        self.entries = encoder.finish([group.encode() for group in self.groups])

    def shares(self) -> Iterator[Share]:
        for group in self.groups:
            sequences = group.sequences
            if group.producer and sequences is not None:
                yield group.producer, sequences

    def outcomes(self, offsets: range, error: BaseException | None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        numbers = iter(offsets)
        for group in self.groups:
            for single in group.singles:
                if error is None:
                    single.future.expect(next(numbers))
                outcomes.append((single.future, error))
        return outcomes


class Whole:
    """A batch that was published as such."""

    is_gathered = False

    def __init__(
        self, producer: bytes, batch: Messages, sequences: Sequences | None, future: AppendFuture[range]
    ) -> None:
        self.producer, self.batch, self.sequences, self.future = producer, batch, sequences, future
        self.entries: list[bytes] = []
        self.counts: list[int] = []
        self.messages = self.messages_given = batch.count
        self.size = batch.size
        self.is_ready = False
        self.failure: Exception | None = None
        self._runs: list[tuple[int, int]] = [(0, self.messages)]

    def keep(self, new: NDArray[numpy.bool_]) -> None:
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

    def outcomes(self, offsets: range, error: BaseException | None) -> list[Outcome]:
        self.future.expect(offsets if type(offsets) is range else stored_of(offsets))
        return [(self.future, error)]


def stored_of(offsets: Sequence[int]) -> range:
    """Offsets of what is stored, of messages whose sink dropped some as duplicates: it gives -1 for those."""
    if type(offsets) is range:
        return offsets
    stored = [offset for offset in offsets if offset >= 0]
    return range(stored[0], stored[-1] + 1) if stored else range(0)
