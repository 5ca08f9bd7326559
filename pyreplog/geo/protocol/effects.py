"""What a `Sender` wants done. The outcome of each effect is an event with the same attempt.

An event with an older attempt comes from a connection that was given up; the sender ignores it.
"""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.origins.origin import Gap, LastEntry, Origin, OriginEntry


class SourceEntry(NamedTuple):
    """An entry of the topic here, undecoded.

    Attributes:
        value: the encoded messages.
        messages: their number.
        first: offset here of the first one.
        time_us: when it was stored here, microseconds since 1970.
        origin: the topic of another cluster that it comes from; None: it was published here.
        origin_first: offset at the origin of the first message; -1: it was published here.
        origin_time_us: when the origin stored it.
        gaps: gaps of the origin before it.
    """

    value: bytes
    messages: int
    first: int
    time_us: int
    origin: Origin | None = None
    origin_first: int = -1
    origin_time_us: int = 0
    gaps: tuple[Gap, ...] = ()

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
    """Read confirmed entries from an offset on. Event: `Sender.came`, or `Sender.read_failed`."""

    attempt: int
    offset: int
    bytes_max: int


class SendEntries(NamedTuple):
    """Send entries of one origin, and gaps behind them. Event: `Sender.stored` or `Sender.failed`."""

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
    """Forget the sessions of this attempt; what of it is not sent yet need not be sent."""

    attempt: int


class Progress(NamedTuple):
    """The durable cursor may move: the target has everything below `mark`.

    Attributes:
        mark: an offset here.
        own: what the target has of messages published here.
        others: what it has of other origins.
    """

    mark: int
    own: OriginNote
    others: dict[Origin, OriginNote]


class OriginNote(NamedTuple):
    """What a target said that it has of an origin: `stored` falls never, unless the target was rolled back.

    Attributes:
        stored: everything below it.
        last: the last entry that was sent to it from here; None: not known.
    """

    stored: int
    last: LastEntry | None


class RaiseAlarm(NamedTuple):
    """Tell people what they have to decide."""

    text: str


Effect = OpenOrigin | CheckEntry | ReadEntries | SendEntries | WakeAt | Disconnect | Progress | RaiseAlarm
