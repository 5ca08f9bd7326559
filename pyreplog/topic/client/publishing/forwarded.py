"""Entries that another process has encoded, on their way into a topic: checked, and without what was published before.

Nothing that a peer says is believed: each entry is decoded before it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.ledgerlog.entries import encode_entries, parse_entries
from pyreplog._native.topic.messageencoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.errors import InvalidEntryError, SequenceError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publish_batch import BatchEntrant, Encoder, Share
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.dedup import Producers, Sequences

_HEAD = struct.Struct("<4xH2xII16x")  # of an entry: producer_length, count, raw_size
RAW_BYTES_MAX = 128 << 20
"""All bodies that came together have no more, decompressed."""
_NO_TIME = -(1 << 63)


class EntryPart(NamedTuple):
    """An entry whose messages have numbers: the one at `place` of those that came together, messages [start, stop)."""

    place: int
    start: int
    stop: int
    producer: bytes
    sequences: NDArray[np.int64]


class Forwarded(BatchEntrant):
    """Whole entries, of one producer or several. `kept` says which messages are stored."""

    def __init__(self, topic: str, entries: Sequence[bytes]) -> None:
        """Errors: InvalidEntryError, an entry is none; MissingExtraError, what decompresses it is not installed."""
        self._topic, self._given = topic, list(entries)
        self._batch, self._counts = decode(self._given)
        self.numbered = _numbered(self._batch) if self._batch.is_numbered else []
        """Those whose messages may have been published before."""
        self.future: AppendFuture[range] = AppendFuture()
        self.kept: NDArray[np.bool_] | None = None
        """Of each message whether it is stored; None: all are."""
        self.messages = self.messages_given = len(self._batch)
        self.size = sum(map(len, entries))

    def sift(self, producers: Producers) -> bytes | None:
        masks = []
        for part in self.numbered:
            new = producers.sift(part.producer, part.sequences)
            if new is None:
                return part.producer
            masks.append(new)
        self._keep(masks)
        return None

    def _keep(self, new: Sequence[NDArray[np.bool_]]) -> None:
        """Of each of `numbered` only these messages: the others were published before. SequenceError: the numbers of
        one producer do not ascend."""
        kept = np.ones(self.messages_given, np.bool_)
        highest: dict[bytes, int] = {}
        for part, mask in zip(self.numbered, new, strict=True):
            numbers = part.sequences[mask]
            if len(numbers) and numbers[0] <= highest.get(part.producer, -1):
                raise SequenceError(self._topic, f"numbers of producer {part.producer!r} do not ascend: {numbers[0]}")
            if len(numbers):
                highest[part.producer] = int(numbers[-1])
            kept[part.start : part.stop] = mask
        self.messages = int(kept.sum())
        self.kept = None if self.messages == self.messages_given else kept

    def encode(self, encoder: Encoder) -> None:
        """Entries that are kept whole stay as they are. Errors: RecordTooLargeError."""
        if self.kept is None:
            self.entries, self.counts = self._given, self._counts
        else:
            self.entries, self.counts = self._cut(encoder, self.kept)
        for entry in self.entries:
            encoder.check_size(len(entry) - _HEAD.unpack_from(entry)[0])

    def _cut(self, encoder: Encoder, kept: NDArray[np.bool_]) -> tuple[list[bytes], list[int]]:
        """Entries of the messages that are kept, and how many each has."""
        entries, counts = self._given.copy(), self._counts.copy()
        for part in self.numbered:
            mask = kept[part.start : part.stop]
            counts[part.place] = int(mask.sum())
            if mask.any() and not mask.all():
                entries[part.place] = encoder.finish([self._again(part, mask)])[0]
        left = [at for at, count in enumerate(counts) if count]
        return [entries[at] for at in left], [counts[at] for at in left]

    def _again(self, part: EntryPart, mask: NDArray[np.bool_]) -> bytes:
        """An entry of those messages only."""
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
    """Of their bodies, decompressed."""
    total = 0
    for entry in entries:
        total += _HEAD.unpack_from(entry)[2]
    return total


def decode(entries: list[bytes]) -> tuple[MessageBatch, list[int]]:
    """All messages, checked, and how many each entry has. Errors: InvalidEntryError, MissingExtraError."""
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


def _numbered(batch: MessageBatch) -> list[EntryPart]:
    found, stop = [], 0
    described = zip(batch.entry_count.tolist(), batch.entry_producer, batch.entry_sequence.tolist(), strict=True)
    for place, (count, producer, last) in enumerate(described):
        start, stop = stop, stop + count
        if producer and last >= 0:
            found.append(EntryPart(place, start, stop, producer, batch.sequence[start:stop]))
    return found
