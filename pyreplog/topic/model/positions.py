"""Positions in a topic: starts of readers and subscriptions, offsets, entries of ledgers, offsets of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.errors import InvalidArgumentError, ReplogError, WrongTypeError
from pyreplog.future import AppendFuture, set_exception, set_result, then
from pyreplog.times import moment_us


class TopicPosition(NamedTuple):
    """A position in a topic: the messages, entries and bytes of values before it, counted since the topic began.

    Trimmed messages count, so `offset` is the offset of the first message behind the position.
    """

    offset: int
    entries: int
    size: int


ORIGIN = TopicPosition(0, 0, 0)


class EntryPosition(NamedTuple):
    """One entry of a topic.

    Attributes:
        ledger: id of its ledger.
        entry: its number in the ledger.
        first: offset of its first message.
        count: number of its messages.
        size: bytes of its values.
        entries_before: entries of the topic before it.
        bytes_before: bytes of values of the topic before it.
    """

    ledger: int
    entry: int
    first: int
    count: int  # type: ignore[assignment]
    size: int
    entries_before: int
    bytes_before: int

    @property
    def end(self) -> int:
        """Offset behind its last message."""
        return self.first + self.count

    @property
    def before(self) -> TopicPosition:
        """Position in front of it."""
        return TopicPosition(self.first, self.entries_before, self.bytes_before)

    @property
    def behind(self) -> TopicPosition:
        """Position behind it."""
        return TopicPosition(self.end, self.entries_before + 1, self.bytes_before + self.size)


T = TypeVar("T")

Start = int | datetime | Literal["earliest", "latest"]
"""An offset; a time of publishing, with a time zone; or an end of the topic."""


class MessageLocator(Protocol):
    """Finds the positions of messages; a ManagedLedger does."""

    @property
    def start(self) -> TopicPosition: ...
    @property
    def end(self) -> TopicPosition: ...
    def locate(self, offset: int) -> AppendFuture[EntryPosition]: ...
    def offset_at_time(self, time_us: int) -> AppendFuture[int]: ...


def check_start(start: Start) -> Start:
    """Return a start if it is valid.

    Raises WrongTypeError, or InvalidArgumentError for a datetime without a time zone.
    """
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise InvalidArgumentError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, bool) or not isinstance(start, int | np.integer | datetime | str):
        raise WrongTypeError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, datetime):
        moment_us("start", start)
    return start


def position(log: MessageLocator, start: Start) -> AppendFuture[TopicPosition]:
    """Return the position of a start.

    The future fails with TrimmedError or OutOfRangeError if the offset is below the first message that is kept, or
    beyond the end, and with the errors of `ManagedLedger.locate`, those of a closed log included. Raises
    InvalidArgumentError or WrongTypeError for an invalid start.
    """
    done: AppendFuture[TopicPosition] = AppendFuture()
    check_start(start)
    try:
        if isinstance(start, str):
            set_result(done, log.start if start == "earliest" else log.end)
        elif isinstance(start, datetime):
            then(log.offset_at_time(moment_us("start", start)), done, lambda offset: _at_offset(log, offset, done))
        else:
            _at_offset(log, int(start), done)
    except ReplogError as error:  # the log is closed, or fenced
        set_exception(done, error)
    return done


def _at_offset(log: MessageLocator, offset: int, done: AppendFuture[TopicPosition]) -> None:
    end = log.end
    if offset == end.offset:
        set_result(done, end)
        return
    then(
        log.locate(offset),
        done,
        lambda place: set_result(done, TopicPosition(offset, place.entries_before, place.bytes_before)),
    )


class PartitionOffset(NamedTuple):
    """The place of a message in a partitioned topic.

    Attributes:
        partition: number of the partition.
        offset: offset within the partition; DUPLICATE (-1): the message was published before.
    """

    partition: int
    offset: int


class PartitionRange(NamedTuple):
    """The places of messages that were published together to one partition.

    Attributes:
        partition: number of the partition.
        offsets: their offsets within the partition.
    """

    partition: int
    offsets: range


PartitionedStart = PartitionOffset | datetime | Literal["earliest", "latest"]
"""A message of one partition; or, for all partitions, a time of publishing or an end."""

PartitionedWhat = Message | MessageBatch | PartitionOffset | Iterable[Message | PartitionOffset]
"""A message, a batch, a place, or several messages or places."""


def is_offset(start: Any) -> bool:
    """Return whether a start is an offset without a partition. Raises the errors of `check_start`."""
    return not isinstance(check_start(start), datetime | str)


def by_partition(what: Iterable[Message | PartitionOffset]) -> dict[int, list[int]]:
    """Return the offsets of messages for each partition. Raises WrongTypeError for other objects than messages and
    places."""
    if not isinstance(what, Iterable) or isinstance(what, str | bytes | bytearray | memoryview):
        raise WrongTypeError(
            f"what: expected messages, a batch of them, or PartitionOffsets, found {type(what).__name__}"
        )
    offsets: dict[int, list[int]] = {}
    for item in what:
        if not isinstance(item, Message | PartitionOffset):
            raise WrongTypeError(f"what: expected messages or PartitionOffsets, found {type(item).__name__}")
        offsets.setdefault(item.partition, []).append(item.offset)
    return offsets


def messages_from(offset: int, batch: MessageBatch | None) -> MessageBatch | None:
    """Return the messages of whole entries at an offset and behind it; None: there is none."""
    if batch is None or not len(batch):
        return None
    first = int(np.searchsorted(batch.offset, offset))
    if first == len(batch):
        return None
    return batch.slice(first, len(batch)) if first else batch


class OffsetSearch:
    """Searches a ledger for the entry that holds `offset`, with as few reads as possible.

    The ledger has `entries` entries with the offsets from `start` up to `end`. Most entries hold about as many messages
    each, so the search interpolates, and bisects in every other step: at most about twice as many steps as bisection,
    and mostly one or two.
    """

    def __init__(self, offset: int, entries: int, start: int, end: int) -> None:
        self._offset = offset
        self._low, self._high = 0, entries  # the entry is in this range, `_high` excluded
        self._start, self._end = start, end  # the offsets of that range
        self._middle = False
        self.found: EntryPosition | None = None

    def next(self) -> int | None:
        """Return the entry to read next; None: the entry was found, or does not exist."""
        if self.found is not None or self._low >= self._high:
            return None
        count = self._high - self._low
        if self._middle or self._end <= self._start:
            guess = count // 2
        else:
            guess = (self._offset - self._start) * count // (self._end - self._start)
        self._middle = not self._middle
        return self._low + min(max(guess, 0), count - 1)

    def observe(self, place: EntryPosition, time_us: int) -> None:
        """Note an entry that was read."""
        if self._offset < place.first:
            self._high, self._end = place.entry, place.first
        elif self._offset >= place.end:
            self._low, self._start = place.entry + 1, place.end
        else:
            self.found = place


class FirstSearch:
    """Searches for the first entry for which `is_behind(place, append time)` holds; it holds for all later ones.

    guess: the entry to read first; None: the middle one.
    """

    def __init__(
        self, entries: int, is_behind: Callable[[EntryPosition, int], bool], *, guess: int | None = None
    ) -> None:
        self._is_behind, self._guess = is_behind, guess
        self._low, self._high = 0, entries
        self.found: EntryPosition | None = None
        """The best entry so far; None in the end: no entry fulfills the condition."""

    def next(self) -> int | None:
        """Return the entry to read next; None: the search is complete."""
        guess, self._guess = self._guess, None
        if guess is not None:
            return guess
        return (self._low + self._high) // 2 if self._low < self._high else None

    def observe(self, place: EntryPosition, time_us: int) -> None:
        """Note an entry that was read."""
        if self._is_behind(place, time_us):
            self._high, self.found = place.entry, place
        else:
            self._low = place.entry + 1
