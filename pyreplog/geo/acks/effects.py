"""What the state machines of this package ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.geo.acks.origin_ranges import Ranges
from pyreplog.geo.acks.subscription_state import Generation, Home
from pyreplog.origins.origin import Origin


@dataclass(frozen=True, slots=True)
class Persist:
    """Store a record durably behind those before. The event is `persisted(sequence)`, in order.

    Attributes:
        sequence: its number; that of the next record is one more.
        data: at most `journal.RECORD_BYTES_MAX` bytes.
        is_snapshot: records before it are not needed once it is stored.
    """

    sequence: int
    data: bytes
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a neighbour on the connection of `session`, in order; drop it if that is lost."""

    peer: bytes
    session: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge messages in the local cursor, and drop them from what its consumers hold.

    Attributes:
        name: of the subscription.
        token: of one of its births.
        generation: in which they are acknowledged.
        origin: of the messages, all of which are stored here.
        ranges: offsets at the origin.
    """

    name: str
    token: str
    generation: Generation
    origin: Origin
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Set the local cursor to the state of the subscription: that counts as acknowledged, and what expired here.

    A subscription that does not exist here is created, without a moment at which messages count as unacknowledged or
    acknowledged that should not. Consumers lose what they hold; acknowledgements of it do not count any more.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete the subscription here: it was deleted in some cluster."""

    name: str


@dataclass(frozen=True, slots=True)
class SeekLost:
    """Tell who sought here: a seek in another cluster, `by`, took the place of `generation`."""

    name: str
    generation: Generation
    by: Generation


@dataclass(frozen=True, slots=True)
class HomeChanged:
    """Deliver messages here only if `home` admits this cluster."""

    name: str
    home: Home


@dataclass(frozen=True, slots=True)
class Diverged:
    """Raise an alarm: a neighbour has acknowledgements of messages of this cluster that this cluster does not have.

    This cluster was rolled back, or its message log was. Acknowledgements of the origin are not taken from the
    neighbour any more in this session.
    """

    peer: bytes
    origin: Origin
    end: int


Effect: TypeAlias = Persist | Send | Acknowledge | Rebuild | Drop | SeekLost | HomeChanged | Diverged
