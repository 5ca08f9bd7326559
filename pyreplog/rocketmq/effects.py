"""Effects: what the state machines of RocketMQ's HA protocol ask their drivers to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.errors import ReplogError

FRAME_BYTES = 32 << 10
"""Most bytes of the log in a frame: RocketMQ's `haTransferBatchSize`."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and intervals of the protocol, milliseconds. The defaults are RocketMQ's.

    Attributes:
        heartbeat_ms: interval of heartbeats on an idle connection (`haSendHeartbeatInterval`).
        silence_ms: silence after which a peer is disconnected (`haHousekeepingInterval`).
        connect_ms: timeout of one attempt to connect.
        retry_ms: longest pause between two attempts.
    """

    heartbeat_ms: int = 5_000
    silence_ms: int = 20_000
    connect_ms: int = 5_000
    retry_ms: int = 5_000

    @property
    def tick_s(self) -> float:
        """Seconds between two checks of the timeouts."""
        return max(min(self.heartbeat_ms, self.silence_ms, self.retry_ms) / 16_000, 0.005)


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame with `size` bytes of the log from `offset` on; 0 bytes: a heartbeat."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlaveAcked:
    """The slave has the log up to `offset`, in its page cache."""

    offset: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Begin to connect. Report `connected` or `lost`."""


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Append bytes to the log. If the log refuses them, report `refused` and skip the other effects."""

    offset: int
    body: memoryview | bytes


@dataclass(frozen=True, slots=True)
class ReportToMaster:
    """Report the end of the log to the master."""

    offset: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with an error, and skip its other effects."""

    error: ReplogError


Effect: TypeAlias = SendFrame | SlaveAcked | Connect | AppendToLog | ReportToMaster | Close
