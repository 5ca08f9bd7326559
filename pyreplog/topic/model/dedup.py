"""Sequence numbers: those that callers give, and which messages of named producers were published before; pure.

Of each producer: the highest number that was stored, the highest on its way, and which below these are known to have
failed. A number at or below the first is a duplicate, one between them is in doubt until the outcome of what is on its
way is known: unknown is not no. A number that failed is new again, whatever was stored behind it since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy
from numpy.typing import NDArray

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.errors import InvalidArgumentError, SequenceError, WrongTypeError
from pyreplog.topic.model import producer_snapshot as producersnapshot
from pyreplog.topic.model.producer_snapshot import SEQUENCE_MAX, ProducerState

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PRODUCERS_MAX = 10_000
FAILED_RANGES_MAX = 1024
"""Of each producer; beyond, the lowest are forgotten, and taken for duplicates."""

Sequences = range | NDArray[numpy.int64] | Sequence[int]
"""Ascending."""


class StoredMessages(Protocol):
    """What `Producers.replay` needs of a MessageBatch."""

    @property
    def sequence(self) -> NDArray[numpy.int64]: ...
    @property
    def publish_time(self) -> NDArray[numpy.int64]: ...
    @property
    def entry_count(self) -> NDArray[numpy.int64]: ...
    @property
    def entry_sequence(self) -> NDArray[numpy.int64]: ...
    @property
    def entry_producer(self) -> list[bytes]: ...


class DedupVerdict(Enum):
    """What to do with a message: publish it; nothing, it is there; wait."""

    NEW = 0
    DUPLICATE = 1
    IN_DOUBT = 2


class _Producer:
    """Where one stands. -1: no number yet."""

    __slots__ = ("active_us", "failed", "flying", "persisted", "pushed", "retried", "waiting")

    def __init__(self) -> None:
        self.persisted = self.pushed = -1
        self.flying = 0  # messages on their way
        self.failed: RangeSet | None = None  # numbers known not to be stored that have been passed, or may be
        self.retried: RangeSet | None = None  # those of them that are on their way again
        self.waiting: list[Any] = []
        self.active_us = 0

    def judge(self, sequence: int) -> DedupVerdict:
        if sequence > self.pushed or (self.failed and sequence in self.failed):
            return DedupVerdict.NEW
        if sequence > self.persisted or (self.retried and sequence in self.retried):
            return DedupVerdict.IN_DOUBT
        return DedupVerdict.DUPLICATE

    def settle(self, sequences: Sequences) -> None:
        self.flying -= len(sequences)
        if self.retried:
            self.retried.remove_offsets(_column(sequences))
        if not self.flying:
            self.pushed = self.persisted

    def fail(self, sequences: NDArray[numpy.int64]) -> None:
        if self.failed is None:
            self.failed = RangeSet()
        self.failed.add_offsets(sequences)
        while len(self.failed) > FAILED_RANGES_MAX:
            self.failed.pop_first()


class Producers:
    """The producers of a topic. Threads: the caller's lock.

    Numbers of one producer that are on their way are stored in the order in which they were pushed, or not at all.
    At most `producers_max` are known: those that published longest ago are forgotten first, and what they publish then
    is new; never those that have something on its way.
    """

    is_last_word = True
    """What is new is decided here, and nowhere else."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()  # who was active last is last
        self.has_new_failures = False
        """Messages have failed since the last snapshot: one should be stored soon. A successor that does not know of
        them takes them for duplicates, when they are published again behind later ones."""

    def __len__(self) -> int:
        return len(self._producers)

    def last_sequence(self, name: bytes) -> int:
        """The highest number of a producer that is stored; -1: none."""
        known = self._producers.get(name)
        return -1 if known is None else known.persisted

    def next_sequence(self, name: bytes) -> int:
        """The number behind all that a producer has stored, or on its way."""
        known = self._producers.get(name)
        return 0 if known is None else known.pushed + 1

    # ---- publishing -----------------------------------------------------------------------------------------

    def judge(self, name: bytes, sequence: int) -> DedupVerdict:
        """What to do with one message."""
        known = self._producers.get(name)
        return DedupVerdict.NEW if known is None else known.judge(sequence)

    def sift(self, name: bytes, sequences: Sequences) -> NDArray[numpy.bool_] | None:
        """Which messages of a batch are new; None: some are in doubt, so all of it has to wait."""
        known = self._producers.get(name)
        if known is None or sequences[0] > known.pushed:
            return numpy.ones(len(sequences), numpy.bool_)
        column = _column(sequences)
        new = column > known.pushed
        if known.failed:
            new |= known.failed.mask(column)
        doubtful = column > known.persisted
        if known.retried:
            doubtful |= known.retried.mask(column)
        return None if (doubtful & ~new).any() else new

    def push(self, name: bytes, sequences: Sequences) -> None:
        """New messages are on their way: `persisted` or `failed` will say what became of them."""
        known = self._producers.get(name)
        if known is None:
            self._make_room()
            known = self._producers[name] = _Producer()
        known.flying += len(sequences)
        if known.failed:
            column = _column(sequences)
            known.failed.remove_offsets(column)
            again = column[column <= known.pushed]
            if len(again):
                known.retried = known.retried or RangeSet()
                known.retried.add_offsets(again)
        known.pushed = max(known.pushed, int(sequences[-1]))

    def wait(self, name: bytes, who: Any) -> None:
        """`who` has messages in doubt: `persisted` or `failed` will give it back, to be judged again."""
        self._producers[name].waiting.append(who)

    def persisted(self, name: bytes, sequences: Sequences, now_us: int) -> list[Any]:
        """They are stored. Returns who waited for that."""
        known = self._producers[name]
        known.persisted = max(known.persisted, int(sequences[-1]))
        known.active_us = now_us
        self._producers.move_to_end(name)
        return self._settle(known, sequences)

    def failed(self, name: bytes, sequences: Sequences) -> list[Any]:
        """They are not stored, and never will be. Returns who waited for that."""
        known = self._producers[name]
        known.fail(_column(sequences))
        self.has_new_failures = True
        return self._settle(known, sequences)

    def _settle(self, known: _Producer, sequences: Sequences) -> list[Any]:
        known.settle(sequences)
        waiting, known.waiting = known.waiting, []
        return waiting

    def drop_waiting(self) -> list[Any]:
        """All who wait: nobody will tell them."""
        waiting: list[Any] = []
        for known in self._producers.values():
            waiting += known.waiting
            known.waiting = []
        return waiting

    def purge(self, before_us: int) -> int:
        """Forget those whose last message was stored before that time; returns how many."""
        idle = [name for name, known in self._producers.items() if not known.flying and known.active_us < before_us]
        for name in idle:
            del self._producers[name]
        return len(idle)

    def _make_room(self) -> None:
        """For one more, if there is any: those that came while all had something on their way are forgotten, too."""
        surplus = len(self._producers) + 1 - self._producers_max
        if surplus > 0:
            idle = (name for name, known in self._producers.items() if not known.flying)
            for name in list(islice(idle, surplus)):
                del self._producers[name]

    # ---- after a restart ------------------------------------------------------------------------------------

    def snapshot(self, ahead_us: int = 0) -> bytes:
        """What is stored of each producer, for `restore`; FORMAT.md has the bytes. Its times are those of the wall's
        clock, which is `ahead_us` ahead of the one that the other calls are told: that one ends with its machine.
        """
        states = [_state(name, known, ahead_us) for name, known in self._producers.items()]
        self.has_new_failures = False
        return producersnapshot.encode([state for state in states if state.persisted >= 0 or state.failed])

    def restore(self, data: bytes, ahead_us: int = 0) -> None:
        """Begin with what a snapshot says. InvalidMetadataError: it is none."""
        states = producersnapshot.decode(data)
        self._producers.clear()
        for state in states[-self._producers_max :]:
            known = self._producers[state.name] = _Producer()
            known.persisted = known.pushed = state.persisted
            known.active_us = state.active_us - ahead_us
            known.failed = state.failed if state.failed else None

    def replay(self, batch: StoredMessages, ahead_us: int = 0) -> None:
        """Entries of the topic, as read: in order from the end of what the snapshot knows, or from before. Nothing is
        on its way yet."""
        first = 0
        times, sequences = batch.publish_time, batch.sequence
        for name, last, count in zip(
            batch.entry_producer, batch.entry_sequence.tolist(), batch.entry_count.tolist(), strict=True
        ):
            if name and last >= 0:
                self._note(name, last, int(times[first]) - ahead_us, sequences[first : first + count])
            first += count

    def _note(self, name: bytes, last: int, time_us: int, sequences: NDArray[numpy.int64]) -> None:
        known = self._producers.get(name)
        if known is None:
            self._make_room()
            known = self._producers[name] = _Producer()
        self._producers.move_to_end(name)
        known.persisted = known.pushed = max(known.persisted, last)
        known.active_us = max(known.active_us, time_us)
        if known.failed:
            known.failed.remove_offsets(sequences)


