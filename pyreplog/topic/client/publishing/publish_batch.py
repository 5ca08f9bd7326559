"""Batches of messages whose order is settled, and their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.message_encoder import Messages, compress_entry
from pyreplog.errors import RecordTooLargeError
from pyreplog.future import AppendFuture, Outcome, set_expected
from pyreplog.origins.gate import EntryRun
from pyreplog.topic.client.publishing.batcher import MessageGroup
from pyreplog.topic.model.compression import codec_number, compressor
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers, Sequences, check_sequence

STAGE_BYTES = 512 << 10
"""Batches wait while another one is in flight, unless they have so many bytes together."""

ENTRY_OVERHEAD = 512
"""Most bytes of an entry of one message, with its record, without the producer's name, key, properties and value."""
COLUMN_BYTES = 40
"""Most bytes of a message in an entry without these."""

Share = tuple[bytes, Sequences]
"""A producer, and numbers of its messages."""


class Encoder(NamedTuple):
    """Encodes entries of a topic.

    bytes_max: of keys, properties and values. entry_bytes_max: of an entry with its record.
    """

    messages_max: int
    bytes_max: int
    entry_bytes_max: int
    codec: int
    compress: Callable[[memoryview], bytes] | None

    @classmethod
    def of(cls, config: TopicConfig, entry_bytes_max: int) -> Encoder:
        """Create an encoder. Raises MissingExtraError if the codec is not installed."""
        bytes_max = min(config.batch_bytes, (entry_bytes_max - ENTRY_OVERHEAD) // 2)
        return cls(
            min(config.batch_messages, max(bytes_max // COLUMN_BYTES, 1)),  # columns take at most half
            bytes_max,
            entry_bytes_max,
            codec_number(config.compression),
            compressor(config.compression),
        )

    def check_size(self, size: int) -> None:
        """Raise RecordTooLargeError if an entry of so many bytes is too large, whether it is compressed or not."""
        if size > self.entry_bytes_max - ENTRY_OVERHEAD:
            raise RecordTooLargeError(
                f"message: expected at most {self.entry_bytes_max - ENTRY_OVERHEAD} bytes, including key and "
                f"properties, found {size}"
            )

    def finish(self, entries: list[bytes]) -> list[bytes]:
        """Return entries compressed, if the topic compresses."""
        if self.compress is None:
            return entries
        return [compress_entry(entry, self.codec, self.compress) for entry in entries]


class PublishBatch(ABC):
    """Messages whose order is settled, in flight to a sink, which keeps this object until it has settled it.

    Attributes:
        entries: the encoded entries, once `is_ready`; a sink that has stored the first ones for good cuts them off.
        counts: number of messages of each entry.
        entry_bytes: bytes of the entries.
        messages: messages that are not dropped as duplicates.
        messages_submitted: messages including duplicates.
        size: estimated bytes of all messages before they are encoded.
    """

    is_collected = False
    """Whether other messages may wait for its outcome, to be sent together."""
    is_ready = False
    """It was encoded, or encoding failed."""
    failure: Exception | None = None
    """Why it could not be encoded."""
    is_settled = False
    """It has an outcome: `offsets`, or an `error`."""
    offsets: Sequence[int] = range(0)
    """Offsets of its messages, once they are stored; -1 for those that the sink dropped as duplicates."""
    error: BaseException | None = None
    """Why the messages are not stored, or why that is unknown."""
    is_unstored = False
    """No message is or will be stored, whatever the class of the error is."""
    is_end_known = False
    """It has an error, and its entries that were not cut off are not stored and never will be."""
    run: EntryRun | None = None
    """Batches of a run are stored in their order, and none behind the first one that is not stored."""
    attributes: Sequence[bytes | None] | None = None
    """Encoded attributes of the record of each entry; None: no record has any."""

    entry_bytes = 0
    cut_bytes = cut_entries = 0
    """Bytes and number of the entries that were cut off."""
    first_offset = -1
    """Offset of its first message, once some of its entries are cut off."""
    refusals = 0
    """How often bookies refused it."""
    session = 0
    """The producer session through which it was sent, if the sink has sessions; 0: not sent yet."""
    was_sent = False
    """It was sent through any session."""

    messages: int
    messages_submitted: int
    size: int
    entries: Sequence[bytes] = ()
    counts: Sequence[int] = ()
    on_settled: Callable[[PublishBatch], object]
    """Called by `settle`, perhaps in a callback, so it must not wait."""

    @abstractmethod
    def encode(self, encoder: Encoder) -> None:
        """Encode the entries. Raises the errors of `encode_slices`, and RecordTooLargeError."""

    @abstractmethod
    def shares(self) -> Iterator[Share]:
        """Yield the producers, and the numbers of their messages."""

    @abstractmethod
    def outcomes(self) -> list[Outcome]:
        """Return the futures and their outcomes for `settle_all`, once it is settled."""

    def cut(self, count: int, size: int) -> None:
        """Note that the first `count` entries, which have `size` bytes, are stored for good."""
        self.entries, self.counts = self.entries[count:], self.counts[count:]
        if self.attributes is not None:
            self.attributes = self.attributes[count:]
        self.entry_bytes -= size
        self.cut_entries += count
        self.cut_bytes += size

    def settle(self, error: BaseException | None = None) -> None:
        """Note the outcome: the sink has set `offsets`, or there is an error."""
        self.error = error
        self.is_settled = True
        self.on_settled(self)


class BatchEntrant(PublishBatch):
    """A batch that was submitted as a batch, and is not ordered yet. future: of the offsets of the stored messages."""

    future: AppendFuture[Any]

    @abstractmethod
    def find_new(self, producers: Producers) -> bytes | None:
        """Keep only the messages that were not published before, and set `messages` to their number.

        Returns a producer if some of its messages are in doubt until others have an outcome: then nothing is dropped.
        Raises SequenceError or InvalidArgumentError.
        """

    def outcomes(self) -> list[Outcome]:
        set_expected(self.future, stored_of(self.offsets))
        return [(self.future, self.error)]


class CollectedBatch(PublishBatch):
    """A batch of groups of single messages, one entry each."""

    is_collected = True

    def __init__(self, groups: Sequence[MessageGroup]) -> None:
        self.groups = groups
        self.counts: list[int] = []
        self.size = 0
        for group in groups:
            self.counts.append(len(group.singles))
            self.size += group.size
        self.messages = self.messages_submitted = sum(self.counts)

    def encode(self, encoder: Encoder) -> None:
        groups = self.groups
        if self.messages == 1 and encoder.compress is None:  # what a lone publisher sends
            single = groups[0].singles[0]
            self.entries = [single.encode()]
            self.attributes = [single.attribute] if single.attribute else None
            return
        self.entries = encoder.finish([group.encode() for group in groups])
        attributes = [group.attribute for group in self.groups]
        self.attributes = attributes if any(attributes) else None

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
                    set_expected(single.future, next(numbers))
                outcomes.append((single.future, error))
        return outcomes


class SubmittedBatch(BatchEntrant):
    """A batch that was submitted as a batch in this process."""

    def __init__(
        self,
        producer: bytes,
        batch: Messages,
        sequences: Sequences | None,
        future: AppendFuture[range],
        attribute: bytes | None = None,
    ) -> None:
        self._attribute = attribute
        self.producer, self.batch, self.sequences, self.future = producer, batch, sequences, future
        self.messages = self.messages_submitted = batch.count
        self.size = batch.size
        self._runs: list[tuple[int, int]] = [(0, self.messages)]

    def find_new(self, producers: Producers) -> bytes | None:
        name = self.producer
        if not name:
            return None
        if self.sequences is None:
            first = producers.next_sequence(name)
            check_sequence(first + self.messages - 1)
            self.sequences = range(first, first + self.messages)
        new = producers.find_new(name, self.sequences)
        if new is None:
            return name
        if not new.all():
            self._keep(new)
        return None

    def _keep(self, new: NDArray[np.bool_]) -> None:
        """Keep only the new messages."""
        edges = np.flatnonzero(np.diff(new, prepend=False, append=False))
        self._runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        self.messages = int(new.sum())

    def encode(self, encoder: Encoder) -> None:
        numbers, attribute = self.sequences, self._attribute
        bytes_max = encoder.bytes_max if attribute is None else max(encoder.bytes_max - len(attribute), 1)
        entries, self.counts = self.batch.entries(
            self._runs,
            sequences=None if isinstance(numbers, range) else numbers,
            first_sequence=numbers.start if isinstance(numbers, range) else -1,
            messages_max=encoder.messages_max,
            bytes_max=bytes_max,
        )
        if attribute is not None:
            self.attributes = [attribute] * len(entries)
        if self.size > bytes_max:  # otherwise they fit into one entry or several
            encoder.check_size(max(map(len, entries)) - len(self.producer) + len(attribute or b""))
        self.entries = entries if encoder.compress is None else encoder.finish(entries)

    def shares(self) -> Iterator[Share]:
        if self.producer and self.sequences is not None:
            for start, stop in self._runs:
                yield self.producer, self.sequences[start:stop]


def stored_of(offsets: Sequence[int]) -> range:
    """Return the offsets of the stored messages, without the -1 of those that the sink dropped as duplicates."""
    if type(offsets) is range:
        return offsets
    stored = [offset for offset in offsets if offset >= 0]
    return range(stored[0], stored[-1] + 1) if stored else range(0)
