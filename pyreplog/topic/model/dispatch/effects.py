"""Effects of a dispatcher: requests to its driver, to be carried out in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.offsets import Offsets
from pyreplog.topic.model.dispatch.redelivery import Failure


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read from the entry that holds `offset` on, up to the one that holds `end` - 1, about `bytes_max` at most.

    Answer with `entries(id, …)` or `read_failed(id, …)`, exactly once, also when the subscription was moved meanwhile.
    """

    id: int
    offset: int
    end: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Messages for a consumer. redelivered: by offset, how often those were delivered again that were before."""

    consumer: int
    batch: MessageBatch
    redelivered: dict[int, int]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Messages that were delivered too often: publish them elsewhere, then acknowledge them, or tell
    `dead_letters_failed`. failures: why, by offset."""

    batch: MessageBatch
    failures: dict[int, Failure]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `woken` at that time. An earlier one replaces a later one; both may be carried out."""

    at_us: int


@dataclass(frozen=True, slots=True)
class ActiveConsumerChanged:
    """The consumer is the one that messages go to, or is not any more."""

    consumer: int
    active: bool


@dataclass(frozen=True, slots=True)
class Dirty:
    """The cursor has changes to store."""


@dataclass(frozen=True, slots=True)
class Locate:
    """Acknowledged, as ascending ranges of offsets, but of entries that the cursor does not know: nothing was done yet.
    Locate the entries, have the cursor know them, then acknowledge again."""

    consumer: int
    starts: Offsets
    ends: Offsets


Effect: TypeAlias = ReadEntries | Deliver | DeadLetter | WakeAt | ActiveConsumerChanged | Dirty | Locate