def _column(sequences: Sequences) -> NDArray[numpy.int64]:
    if isinstance(sequences, range):
        return numpy.arange(sequences.start, sequences.stop, dtype=numpy.int64)
    return numpy.asarray(sequences, numpy.int64)


def _state(name: bytes, known: _Producer, ahead_us: int) -> ProducerState:
    failed = known.failed
    if known.retried:
        failed = RangeSet.load(known.failed.dump()) if known.failed else RangeSet()
        for starts, ends in known.retried.chunks():
            failed.add_ranges(starts, ends)
    return ProducerState(name, known.persisted, known.active_us + ahead_us, failed or None)


def check_sequence(sequence: int | None) -> int:
    """The number of one message; -1: it has none. Errors: WrongTypeError, InvalidArgumentError."""
    if sequence is None:
        return -1
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise WrongTypeError(f"sequence: expected an int, found {type(sequence).__name__}")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"sequence: expected 0 to {SEQUENCE_MAX}, found {sequence}")
    return sequence


def check_sequences(topic: str, sequences: ArrayLike, count: int) -> range | NDArray[numpy.int64]:
    """The numbers of `count` messages, a range if they are consecutive.

    Errors: SequenceError, they do not ascend; WrongTypeError; InvalidArgumentError.
    """
    column = numpy.asarray(sequences)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise WrongTypeError(f"sequences: expected integers in one dimension, found {column.dtype} of {column.shape}")
    if len(column) != count:
        raise InvalidArgumentError(f"sequences: expected {count}, one per value, found {len(column)}")
    if not count:
        return range(0)
    for number in (int(column.min()), int(column.max())):
        check_sequence(number)
    column = numpy.array(column, numpy.int64)  # the caller's may change before it is used
    descends = numpy.flatnonzero(column[1:] <= column[:-1])
    if len(descends):
        at = int(descends[0]) + 1
        raise SequenceError(topic, f"sequences must ascend: message {at} has {column[at]} behind {column[at - 1]}")
    first, last = int(column[0]), int(column[-1])
    return range(first, last + 1) if last - first == count - 1 else column
