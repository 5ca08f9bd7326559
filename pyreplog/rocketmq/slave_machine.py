"""SlaveMachine: the state machine of a slave in RocketMQ's HA protocol, without I/O, clock and randomness.

It reports as `DefaultHAClient` does, after every frame and when idle. Its first report is sent as soon as it is
connected, not after up to 5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from pyreplog._native.net.frame import DEFAULT_MAX_BODY, FrameBatch, FrameParser
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, PeerTimeoutError, ReplogError
from pyreplog.net.backoff import Backoff
from pyreplog.rocketmq.effects import AppendToLog, Close, Connect, Effect, ReportToMaster, Timeouts

_BACKOFF_FIRST_S = 0.05
_BUFFER_BYTES = 256 << 10


class SlaveState(Enum):
    """The state of a slave.

    WAITING: it waits before the next attempt to connect. CONNECTING: an attempt runs. STREAMING: it copies. STOPPED:
    the master cannot be the one that this log came from; `RocketMQSlave.error` says why.
    """

    WAITING = "waiting"
    CONNECTING = "connecting"
    STREAMING = "streaming"
    STOPPED = "stopped"


class SlaveMachine:
    """Connects to a master, requests the log, takes frames and reports; connects again after a lost connection.

    After an error that a correct master cannot cause, it tries once more. If the next attempt fails at the same
    position, it stops.

    Args:
        now_us: the time, microseconds.
        end: end of the log; 0: the log is empty.
        file_bytes: size of the segment files.
        start: what an empty log requests. None: the master's last file, which is all that RocketMQ offers; 0: the whole
            log; otherwise the start of a file that the master has.
        times: timeouts and intervals; None: RocketMQ's.
        random: returns a number from 0 to 1.

    Raises:
        InvalidArgumentError: `start` is not the start of a file.
    """

    def __init__(
        self,
        now_us: int,
        end: int,
        file_bytes: int,
        *,
        start: int | None = None,
        times: Timeouts | None = None,
        random: Callable[[], float],
    ) -> None:
        if start is not None and (start < 0 or start % file_bytes):
            raise InvalidArgumentError(f"start: expected the beginning of a file of {file_bytes} bytes, found {start}")
        times = times or Timeouts()
        self._file_bytes, self._start = file_bytes, start
        self._heartbeat_us, self._silence_us = times.heartbeat_ms * 1000, times.silence_ms * 1000
        self._connect_us = times.connect_ms * 1000
        self._backoff = Backoff(min(_BACKOFF_FIRST_S, times.retry_ms / 1000), times.retry_ms / 1000, random)
        self._parser = FrameParser()
        self._connecting_us = self._received_us = self._reported_us = now_us
        self._retry_us = now_us
        self._refused_at: int | None = None
        self.end = end
        self.state = SlaveState.WAITING
        self.error: ReplogError | None = None
        self.connects = self.frames = 0

    # ---- connecting -----------------------------------------------------------------------------------------

    def connected(self, now_us: int) -> list[Effect]:
        """Report a new connection. The first report to the master requests the log."""
        first: int | None = self._requested()
        if first == 0:
            first = None  # the start of the master's last file, which is unknown here
        self._parser = FrameParser(
            max_body=DEFAULT_MAX_BODY, offsets="contiguous", start=first, buffer_size=_BUFFER_BYTES
        )
        self.state = SlaveState.STREAMING
        self.connects += 1
        self._received_us = now_us
        return [self._report(now_us, self._requested())]

    def _requested(self) -> int:
        """Return the position to request.

        RocketMQ answers a request for 0 with its last file, so the whole log is requested from its second byte on. The
        first byte is known: it is the highest byte of a record's size, which is 0 below 16 MiB.
        """
        if self.end:
            return self.end
        return 1 if self._start == 0 else self._start or 0

    def lost(self, now_us: int, error: ReplogError) -> None:
        """Report that the connection ended, or could not be opened."""
        if self.state is not SlaveState.STOPPED:
            self.error = error
            self.state = SlaveState.WAITING
            self._retry_us = now_us + int(self._backoff.next_s() * 1e6)

    def retry(self, now_us: int) -> None:
        """Connect at the next tick, because the address has changed."""
        if self.state is not SlaveState.STOPPED:
            self.state = SlaveState.WAITING
            self._retry_us = now_us

    # ---- streaming ------------------------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Return the buffer to receive into."""
        return self._parser.get_buffer()

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete frame."""
        return self._parser.buffered

    def received(self, count: int, now_us: int) -> list[Effect]:
        """Take `count` bytes in `buffer`. The bodies must be appended before the next call, and their outcome
        reported."""
        self._received_us = now_us
        return self._take(self._parser.received(count), now_us)

    def _take(self, batch: FrameBatch, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for offset, body in batch:
            self.frames += 1
            text = self._position_error(offset, len(body))
            if text is not None:
                return [*effects, self._refuse(now_us, InvalidMessageError(text))]
            if not len(body):
                continue
            if offset == 1 and not self.end:
                effects.append(AppendToLog(0, b"\0"))
            effects.append(AppendToLog(offset, body))
            self.end = offset + len(body)
            effects.append(self._report(now_us, self.end))
        if batch.error is not None:
            effects.append(self._refuse(now_us, batch.error))
        return effects

    def _position_error(self, offset: int, size: int) -> str | None:
        """Return why the position of a frame is wrong, apart from the parser's checks, which know no files; None: it is
        right."""
        room = self._file_bytes - offset % self._file_bytes
        if offset < 0:
            return f"a master sent a frame at offset {offset}"
        if not self._requested() and offset % self._file_bytes:
            return f"a master answered a request for its last file with {offset}, which is not the beginning of a file"
        if size > room:
            return (
                f"a frame of {size} bytes at {offset} crosses the end of a file: the master's files have another size"
            )
        return None

    def landed(self, end: int) -> None:
        """Report that all bodies were appended, up to `end`. The attempt counts as a success."""
        self._backoff.reset()
        if self._refused_at is not None and end > self._refused_at:
            self._refused_at = None

    def refused(self, now_us: int, end: int, error: ReplogError) -> Close:
        """Report that the log refused a body, and its end now."""
        self.end = end
        return self._refuse(now_us, error)

    def _refuse(self, now_us: int, error: ReplogError) -> Close:
        """Retry after one invalid frame, which the network may have damaged; stop if it occurs again at the same
        position, because then the master is at fault."""
        self.error = error
        if self._refused_at == self.end and not error.retriable:
            self.state = SlaveState.STOPPED
        else:
            self._refused_at = self.end
            self.lost(now_us, error)
        return Close(error)

    # ---- time -----------------------------------------------------------------------------------------------

    def tick(self, now_us: int) -> list[Effect]:
        """Check timeouts, and return due effects."""
        if self.state is SlaveState.WAITING and now_us >= self._retry_us:
            self.state = SlaveState.CONNECTING
            self._connecting_us = now_us
            return [Connect()]
        if self.state is SlaveState.CONNECTING and now_us - self._connecting_us >= self._connect_us:
            return [self._time_out(now_us, "did not answer")]
        if self.state is SlaveState.STREAMING and now_us - self._received_us >= self._silence_us:
            return [self._time_out(now_us, "was silent")]
        if self.state is SlaveState.STREAMING and now_us - self._reported_us >= self._heartbeat_us:
            return [self._report(now_us, self._requested())]
        return []

    def _time_out(self, now_us: int, reason: str) -> Close:
        error = PeerTimeoutError(
            f"the master {reason} for {(now_us - max(self._connecting_us, self._received_us)) / 1e6:g} s"
        )
        self.lost(now_us, error)
        return Close(error)

    def _report(self, now_us: int, offset: int) -> ReportToMaster:
        self._reported_us = now_us
        return ReportToMaster(offset)
