"""Deduplication: which messages of named producers were published before, by their sequence numbers. No I/O.

For each producer it keeps the highest number that was stored, the highest number in flight, and the lower numbers that
are known to have failed. A number at or below the first is a duplicate. A number between them is in doubt until the
outcome of the messages in flight is known. A number that failed is new again, whatever was stored behind it since.

In a topic with `global_producers` a name is one producer in all clusters. Then the highest number proves nothing: lower
ones may still be on their way from another cluster. So the stored numbers themselves are kept, as ranges, for each
cluster that they came from: see `GlobalProducers`.

The topic's owner drops the duplicates in `topic/client/publishing/sequencer.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import InvalidArgumentError, SequenceError, WrongTypeError
from pyreplog.topic.model import global_producer_snapshot, producer_snapshot
from pyreplog.topic.model.global_producer_snapshot import GlobalProducerState
from pyreplog.topic.model.producer_snapshot import SEQUENCE_MAX, ProducerState

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PRODUCERS_MAX = 10_000
FAILED_RANGES_MAX = 1024
"""Most ranges of failed numbers of a producer; beyond, the lowest are forgotten, and count as duplicates."""

LOCAL = 0
"""Stands for the topic itself where others have `Origin.key`: messages that were published here."""
STORED_RANGES_MAX = 16_384
"""Most ranges of stored numbers of a global producer, for each origin; beyond, the lowest are forgotten."""
TOTAL_RANGES_MAX = 131_072
"""Most ranges of all global producers of a topic; beyond, those that published longest ago are forgotten."""

Sequences = range | NDArray[np.int64] | Sequence[int]
"""Ascending sequence numbers."""


class StoredMessages(Protocol):
    """The part of a MessageBatch that `Producers.replay` uses."""

    @property
    def sequence(self) -> NDArray[np.int64]: ...
    @property
    def publish_time(self) -> NDArray[np.int64]: ...
    @property
    def entry_count(self) -> NDArray[np.int64]: ...
    @property
    def entry_sequence(self) -> NDArray[np.int64]: ...
    @property
    def entry_producer(self) -> list[bytes]: ...
    @property
    def entry_origin_first(self) -> NDArray[np.int64]: ...
    @property
    def entry_origin_key(self) -> NDArray[np.uint64]: ...


class DedupVerdict(Enum):
    """The decision about a message: NEW: publish it; DUPLICATE: drop it; IN_DOUBT: wait."""

    NEW = 0
    DUPLICATE = 1
    IN_DOUBT = 2


class _Producer:
    """The state of one producer. -1: no number yet."""

    __slots__ = ("active_us", "failed", "in_flight", "persisted", "pushed", "retried", "waiting")

    def __init__(self) -> None:
        self.persisted = self.pushed = -1
        self.in_flight = 0  # number of messages
        self.failed: RangeSet | None = None  # numbers below `pushed` that are known not to be stored
        self.retried: RangeSet | None = None  # numbers below `pushed` that are in flight again
        self.waiting: list[Any] = []
        self.active_us = 0

    def check_sequence(self, sequence: int) -> DedupVerdict:
        if sequence > self.pushed or (self.failed and sequence in self.failed):
            return DedupVerdict.NEW
        if sequence > self.persisted or (self.retried and sequence in self.retried):
            return DedupVerdict.IN_DOUBT
        return DedupVerdict.DUPLICATE

    def settle(self, sequences: Sequences) -> None:
        self.in_flight -= len(sequences)
        if self.retried:
            self.retried.remove_offsets(_column(sequences))
        if not self.in_flight:
            self.pushed = self.persisted

    def fail(self, sequences: NDArray[np.int64]) -> None:
        if self.failed is None:
            self.failed = RangeSet()
        self.failed.add_offsets(sequences)
        while len(self.failed) > FAILED_RANGES_MAX:
            self.failed.pop_first()


class Producers:
    """The producers of a topic. The caller has to hold its lock.

    Messages of one producer that are in flight are stored in the order in which they were pushed, or not at all. At
    most `producers_max` producers are known. Those that published longest ago are forgotten first, never those with
    messages in flight; a message of a forgotten producer is new.
    """

    is_authoritative = True
    """Whether the decisions about duplicates are final; those of a client are not."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()  # the producer that was active last is last
        self.has_new_failures = False
        """Messages have failed since the last snapshot, so another one should be stored soon.

        An owner that does not know of them would drop them as duplicates if they are published again after later ones.
        """

    def __len__(self) -> int:
        return len(self._producers)

    def last_sequence(self, name: bytes) -> int:
        """Return the highest stored number of a producer; -1: none is stored."""
        producer = self._producers.get(name)
        return -1 if producer is None else producer.persisted

    def next_sequence(self, name: bytes) -> int:
        """Return the number behind all numbers of a producer that are stored or in flight."""
        producer = self._producers.get(name)
        return 0 if producer is None else producer.pushed + 1

    # ---- publishing -----------------------------------------------------------------------------------------

    def check_sequence(self, name: bytes, sequence: int) -> DedupVerdict:
        """Return how to handle one message."""
        producer = self._producers.get(name)
        return DedupVerdict.NEW if producer is None else producer.check_sequence(sequence)

    def find_new(self, name: bytes, sequences: Sequences) -> NDArray[np.bool_] | None:
        """Return which messages of a batch are new; None: some are in doubt, so the whole batch has to wait."""
        producer = self._producers.get(name)
        if producer is None or sequences[0] > producer.pushed:
            return np.ones(len(sequences), np.bool_)
        column = _column(sequences)
        new = column > producer.pushed
        if producer.failed:
            new |= producer.failed.mask(column)
        doubtful = column > producer.persisted
        if producer.retried:
            doubtful |= producer.retried.mask(column)
        return None if (doubtful & ~new).any() else new

    def push(self, name: bytes, sequences: Sequences) -> None:
        """Note that new messages are in flight; `persisted` or `failed` reports their outcome."""
        producer = self._known(name)
        producer.in_flight += len(sequences)
        if producer.failed:
            column = _column(sequences)
            producer.failed.remove_offsets(column)
            again = column[column <= producer.pushed]
            if len(again):
                producer.retried = producer.retried or RangeSet()
                producer.retried.add_offsets(again)
        producer.pushed = max(producer.pushed, int(sequences[-1]))

    def _known(self, name: bytes) -> _Producer:
        """Return a producer, which is created if it is not known."""
        producer = self._producers.get(name)
        if producer is None:
            self._make_room()
            producer = self._producers[name] = self._create()
        return producer

    def _create(self) -> _Producer:
        return _Producer()

    def wait(self, name: bytes, waiter: Any) -> None:
        """Register a waiter with messages in doubt.

        `persisted` or `failed` returns it when it has to be decided again.
        """
        self._producers[name].waiting.append(waiter)

    def persisted(self, name: bytes, sequences: Sequences, now_us: int) -> list[Any]:
        """Note that messages are stored; return the waiters."""
        producer = self._producers[name]
        producer.persisted = max(producer.persisted, int(sequences[-1]))
        producer.active_us = now_us
        self._producers.move_to_end(name)
        return self._settle(producer, sequences)

    def failed(self, name: bytes, sequences: Sequences) -> list[Any]:
        """Note that messages are not stored and never will be; return the waiters."""
        producer = self._producers[name]
        producer.fail(_column(sequences))
        self.has_new_failures = True
        return self._settle(producer, sequences)

    def _settle(self, producer: _Producer, sequences: Sequences) -> list[Any]:
        producer.settle(sequences)
        waiting, producer.waiting = producer.waiting, []
        return waiting

    def drop_waiting(self) -> list[Any]:
        """Remove and return all waiters."""
        waiting: list[Any] = []
        for producer in self._producers.values():
            waiting += producer.waiting
            producer.waiting = []
        return waiting

    def purge(self, before_us: int) -> int:
        """Forget the producers whose last message was stored before a time; return their number."""
        idle = [
            name
            for name, producer in self._producers.items()
            if not producer.in_flight and producer.active_us < before_us
        ]
        for name in idle:
            del self._producers[name]
        return len(idle)

    def _make_room(self) -> None:
        """Forget idle producers, so that there is space for another one.

        If the limit was exceeded while all producers had messages in flight, more of them are forgotten.
        """
        surplus = len(self._producers) + 1 - self._producers_max
        if surplus > 0:
            idle = (name for name, producer in self._producers.items() if not producer.in_flight)
            for name in list(islice(idle, surplus)):
                del self._producers[name]

    # ---- after a restart ------------------------------------------------------------------------------------

    def snapshot(self, ahead_us: int = 0) -> bytes:
        """Return the stored state of each producer, for `restore`; FORMAT.md has the bytes.

        Its times are those of the wall clock. The clock of the other calls, which ends with its machine, is `ahead_us`
        behind.
        """
        states = [_state(name, known, ahead_us) for name, known in self._producers.items()]
        self.has_new_failures = False
        return producer_snapshot.encode([state for state in states if state.persisted >= 0 or state.failed])

    def restore(self, data: bytes, ahead_us: int = 0) -> None:
        """Set the state to that of a snapshot. Raises InvalidMetadataError if it is malformed."""
        states = producer_snapshot.decode(data)
        self._producers.clear()
        for state in states[-self._producers_max :]:
            producer = self._producers[state.name] = _Producer()
            producer.persisted = producer.pushed = state.persisted
            producer.active_us = state.active_us - ahead_us
            producer.failed = state.failed if state.failed else None

    def replay(self, batch: StoredMessages, ahead_us: int = 0) -> None:
        """Apply entries of the topic, in order, from the end of the snapshot or from before. No message may be in
        flight.

        Producers of other clusters, whose entries were replicated, differ from producers of this cluster with the same
        names.
        """
        first = 0
        times, sequences = batch.publish_time, batch.sequence
        for name, last, count, origin_first in zip(
            batch.entry_producer, batch.entry_sequence.tolist(), batch.entry_count.tolist(),
            batch.entry_origin_first.tolist(), strict=True,
        ):  # fmt: skip
            if name and last >= 0 and origin_first < 0:
                self._note(name, last, int(times[first]) - ahead_us, sequences[first : first + count])
            first += count

    def _note(self, name: bytes, last: int, time_us: int, sequences: NDArray[np.int64]) -> None:
        producer = self._known(name)
        self._producers.move_to_end(name)
        producer.persisted = producer.pushed = max(producer.persisted, last)
        producer.active_us = max(producer.active_us, time_us)
        if producer.failed:
            producer.failed.remove_offsets(sequences)


