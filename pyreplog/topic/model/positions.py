"""Places in a topic: where readers and subscriptions may start, offsets, entries of ledgers, offsets of partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.times import moment_us


class TopicPosition(NamedTuple):
    """Messages, entries and their value bytes of a topic before a point, counted since the topic began: what was
    trimmed counts on. `offset` is therefore the offset of the first message behind the point."""

    offset: int
    entries: int
    size: int


ORIGIN = TopicPosition(0, 0, 0)


class EntryPosition(NamedTuple):
    """One entry of a topic. first: offset of its first message; count: its messages; size: its value bytes;
    entries_before, bytes_before: of the topic."""

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
        """What lies before it."""
        return TopicPosition(self.first, self.entries_before, self.bytes_before)

    @property
    def behind(self) -> TopicPosition:
        """What lies before the next entry."""
        return TopicPosition(self.end, self.entries_before + 1, self.bytes_before + self.size)


T = TypeVar("T")

Start = int | datetime | Literal["earliest", "latest"]
"""An offset; a moment of publishing, with a time zone; or an end of the topic."""


class Located(Protocol):
    """What can tell where messages are: a ManagedLedger."""

    @property
    def start(self) -> TopicPosition: ...
    @property
    def end(self) -> TopicPosition: ...
    def locate(self, offset: int) -> AppendFuture[EntryPosition]: ...
    def offset_at_time(self, time_us: int) -> AppendFuture[int]: ...


def check_start(start: Start) -> Start:
    """Errors: WrongTypeError, InvalidArgumentError: it is none, or a datetime without a time zone."""
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise InvalidArgumentError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, bool) or not isinstance(start, int | np.integer | datetime | str):
        raise WrongTypeError(f"start: expected an offset, a datetime, 'earliest' or 'latest', found {start!r}")
    if isinstance(start, datetime):
        moment_us("start", start)
    return start


def position(log: Located, start: Start) -> AppendFuture[TopicPosition]:
    """What lies before a place. An offset below the first message that is kept, or beyond the end, is an error of the
    AppendFuture: TrimmedError, OutOfRangeError; others are those of `ManagedLedger.locate`."""
    done: AppendFuture[TopicPosition] = AppendFuture()
    if isinstance(check_start(start), str):
        done.complete(log.start if start == "earliest" else log.end)
    elif isinstance(start, datetime):
        then(log.offset_at_time(moment_us("start", start)), done, lambda offset: _at_offset(log, offset, done))
    else:
        _at_offset(log, int(start), done)
    return done


def _at_offset(log: Located, offset: int, done: AppendFuture[TopicPosition]) -> None:
    end = log.end
    if offset == end.offset:
        done.complete(end)
        return
    then(
        log.locate(offset),
        done,
        lambda place: done.complete(TopicPosition(offset, place.entries_before, place.bytes_before)),
    )


def then(future: AppendFuture[T], done: AppendFuture[Any], go_on: Callable[[T], object]) -> None:
    """Go on with the result of an AppendFuture; its error, or one that is raised, is the error of `done`."""

    def came(_: AppendFuture[T]) -> None:
        error = future.exception()
        if error is None:
            try:
                go_on(future.result())
            except Exception as raised:
                error = raised
        if error is not None:
            done.fail(error)

    future.add_done_callback(came)


def done_ack() -> AppendFuture[None]:
    """One of something that needs no waiting."""
    future: AppendFuture[None] = AppendFuture()
    future.complete(None)
    return future


def after_all(futures: Sequence[AppendFuture[Any]], call: Callable[[], object]) -> None:
    """Call when all of them are done, whatever they give; at once, if they are."""
    left, lock = len(futures), threading.Lock()

    def came(_: AppendFuture[Any] | None) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left < 0
        if is_last:
            call()

    for future in futures:
        future.add_done_callback(came)
    came(None)


def all_done(futures: Sequence[AppendFuture[Any]]) -> AppendFuture[None]:
    """Done when all of them are; it fails with the error of the first in order that failed."""
    done: AppendFuture[None] = AppendFuture()

    def settle() -> None:
        error = next((error for future in futures if (error := future.exception()) is not None), None)
        if error is None:
            done.complete(None)
        else:
            done.fail(error)

    after_all(futures, settle)
    return done


class PartitionOffset(NamedTuple):
    """One message: an offset says nothing without its partition. offset: DUPLICATE (-1), it was published before."""

    partition: int
    offset: int


class PartitionRange(NamedTuple):
    """Messages of one partition, published together."""

    partition: int
    offsets: range


PartitionedStart = PartitionOffset | datetime | Literal["earliest", "latest"]
"""A message, of one partition; or of all: a moment of publishing, or their ends."""

PartitionedWhat = Message | MessageBatch | PartitionOffset | Iterable[Message | PartitionOffset]
"""One message, a batch of them, a place, or several."""


def is_offset(start: Any) -> bool:
    """Of which nobody knows in what partition. Errors: as check_start."""
    return not isinstance(check_start(start), datetime | str)


def by_partition(what: Iterable[Message | PartitionOffset]) -> dict[int, list[int]]:
    """Offsets of each partition; of an empty list, none. Errors: WrongTypeError."""
    if not isinstance(what, Iterable) or isinstance(what, str | bytes | bytearray | memoryview):
        raise WrongTypeError(
            f"what: expected messages, a batch of them, or PartitionOffsets, found {type(what).__name__}"
        )
    found: dict[int, list[int]] = {}
    for one in what:
        if not isinstance(one, Message | PartitionOffset):
            raise WrongTypeError(f"what: expected messages or PartitionOffsets, found {type(one).__name__}")
        found.setdefault(one.partition, []).append(one.offset)
    return found


class OffsetSearch:
    """The entry that holds `offset`, of a ledger with `entries` entries that hold the offsets from `start` up to `end`.

    Entries mostly hold about as many messages each, so it looks where the entry should be, and in every other step in
    the middle of what is left: at most about twice as many steps as bisection, and mostly one or two.
    """

    def __init__(self, offset: int, entries: int, start: int, end: int) -> None:
        self._offset = offset
        self._low, self._high = 0, entries  # it is one of these, `_high` excluded
        self._start, self._end = start, end  # offsets these hold
        self._middle = False
        self.found: EntryPosition | None = None

    def next(self) -> int | None:
        """The entry to look at; None: it was found, or is nowhere."""
        if self.found is not None or self._low >= self._high:
            return None
        count = self._high - self._low
        if self._middle or self._end <= self._start:
            guess = count // 2
        else:
            guess = (self._offset - self._start) * count // (self._end - self._start)
        self._middle = not self._middle
        return self._low + min(max(guess, 0), count - 1)

    def saw(self, place: EntryPosition, time_us: int) -> None:
        """What is there."""
        if self._offset < place.first:
            self._high, self._end = place.entry, place.first
        elif self._offset >= place.end:
            self._low, self._start = place.entry + 1, place.end
        else:
            self.found = place


class FirstSearch:
    """The first entry for which `is_behind(place, append time)`; once it holds it does for all that follow. guess: the
    entry that is looked at first, None: the middle."""

    def __init__(
        self, entries: int, is_behind: Callable[[EntryPosition, int], bool], *, guess: int | None = None
    ) -> None:
        self._is_behind, self._guess = is_behind, guess
        self._low, self._high = 0, entries
        self.found: EntryPosition | None = None
        """The best so far; None in the end: there is none."""

    def next(self) -> int | None:
        guess, self._guess = self._guess, None
        if guess is not None:
            return guess
        return (self._low + self._high) // 2 if self._low < self._high else None

    def saw(self, place: EntryPosition, time_us: int) -> None:
        if self._is_behind(place, time_us):
            self._high, self.found = place.entry, place
        else:
            self._low = place.entry + 1
