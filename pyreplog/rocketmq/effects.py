"""What the two ends of RocketMQ's HA protocol ask their drivers for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.errors import ReplogError

FRAME_BYTES = 32 << 10
"""RocketMQ's `haTransferBatchSize`."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times of the protocol, in milliseconds. The defaults are RocketMQ's.

    Attributes:
        heartbeat_ms: an idle connection sends a heartbeat so often (`haSendHeartbeatInterval`).
        silence_ms: a peer that is silent for so long is disconnected (`haHousekeepingInterval`).
        connect_ms: time for one attempt to connect.
        retry_ms: time between two attempts, at most.
    """

    heartbeat_ms: int = 5_000
    silence_ms: int = 20_000
    connect_ms: int = 5_000
    retry_ms: int = 5_000

    @property
    def tick_s(self) -> float:
        """Seconds between two looks at the clock."""
        return max(min(self.heartbeat_ms, self.silence_ms, self.retry_ms) / 16_000, 0.005)


@dataclass(frozen=True, slots=True)
class SendFrame:
    """A frame with so many bytes of the log from `offset` on; without any it is a heartbeat."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SlaveAcked:
    """The slave has all before `offset`, in its page cache."""

    offset: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Begin to connect. Report `connected` or `lost`."""


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Bytes for the log. Report `refused` if it does not take them, and do nothing else of what was asked for."""

    offset: int
    body: memoryview | bytes


@dataclass(frozen=True, slots=True)
class ReportToMaster:
    """Tell the master where the log ends."""

    offset: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection, and nothing more of it; why."""

    error: ReplogError


Effect: TypeAlias = SendFrame | SlaveAcked | Connect | AppendToLog | ReportToMaster | Close
