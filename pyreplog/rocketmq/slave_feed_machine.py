"""SlaveFeedMachine: the state machine of a master's connection in RocketMQ's HA protocol, without I/O and clock.

RocketMQ's `DefaultHAConnection` accepts any position that a slave reports: a report of 2^40 once released every waiting
producer. Here a report counts only if a correct slave could have sent it on this connection.
"""

from __future__ import annotations

from pyreplog._native.ha.slave_offsets import SlaveOffsetParser
from pyreplog.errors import InvalidMessageError, PeerTimeoutError, ReplogError, TrimmedError
from pyreplog.rocketmq.effects import FRAME_BYTES, Close, Effect, SendFrame, SlaveAcked, Timeouts


class SlaveFeedMachine:
    """The positions that a slave requested, was sent, and acknowledged.

    The arguments `start` and `end` of methods are the present ends of the log.

    Attributes:
        next: position of the next byte to send; None before the first report, until which no byte may be sent.
        acked: position up to which the slave has the log.
        reports: number of reports that arrived.
    """

    def __init__(self, now_us: int, file_bytes: int, times: Timeouts | None = None) -> None:
        times = times or Timeouts()
        self._file_bytes = file_bytes
        self._heartbeat_us, self._silence_us = times.heartbeat_ms * 1000, times.silence_ms * 1000
        self._received_us = self._sent_us = now_us
        self._parser = SlaveOffsetParser()
        self._requested = 0
        self.error: ReplogError | None = None
        self.next: int | None = None
        self.acked = 0
        self.reports = 0

    def received(self, data: bytes, now_us: int, start: int, end: int) -> list[Effect]:
        """Take bytes from the slave. Bytes behind an invalid report are ignored."""
        effects: list[Effect] = []
        if self.error is not None:
            return effects
        self._received_us = now_us
        for offset in self._parser.feed(data):
            effect = self._on_ack(offset, start, end) if self.next is not None else self._on_request(offset, start, end)
            self.reports += 1
            if effect is not None:
                effects.append(effect)
            if self.error is not None:
                break
        return effects

    def _on_request(self, offset: int, start: int, end: int) -> Effect | None:
        """Take the first report, the request. A request for 0 gets the last file, as from RocketMQ."""
        if not 0 <= offset <= end:
            return self._refuse(f"a start of 0 to {end}, where this log ends", offset)
        if 0 < offset < start:
            return self._close(TrimmedError(f"a slave asked for {offset}: the log begins at {start}, copy it anew"))
        self.next = self._requested = offset or end - end % self._file_bytes
        if not offset:
            return None
        self.acked = offset
        return SlaveAcked(offset)

    def _on_ack(self, offset: int, start: int, end: int) -> Effect | None:
        """Take an acknowledgement. It must not exceed the sent bytes, even if the log is longer. An empty slave reports
        0 until it has received bytes."""
        if offset == self.acked:
            return None
        least = self.acked or self._requested
        if self.next is None or not least <= offset <= self.next:
            return self._refuse(f"{least} to {self.next}: what it had, and was sent", offset)
        self.acked = offset
        return SlaveAcked(offset)

    def more(self, now_us: int, start: int, end: int) -> SendFrame | Close | None:
        """Return the next frame; None: there is nothing to send."""
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
        """Check timeouts. idle: whether all frames have been written to the socket."""
        if self.error is not None:
            return []
        if now_us - self._received_us >= self._silence_us:
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
