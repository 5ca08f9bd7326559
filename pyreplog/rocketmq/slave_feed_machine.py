"""The master's side of one connection of RocketMQ's HA protocol, as a state machine: no I/O, no clock.

RocketMQ's own (`DefaultHAConnection`) believes whatever a slave reports: 2^40 once released every producer. Here a
report counts only if an honest slave could have sent it on this connection.
"""

from __future__ import annotations

from pyreplog._native.ha.slave_offsets import SlaveOffsetParser
from pyreplog.errors import InvalidMessageError, PeerTimeoutError, ReplogError, TrimmedError
from pyreplog.rocketmq.effects import FRAME_BYTES, Close, Effect, SendFrame, SlaveAcked, Timeouts


class SlaveFeedMachine:
    """What was asked for, sent and acknowledged. All positions are the log's; `start` and `end` in calls are what the
    log has now.

    next: position of the next byte to send; None before the first report, when nothing may be sent. acked: what the
    slave has. reports: how many have come.
    """

    def __init__(self, now_us: int, file_bytes: int, times: Timeouts | None = None) -> None:
        times = times or Timeouts()
        self._file_bytes = file_bytes
        self._heartbeat_us, self._silence_us = times.heartbeat_ms * 1000, times.silence_ms * 1000
        self._heard_us = self._sent_us = now_us
        self._parser = SlaveOffsetParser()
        self._begun = 0
        self.error: ReplogError | None = None
        self.next: int | None = None
        self.acked = 0
        self.reports = 0

    def received(self, data: bytes, now_us: int, start: int, end: int) -> list[Effect]:
        """Bytes of the slave. Nothing of those behind a report that cannot be."""
        effects: list[Effect] = []
        if self.error is not None:
            return effects
        self._heard_us = now_us
        for offset in self._parser.feed(data):
            effect = self._judge(offset, start, end) if self.next is not None else self._begin(offset, start, end)
            self.reports += 1
            if effect is not None:
                effects.append(effect)
            if self.error is not None:
                break
        return effects

    def _begin(self, offset: int, start: int, end: int) -> Effect | None:
        """The first report is the request: 0 asks for the last file, for that is what RocketMQ answers."""
        if not 0 <= offset <= end:
            return self._refuse(f"a start of 0 to {end}, where this log ends", offset)
        if 0 < offset < start:
            return self._close(TrimmedError(f"a slave asked for {offset}: the log begins at {start}, copy it anew"))
        self.next = self._begun = offset or end - end % self._file_bytes
        if not offset:
            return None
        self.acked = offset
        return SlaveAcked(offset)

    def _judge(self, offset: int, start: int, end: int) -> Effect | None:
        """Not where the log ends bounds a report, but what was sent. An empty slave says 0 until it has something."""
        if offset == self.acked:
            return None
        least = self.acked or self._begun
        if self.next is None or not least <= offset <= self.next:
            return self._refuse(f"{least} to {self.next}: what it had, and was sent", offset)
        self.acked = offset
        return SlaveAcked(offset)

    def more(self, now_us: int, start: int, end: int) -> SendFrame | Close | None:
        """The next frame, if there is something to send."""
        if self.next is None or self.error is not None or self.next >= end:
            return None
        if self.next < start:
            return self._close(TrimmedError(f"a slave was too slow: it is at {self.next}, the log begins at {start}"))
        room = self._file_bytes - self.next % self._file_bytes
        send = SendFrame(self.next, min(room, end - self.next, FRAME_BYTES))
        self.next += send.size
        self._sent_us = now_us
        return send

    def tick(self, now_us: int, *, idle: bool) -> list[Effect]:
        """The time. idle: all that was to be sent has left."""
        if self.error is not None:
            return []
        if now_us - self._heard_us >= self._silence_us:
            return [self._close(PeerTimeoutError(f"the slave was silent for {self._silence_us / 1e6:g} s"))]
        if idle and self.next is not None and now_us - self._sent_us >= self._heartbeat_us:
            self._sent_us = now_us
            return [SendFrame(self.next, 0)]
        return []

    def _refuse(self, expected: str, found: int) -> Close:
        return self._close(
            InvalidMessageError(f"report {self.reports + 1} of a slave: expected {expected}, found {found}")
        )

    def _close(self, error: ReplogError) -> Close:
        self.error = error
        return Close(error)
