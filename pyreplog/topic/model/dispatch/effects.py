"""Effects of a dispatcher: requests to its driver, to be carried out in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.topic.model.dispatch.offsets import Offsets
from pyreplog.topic.model.dispatch.redelivery import Failure


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read from the entry that holds `offset` on, up to the one that holds `end` - 1, about `bytes_max` bytes at most.

    Answer with `entries(id, …)` or `read_failed(id, …)`, exactly once, even if the subscription was moved meanwhile.
    """

    id: int
    offset: int
    end: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver messages to a consumer. redelivered: how often each message was delivered again, by offset, if it was."""

    consumer: int
    batch: MessageBatch
    redelivered: dict[int, int]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Publish messages as dead letters, then acknowledge them, or call `dead_letters_failed`.

    failures: why they failed, by offset.
    """

    batch: MessageBatch
    failures: dict[int, Failure]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `woken` at a time. An earlier one replaces a later one; both may be carried out."""

    at_us: int


@dataclass(frozen=True, slots=True)
class ActiveConsumerChanged:
    """Tell a consumer that it is the active one, or is no longer."""

    consumer: int
    active: bool


@dataclass(frozen=True, slots=True)
class CursorChanged:
    """Store the changes of the cursor."""


@dataclass(frozen=True, slots=True)
class Locate:
    """Locate the entries of acknowledged messages that the cursor does not know.

    The acknowledgements, ascending ranges of offsets, are not done: note the entries in the cursor, and acknowledge
    again.
    """

    consumer: int
    starts: Offsets
    ends: Offsets


Effect: TypeAlias = ReadEntries | Deliver | DeadLetter | WakeAt | ActiveConsumerChanged | CursorChanged | Locate
