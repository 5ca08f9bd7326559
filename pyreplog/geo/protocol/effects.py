"""The effects of a `Sender`, which its caller carries out. The outcome of each is an event with the same attempt.

An event with an older attempt comes from an abandoned connection; the sender ignores it.
"""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.origins.origin import Gap, LastEntry, Origin, OriginEntry


class SourceEntry(NamedTuple):
    """An undecoded entry of the topic in this cluster.

    Attributes:
        value: the encoded messages.
        messages: their number.
        first: offset here of the first one.
        time_us: when the entry was stored here, microseconds since 1970.
        origin: the topic of another cluster that the messages come from; None: they were published here.
        origin_first: offset at the origin of the first message; -1: the messages were published here.
        origin_time_us: when the origin stored the entry.
        gaps: gaps of the origin before it.
        replicate_to: names of the only clusters that it is sent to; None: the policy decides alone.
    """

    value: bytes
    messages: int
    first: int
    time_us: int
    origin: Origin | None = None
    origin_first: int = -1
    origin_time_us: int = 0
    gaps: tuple[Gap, ...] = ()
    replicate_to: frozenset[str] | None = None

    @property
    def end(self) -> int:
        """Offset here behind the last message."""
        return self.first + self.messages


class OpenOrigin(NamedTuple):
    """Open a session of an origin at the target. Event: `Sender.opened`."""

    attempt: int
    origin: Origin
    session: int


class CheckEntry(NamedTuple):
    """Read the entry here that begins at an offset. Event: `Sender.checked`."""

    attempt: int
    first: int


class ReadEntries(NamedTuple):
    """Read confirmed entries from an offset on. Event: `Sender.entries_read`, or `Sender.read_failed`."""

    attempt: int
    offset: int
    bytes_max: int


class SendEntries(NamedTuple):
    """Send entries of one origin, and gaps behind them. Event: `Sender.request_stored` or `Sender.request_failed`."""

    attempt: int
    request: int
    origin: Origin
    entries: tuple[OriginEntry, ...]
    gaps: tuple[Gap, ...]
    size: int


class WakeAt(NamedTuple):
    """Call `Sender.woke` at a time of the monotonic clock, in place of the time before."""

    at_us: int


class Disconnect(NamedTuple):
    """Forget the sessions of this attempt; its requests that have not left may be dropped."""

    attempt: int


class Progress(NamedTuple):
    """The durable cursor may move: the target has everything below `mark`, which falls back after `resync` alone.

    Attributes:
        mark: an offset here.
        own: position of the target in the messages published here.
        others: its position in each other origin.
    """

    mark: int
    own: TargetPosition
    others: dict[Origin, TargetPosition]


class TargetPosition(NamedTuple):
    """The position in an origin that a target reported last. `stored` never falls, unless the target was rolled back.

    Attributes:
        stored: the target has every message of the origin below this offset, or noted a gap there.
        last: the last entry that was sent to the target from here; None: not known.
    """

    stored: int
    last: LastEntry | None


class EntryRefused(NamedTuple):
    """Report an entry that the target can never store; it is skipped. Offsets are those at the origin."""

    origin: Origin
    first: int
    end: int
    error: Exception


class RenewOrigin(NamedTuple):
    """Give another identity to the messages here that the target may lack.

    The target has other messages under the present identity. This sender has ended; another sender follows, for the
    topic under its new identity.

    Attributes:
        mark: offset here below which the target had every message when the mark was noted.
        position: position that the target reported then; None: it reported none.
    """

    mark: int
    position: TargetPosition | None


class RaiseAlarm(NamedTuple):
    """Report a problem that a person has to solve."""

    text: str


Effect = (
    OpenOrigin
    | CheckEntry
    | ReadEntries
    | SendEntries
    | WakeAt
    | Disconnect
    | Progress
    | EntryRefused
    | RenewOrigin
    | RaiseAlarm
)
