"""KeepAlive: detects by heartbeats, silence and stalled queues whether both ends are alive. No clock and no I/O."""

from __future__ import annotations

from enum import Enum

_CHECKS = 4
_SHORTEST_S = 0.005


class KeepAliveAction(Enum):
    """The action that a check returns."""

    NOTHING = 0
    SEND = 1  # send a heartbeat: nothing was sent for heartbeat_s
    SILENT = 2  # nothing was received for silence_s
    STALLED = 3  # the queue was over its limit for stall_s


class KeepAlive:
    """Compares the byte counters of a connection at intervals, so that sending and receiving need not read a clock.

    It notices silence and stalls up to one `interval_s` late.
    """

    __slots__ = ("_limits_us", "_received", "_received_us", "_sent", "_sent_us", "_stalled_us", "interval_s")

    def __init__(self, now_us: int, *, heartbeat_s: float, silence_s: float, stall_s: float) -> None:
        self.interval_s = max(min(heartbeat_s, silence_s, stall_s) / _CHECKS, _SHORTEST_S)
        self._limits_us = (int(heartbeat_s * 1e6), int(silence_s * 1e6), int(stall_s * 1e6))
        self._received_us = self._sent_us = now_us
        self._stalled_us: int | None = None
        self._received = self._sent = 0

    def check(
        self, now_us: int, *, received: int, sent: int, listening: bool, full: bool, unheard_s: float = 0.0
    ) -> KeepAliveAction:
        """Compare the counters, and return what to do.

        Args:
            now_us: monotonic time, microseconds.
            received: bytes received so far.
            sent: bytes sent so far.
            listening: this side reads; otherwise the peer is not silent.
            full: the queue is over its limit.
            unheard_s: seconds since the peer's machine acknowledged any bytes, even if this side does not read.
        """
        heartbeat_us, silence_us, stall_us = self._limits_us
        if received != self._received or not listening:
            self._received, self._received_us = received, now_us
        if sent != self._sent:
            self._sent, self._sent_us = sent, now_us
        if not full:
            self._stalled_us = None
        elif self._stalled_us is None:
            self._stalled_us = now_us
        elif now_us - self._stalled_us >= stall_us:
            return KeepAliveAction.STALLED
        if now_us - self._received_us >= silence_us or unheard_s * 1e6 >= silence_us:
            return KeepAliveAction.SILENT
        if now_us - self._sent_us >= heartbeat_us - int(self.interval_s * 1e6):
            return KeepAliveAction.SEND
        return KeepAliveAction.NOTHING