class _GlobalProducer(_Producer):
    """The state of one global producer; its sets of numbers are kept by origin of the messages.

    Attributes:
        stored: numbers that are stored.
        flying: numbers in flight, each in as many sets as there are messages of it.
        floor: numbers of this topic below it were forgotten.
    """

    __slots__ = ("floor", "flying", "stored")

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[int, RangeSet] = {}
        self.flying: dict[int, list[RangeSet]] = {}
        self.floor = 0

    @property
    def ranges(self) -> int:
        """Number of ranges of stored numbers."""
        return sum(map(len, self.stored.values()))

    def check_sequence(self, sequence: int) -> DedupVerdict:
        if sequence > self.pushed:
            return DedupVerdict.NEW
        if sequence < self.floor or any(sequence in numbers for numbers in self.stored.values()):
            return DedupVerdict.DUPLICATE
        flies = any(sequence in layer for layers in self.flying.values() for layer in layers)
        return DedupVerdict.IN_DOUBT if flies else DedupVerdict.NEW

    def push(self, sequences: Sequences, origin: int) -> None:
        layers, rest = self.flying.setdefault(origin, []), _column(sequences)
        for layer in layers:
            again = layer.mask(rest)
            layer.add_offsets(rest[~again])
            rest = rest[again]
        if len(rest):
            layers.append(RangeSet())
            layers[-1].add_offsets(rest)

    def land(self, sequences: Sequences, origin: int) -> None:
        layers, rest = self.flying[origin], _column(sequences)
        for layer in layers:
            landed = layer.mask(rest)
            layer.remove_offsets(rest[landed])
            rest = rest[~landed]
        self.flying[origin] = [layer for layer in layers if layer]
        if not self.flying[origin]:
            del self.flying[origin]

    def store(self, sequences: Sequences, origin: int) -> None:
        numbers = self.stored.get(origin)
        if numbers is None:
            numbers = self.stored[origin] = RangeSet()
        if isinstance(sequences, range):
            numbers.add(sequences.start, sequences.stop)
        else:
            numbers.add_offsets(_column(sequences))
        while len(numbers) > STORED_RANGES_MAX:
            forgotten = numbers.pop_first()
            if origin == LOCAL and forgotten is not None:
                self.floor = max(self.floor, forgotten[1])


