"""Entries that another process has encoded: checked, and without messages that were published before.

Nothing from a peer is trusted: each entry is decoded before it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.errors import InvalidEntryError, SequenceError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publish_batch import BatchEntrant, Encoder, Share
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.dedup import Producers, Sequences

_HEAD = struct.Struct("<4xH2xII16x")  # of an entry: producer_length, count, raw_size
RAW_BYTES_MAX = 128 << 20
"""Most decompressed bytes of the bodies of one batch."""
_NO_TIME = -(1 << 63)


class EntryPart(NamedTuple):
    """An entry with numbered messages: entry number `place` of the batch, messages [start, stop)."""

    place: int
    start: int
    stop: int
    producer: bytes
    sequences: NDArray[np.int64]


class ForwardedBatch(BatchEntrant):
    """A batch of whole entries, of one producer or several. `kept` says which messages are stored.

    attributes: of the record of each entry, encoded; None: no record has any.
    """

    def __init__(self, topic: str, entries: Sequence[bytes], attributes: Sequence[bytes | None] | None = None) -> None:
        """Decode the entries. Raises InvalidEntryError, or MissingExtraError if the codec is not installed."""
        self._topic, self._received, self._attributes = topic, list(entries), attributes
        self._batch, self._counts = decode(self._received)
        self.numbered = numbered_entries(self._batch)
        """The entries whose messages may have been published before."""
        self.future: AppendFuture[range] = AppendFuture()
        self.kept: NDArray[np.bool_] | None = None
        """Whether each message is stored; None: all are."""
        self.messages = self.messages_submitted = len(self._batch)
        self.size = sum(map(len, entries))

    def find_new(self, producers: Producers) -> bytes | None:
        masks = []
        for part in self.numbered:
            new = producers.find_new(part.producer, part.sequences)
            if new is None:
                return part.producer
            masks.append(new)
        self._keep(masks)
        return None

    def _keep(self, new: Sequence[NDArray[np.bool_]]) -> None:
        """Keep only the new messages of each entry in `numbered`.

        Raises SequenceError if the numbers of a producer do not ascend.
        """
        kept = np.ones(self.messages_submitted, np.bool_)
        highest: dict[bytes, int] = {}
        for part, mask in zip(self.numbered, new, strict=True):
            numbers = part.sequences[mask]
            if len(numbers) and numbers[0] <= highest.get(part.producer, -1):
                raise SequenceError(self._topic, f"numbers of producer {part.producer!r} do not ascend: {numbers[0]}")
            if len(numbers):
                highest[part.producer] = int(numbers[-1])
            kept[part.start : part.stop] = mask
        self.messages = int(kept.sum())
        self.kept = None if self.messages == self.messages_submitted else kept

    def encode(self, encoder: Encoder) -> None:
        """Encode the batch; entries whose messages are all kept stay as they are. Raises RecordTooLargeError."""
        if self.kept is None:
            self.entries, self.counts, self.attributes = self._received, self._counts, self._attributes
        else:
            self.entries, self.counts, self.attributes = self._cut(encoder, self.kept)
        for entry in self.entries:
            encoder.check_size(len(entry) - _HEAD.unpack_from(entry)[0])
        if self.attributes is not None:
            for entry, attribute in zip(self.entries, self.attributes, strict=True):
                encoder.check_size(len(entry) - _HEAD.unpack_from(entry)[0] + len(attribute or b""))

    def _cut(
        self, encoder: Encoder, kept: NDArray[np.bool_]
    ) -> tuple[list[bytes], list[int], list[bytes | None] | None]:
        """Return the entries of the kept messages, the number of messages of each, and their attributes."""
        entries, counts = self._received.copy(), self._counts.copy()
        for part in self.numbered:
            mask = kept[part.start : part.stop]
            counts[part.place] = int(mask.sum())
            if mask.any() and not mask.all():
                entries[part.place] = encoder.finish([self._reencode(part, mask)])[0]
        places = [at for at, count in enumerate(counts) if count]
        attributes = self._attributes
        kept_attributes = None if attributes is None else [attributes[at] for at in places]
        return [entries[at] for at in places], [counts[at] for at in places], kept_attributes

    def _reencode(self, part: EntryPart, mask: NDArray[np.bool_]) -> bytes:
        """Return an entry of some of the messages of an entry."""
        batch = self._batch.select(part.start + np.flatnonzero(mask))
        return encode_messages(
            batch.values(),
            batch.keys(),
            properties=[batch.properties(at) for at in range(len(batch))],
            event_times=[None if time == _NO_TIME else time for time in batch.event_time.tolist()],
            deliver_at=[time or None for time in batch.deliver_at.tolist()],
            sequences=batch.sequence,
            producer=part.producer,
        )

    def shares(self) -> Iterator[Share]:
        for part in self.numbered:
            numbers: Sequences = part.sequences
            if self.kept is not None:
                numbers = part.sequences[self.kept[part.start : part.stop]]
            if len(numbers):
                yield part.producer, numbers


def raw_bytes(entries: Sequence[bytes]) -> int:
    """Return the decompressed bytes of the bodies of entries."""
    total = 0
    for entry in entries:
        total += _HEAD.unpack_from(entry)[2]
    return total


def decode(entries: list[bytes]) -> tuple[MessageBatch, list[int]]:
    """Return all messages, checked, and the number of messages of each entry.

    Raises InvalidEntryError or MissingExtraError.
    """
    counts, total = [], 0
    for entry in entries:
        if len(entry) < _HEAD.size:
            raise InvalidEntryError(f"entry: expected a header of {_HEAD.size} bytes, found {len(entry)}")
        _, count, raw = _HEAD.unpack_from(entry)
        if not count:
            raise InvalidEntryError("entry: expected 1 or more messages, found none")
        counts.append(count)
        total += raw
    if total > RAW_BYTES_MAX:
        raise InvalidEntryError(f"entries: expected bodies of at most {RAW_BYTES_MAX} bytes, found {total}")
    encoded = encode_entries(entries, ledger=0, first=0, lac=-1, time=0, messages=counts)
    records = parse_entries(encoded.view, ledger=0, first=0, last=len(entries) - 1)
    return decode_messages(records, offset=0, entries=0, size=0, decompress=decompress), counts


def numbered_entries(batch: MessageBatch) -> list[EntryPart]:
    """Return the entries with a producer whose messages are numbered."""
    parts: list[EntryPart] = []
    if not batch.is_numbered:
        return parts
    stop = 0
    descriptions = zip(batch.entry_count.tolist(), batch.entry_producer, batch.entry_sequence.tolist(), strict=True)
    for place, (count, producer, last) in enumerate(descriptions):
        start, stop = stop, stop + count
        if producer and last >= 0:
            parts.append(EntryPart(place, start, stop, producer, batch.sequence[start:stop]))
    return parts
