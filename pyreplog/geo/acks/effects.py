"""The effects of the state machines of this package, which their caller carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.geo.acks.origin_ranges import Ranges
from pyreplog.geo.acks.subscription_state import Generation, Home
from pyreplog.origins.origin import LastEntry, Origin


@dataclass(frozen=True, slots=True)
class Persist:
    """Store a record durably behind the others. The event is `persisted(sequence)`, in order.

    Attributes:
        sequence: number of the record; the next record has one more.
        data: at most `journal.RECORD_BYTES_MAX` bytes.
        is_snapshot: whether the records before it may be deleted once it is stored.
    """

    sequence: int
    data: bytes
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a neighbour on the connection of `session`, in order; drop it if the connection is lost."""

    peer: bytes
    session: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge messages in the local cursor, and take them from its consumers.

    Attributes:
        name: name of the subscription.
        token: token of one of its births.
        generation: generation in which the messages are acknowledged.
        origin: origin of the messages, all of which are stored here.
        ranges: offsets at the origin.
    """

    name: str
    token: str
    generation: Generation
    origin: Origin
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Set the local cursor to the state of the subscription, with the messages that expired here.

    A subscription that does not exist here is created; it never exists with another state. Messages are taken from
    consumers, and their acknowledgements of these no longer count.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete the subscription here, because a cluster deleted it."""

    name: str


@dataclass(frozen=True, slots=True)
class SeekLost:
    """Report that a seek here, `generation`, was replaced by a seek in another cluster, `by`."""

    name: str
    generation: Generation
    by: Generation


@dataclass(frozen=True, slots=True)
class HomeChanged:
    """Deliver the subscription here only if `home` admits this cluster."""

    name: str
    home: Home


@dataclass(frozen=True, slots=True)
class Diverged:
    """Raise an alarm: a neighbour has acknowledgements of messages of this cluster that this cluster lacks.

    This cluster was rolled back, or its message log was. Further acknowledgements of the origin from the neighbour are
    refused in this session.
    """

    peer: bytes
    origin: Origin
    end: int


@dataclass(frozen=True, slots=True)
class CompareEntry:
    """Read the entry here that holds a message of a third cluster. The event is `compared`.

    Attributes:
        peer: neighbour that has reported its last entry of the origin.
        session: session in which it did.
        origin: origin of the message.
        last: the neighbour's entry; all before its end is stored here.
    """

    peer: bytes
    session: int
    origin: Origin
    last: LastEntry


@dataclass(frozen=True, slots=True)
class HistoryDiffers:
    """Raise an alarm: a neighbour has another entry of a third cluster than this one, or its own topic ends too early.

    One of the three was rolled back, or the neighbour. Acknowledgements of the origin from the neighbour are refused in
    this session.

    Attributes:
        peer: the neighbour.
        origin: origin of the entries.
        first: offset at the origin of the entry of this cluster or the neighbour; if the origin is the topic of the
            neighbour: its end, behind which messages are acknowledged here.
    """

    peer: bytes
    origin: Origin
    first: int


Effect: TypeAlias = (
    Persist | Send | Acknowledge | Rebuild | Drop | SeekLost | HomeChanged | Diverged | CompareEntry | HistoryDiffers
)