class GlobalProducers(Producers):
    """The producers of a topic with `global_producers`: a name is one producer in all clusters.

    The caller has to hold its lock. A number that is stored, from whichever cluster it came, is a duplicate; a number
    that is not known is new, even if higher ones are stored. In addition, numbers of messages published in this cluster
    are duplicates if they are below the lowest range that is remembered of them, as without `global_producers`.

    At most `producers_max` producers are known, with STORED_RANGES_MAX ranges for each origin and TOTAL_RANGES_MAX in
    all. Consecutive numbers are one range, whichever messages came between.
    """

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        super().__init__(producers_max=producers_max)
        self._ranges = 0  # of all producers, or more

    def _create(self) -> _GlobalProducer:
        return _GlobalProducer()

    def _get(self, name: bytes) -> _GlobalProducer | None:
        return cast("_GlobalProducer | None", self._producers.get(name))

    # ---- publishing -----------------------------------------------------------------------------------------

    def find_new(self, name: bytes, sequences: Sequences) -> NDArray[np.bool_] | None:
        producer = self._get(name)
        if producer is None or sequences[0] > producer.pushed:
            return np.ones(len(sequences), np.bool_)
        column = _column(sequences)
        stored = _mask(producer.stored.values(), column) | (column < producer.floor)
        flying = _mask(chain.from_iterable(producer.flying.values()), column)
        return None if (flying & ~stored).any() else ~stored

    def check_copy(self, name: bytes, sequences: Sequences, same_cluster: Collection[int]) -> DedupVerdict:
        """Return how to handle an entry that another cluster sent.

        Args:
            name: the producer of its messages.
            sequences: their numbers.
            same_cluster: keys of the origins in that cluster. Their gates decide about messages from there: if a topic
                there was created anew, its producers may begin anew.

        Returns:
            DUPLICATE: each message is stored already, published here or sent by a third cluster. IN_DOUBT: each is
                stored or in flight. NEW: store the whole entry.
        """
        producer = self._get(name)
        if producer is None:
            return DedupVerdict.NEW
        column = _column(sequences)
        stored = _mask([known for key, known in producer.stored.items() if key not in same_cluster], column)
        if stored.all():
            return DedupVerdict.DUPLICATE
        for key, layers in producer.flying.items():
            if key not in same_cluster:
                stored |= _mask(layers, column)
        return DedupVerdict.IN_DOUBT if stored.all() else DedupVerdict.NEW

    def push(self, name: bytes, sequences: Sequences, origin: int = LOCAL) -> None:
        """Note that new messages are in flight. origin: key of theirs."""
        producer = cast("_GlobalProducer", self._known(name))
        producer.in_flight += len(sequences)
        producer.push(sequences, origin)
        producer.pushed = max(producer.pushed, int(sequences[-1]))

    def persisted(self, name: bytes, sequences: Sequences, now_us: int, origin: int = LOCAL) -> list[Any]:
        producer = cast("_GlobalProducer", self._producers[name])
        self._store(name, producer, sequences, origin)
        producer.persisted = max(producer.persisted, int(sequences[-1]))
        producer.active_us = now_us
        producer.land(sequences, origin)
        return self._settle(producer, sequences)

    def failed(self, name: bytes, sequences: Sequences, origin: int = LOCAL) -> list[Any]:
        producer = cast("_GlobalProducer", self._producers[name])
        producer.land(sequences, origin)
        return self._settle(producer, sequences)

    def _store(self, name: bytes, producer: _GlobalProducer, sequences: Sequences, origin: int) -> None:
        before = len(producer.stored.get(origin, ()))
        producer.store(sequences, origin)
        self._producers.move_to_end(name)
        self._ranges += len(producer.stored[origin]) - before
        if self._ranges > TOTAL_RANGES_MAX:
            self._forget_ranges(name)

    def _forget_ranges(self, kept: bytes) -> None:
        """Forget the producers that published longest ago, until there are few enough ranges."""
        self._ranges = sum(producer.ranges for producer in self._all())
        for name in [name for name, producer in self._producers.items() if not producer.in_flight and name != kept]:
            if self._ranges <= TOTAL_RANGES_MAX:
                break
            self._ranges -= cast("_GlobalProducer", self._producers.pop(name)).ranges

    def _all(self) -> Iterator[_GlobalProducer]:
        return cast("Iterator[_GlobalProducer]", iter(self._producers.values()))

    # ---- after a restart ------------------------------------------------------------------------------------

    def snapshot(self, ahead_us: int = 0) -> bytes:
        states = [
            GlobalProducerState(name, producer.floor, producer.active_us + ahead_us, producer.stored)
            for name, producer in zip(self._producers, self._all(), strict=True)
            if producer.stored
        ]
        return global_producer_snapshot.encode(states)

    def restore(self, data: bytes, ahead_us: int = 0) -> None:
        states = global_producer_snapshot.decode(data)
        self._producers.clear()
        for state in states[-self._producers_max :]:
            producer = self._producers[state.name] = self._create()
            producer.stored, producer.floor = state.stored, state.floor
            producer.persisted = producer.pushed = max(numbers.last or 0 for numbers in state.stored.values())
            producer.active_us = state.active_us - ahead_us
        self._ranges = sum(producer.ranges for producer in self._all())

    def replay(self, batch: StoredMessages, ahead_us: int = 0) -> None:
        """Apply entries of the topic, replicated ones as well: see `Producers.replay`."""
        first = 0
        times, sequences = batch.publish_time, batch.sequence
        for name, last, count, origin in zip(
            batch.entry_producer, batch.entry_sequence.tolist(), batch.entry_count.tolist(),
            batch.entry_origin_key.tolist(), strict=True,
        ):  # fmt: skip
            if name and last >= 0:
                producer = cast("_GlobalProducer", self._known(name))
                self._store(name, producer, sequences[first : first + count], origin)
                producer.persisted = producer.pushed = max(producer.persisted, last)
                producer.active_us = max(producer.active_us, int(times[first]) - ahead_us)
            first += count


