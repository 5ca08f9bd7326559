"""What the two ends of RocketMQ's HA protocol ask their drivers for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.errors import ReplogError

FRAME_BYTES = 32 << 10
"""RocketMQ's `haTransferBatchSize`."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times of the protocol, in seconds. The defaults are RocketMQ's.

    Attributes:
        heartbeat_s: an idle connection sends a heartbeat so often (`haSendHeartbeatInterval`).
        silence_s: a peer that is silent for so long is disconnected (`haHousekeepingInterval`).
        connect_s: time for one attempt to connect.
        retry_s: time between two attempts, at most.
    """

    heartbeat_s: float = 5.0
    silence_s: float = 20.0
    connect_s: float = 5.0
    retry_s: float = 5.0

    @property
    def tick_s(self) -> float:
        """Seconds between two looks at the clock."""
        return max(min(self.heartbeat_s, self.silence_s, self.retry_s) / 16, 0.005)


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
