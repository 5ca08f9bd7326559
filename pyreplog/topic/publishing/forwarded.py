"""Entries that another process has encoded, on their way into a topic: checked, and without what was published before.

Nothing that a peer says is believed: each entry is decoded before it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.entries import encode_entries, parse_entries
from pyreplog._native.messageencoder import encode_messages
from pyreplog._native.messages import MessageBatch, decode_messages
from pyreplog.ack import Ack, Outcome
from pyreplog.errors import InvalidMessagesError, SequenceError
from pyreplog.topic.publishing.compression import decompress
from pyreplog.topic.publishing.dedup import Sequences

if TYPE_CHECKING:
    from pyreplog.topic.publishing.flight import Encoder, Share

_SIZES = struct.Struct("<8xII16x")  # of the header: count, raw_size
RAW_BYTES_MAX = 128 << 20
"""All bodies that came together have no more, decompressed."""
_NO_TIME = -(1 << 63)


class Part(NamedTuple):
    """One entry: messages [start, stop) of all that came with it. sequences: None, they have none."""

    entry: bytes
    start: int
    stop: int
    producer: bytes
    sequences: NDArray[np.int64] | None


class Forwarded:
    """A Flight of whole entries, of one producer or several. ack: gives the offsets of the messages that are stored;
    `kept` says which those are."""

    is_gathered = False

    def __init__(self, topic: str, entries: Sequence[bytes]) -> None:
        """Errors: InvalidMessagesError, an entry is none; MissingExtraError, what decompresses it is not installed."""
        self._topic = topic
        self._batch = decode(entries)
        self.parts = _parts(entries, self._batch)
        self.ack: Ack[range] = Ack()
        self.kept = np.ones(len(self._batch), np.bool_)
        self.entries: list[bytes] = []
        self.counts: list[int] = []
        self.messages = self.messages_given = len(self._batch)
        self.size = sum(map(len, entries))
        self.is_ready = False
        self.failure: Exception | None = None

    @property
    def numbered(self) -> list[Part]:
        """Those whose messages may have been published before."""
        return [part for part in self.parts if part.producer and part.sequences is not None]

    def keep(self, new: Sequence[NDArray[np.bool_]]) -> None:
        """Of each of `numbered` only these messages: the others were published before. SequenceError: the numbers of
        one producer do not ascend."""
        self.kept[:] = True
        highest: dict[bytes, int] = {}
        for part, mask in zip(self.numbered, new, strict=True):
            assert part.sequences is not None
            numbers = part.sequences[mask]
            if len(numbers) and numbers[0] <= highest.get(part.producer, -1):
                raise SequenceError(self._topic, f"numbers of producer {part.producer!r} do not ascend: {numbers[0]}")
            if len(numbers):
                highest[part.producer] = int(numbers[-1])
            self.kept[part.start : part.stop] = mask
        self.messages = int(self.kept.sum())

    def encode(self, encoder: Encoder) -> None:
        """Entries that are kept whole stay as they are. Errors: RecordTooLargeError."""
        self.entries, self.counts = [], []
        for part in self.parts:
            mask = self.kept[part.start : part.stop]
            if not mask.any():
                continue
            entry = part.entry if mask.all() else encoder.finish([self._again(part, mask)])[0]
            encoder.check_size(len(entry) - len(part.producer))
            self.entries.append(entry)
            self.counts.append(int(mask.sum()))

    def _again(self, part: Part, mask: NDArray[np.bool_]) -> bytes:
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
            assert part.sequences is not None
            numbers: Sequences = part.sequences[self.kept[part.start : part.stop]]
            if len(numbers):
                yield part.producer, numbers

    def outcomes(self, offsets: range, error: BaseException | None) -> list[Outcome]:
        self.ack.expect(offsets)
        return [(self.ack, error)]


def raw_bytes(entries: Sequence[bytes]) -> int:
    """Of their bodies, decompressed."""
    return sum(_SIZES.unpack_from(entry)[1] for entry in entries)


def decode(entries: Sequence[bytes]) -> MessageBatch:
    """All messages, checked. Errors: InvalidMessagesError, MissingExtraError."""
    shortest = min(map(len, entries))
    if shortest < _SIZES.size:
        raise InvalidMessagesError(f"entry: expected a header of {_SIZES.size} bytes, found {shortest}")
    counts, total = [_SIZES.unpack_from(entry)[0] for entry in entries], raw_bytes(entries)
    if not all(counts):
        raise InvalidMessagesError("entry: expected 1 or more messages, found none")
    if total > RAW_BYTES_MAX:
        raise InvalidMessagesError(f"entries: expected bodies of at most {RAW_BYTES_MAX} bytes, found {total}")
    encoded = encode_entries(list(entries), ledger=0, first=0, lac=-1, time=0, messages=counts)
    records = parse_entries(encoded.view, ledger=0, first=0, last=len(entries) - 1)
    return decode_messages(records, offset=0, entries=0, size=0, decompress=decompress)


def _parts(entries: Sequence[bytes], batch: MessageBatch) -> list[Part]:
    ends = np.cumsum(batch.entry_count).tolist()
    starts = [0, *ends[:-1]]
    numbered = (batch.entry_sequence >= 0).tolist()
    return [
        Part(entry, start, stop, producer, batch.sequence[start:stop] if has_numbers else None)
        for entry, start, stop, producer, has_numbers in zip(
            entries, starts, ends, batch.entry_producer, numbered, strict=True
        )
    ]