def _mask(sets: Iterable[RangeSet], column: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers are in any of the sets."""
    mask = np.zeros(len(column), np.bool_)
    for numbers in sets:
        mask |= numbers.mask(column)
    return mask


def _column(sequences: Sequences) -> NDArray[np.int64]:
    if isinstance(sequences, range):
        return np.arange(sequences.start, sequences.stop, dtype=np.int64)
    return np.asarray(sequences, np.int64)


def _state(name: bytes, producer: _Producer, ahead_us: int) -> ProducerState:
    failed = producer.failed
    if producer.retried:
        failed = RangeSet.load(producer.failed.dump()) if producer.failed else RangeSet()
        for starts, ends in producer.retried.chunks():
            failed.add_ranges(starts, ends)
    return ProducerState(name, producer.persisted, producer.active_us + ahead_us, failed or None)


def check_sequence(sequence: int | None) -> int:
    """Return the sequence number of one message; -1: it has none.

    Raises WrongTypeError if it is no int, InvalidArgumentError if it is out of bounds.
    """
    if sequence is None:
        return -1
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise WrongTypeError(f"sequence: expected an int, found {type(sequence).__name__}")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"sequence: expected 0 to {SEQUENCE_MAX}, found {sequence}")
    return sequence


def check_sequences(topic: str, sequences: ArrayLike, count: int) -> range | NDArray[np.int64]:
    """Return the sequence numbers of `count` messages, as a range if they are consecutive.

    Raises SequenceError if they do not ascend, WrongTypeError if they are no integers, and InvalidArgumentError if
    there are not `count` of them or one is out of bounds.
    """
    column = np.asarray(sequences)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise WrongTypeError(f"sequences: expected integers in one dimension, found {column.dtype} of {column.shape}")
    if len(column) != count:
        raise InvalidArgumentError(f"sequences: expected {count}, one per value, found {len(column)}")
    if not count:
        return range(0)
    for number in (int(column.min()), int(column.max())):
        check_sequence(number)
    column = np.array(column, np.int64)  # the caller may change its array before it is used
    descends = np.flatnonzero(column[1:] <= column[:-1])
    if len(descends):
        at = int(descends[0]) + 1
        raise SequenceError(topic, f"sequences must ascend: message {at} has {column[at]} behind {column[at - 1]}")
    first, last = int(column[0]), int(column[-1])
    return range(first, last + 1) if last - first == count - 1 else column
