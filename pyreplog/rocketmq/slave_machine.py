"""The slave's side of RocketMQ's HA protocol, as a state machine: no I/O, no clock, no randomness.

It reports as `DefaultHAClient` does, after every frame and when idle, but at once on connecting, not after up to 5 s.
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
    """What a slave does now.

    WAITING: it waits before the next attempt to connect. CONNECTING: an attempt runs. STREAMING: it copies. STOPPED:
    the master cannot be the one that this log came from; `RocketMQSlave.error` says why.
    """

    WAITING = "waiting"
    CONNECTING = "connecting"
    STREAMING = "streaming"
    STOPPED = "stopped"


class SlaveMachine:
    """Connects, asks, takes frames, reports; and again after a loss.

    end: where the log ends; 0: it is empty. start: what an empty log asks for: None, the master's last file, which is
    all that RocketMQ offers; 0, all from the beginning; else the beginning of a file that the master has. random: a
    number from 0 to 1.

    What cannot be right is answered by another attempt; if that comes to the same point, nothing more is tried.

    Errors: InvalidArgumentError, a start that is not the beginning of a file.
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
        self._since_us = self._heard_us = self._told_us = now_us
        self._retry_us = now_us
        self._refused_at: int | None = None
        self.end = end
        self.state = SlaveState.WAITING
        self.error: ReplogError | None = None
        self.connects = self.frames = 0

    # ---- connecting -----------------------------------------------------------------------------------------

    def connected(self, now_us: int) -> list[Effect]:
        """There is a connection: the first report says what is wanted."""
        first: int | None = self._wanted()
        if first == 0:
            first = None  # wherever the master's last file begins
        self._parser = FrameParser(
            max_body=DEFAULT_MAX_BODY, offsets="contiguous", start=first, buffer_size=_BUFFER_BYTES
        )
        self.state = SlaveState.STREAMING
        self.connects += 1
        self._heard_us = now_us
        return [self._report(now_us, self._wanted())]

    def _wanted(self) -> int:
        """RocketMQ takes a request for 0 for one of its last file, so that all is asked for from the second byte on.
        The first one is known: of a size below 16 MiB the highest byte is 0."""
        if self.end:
            return self.end
        return 1 if self._start == 0 else self._start or 0

    def lost(self, now_us: int, error: ReplogError) -> None:
        """There is none any more, or none was made."""
        if self.state is not SlaveState.STOPPED:
            self.error = error
            self.state = SlaveState.WAITING
            self._retry_us = now_us + int(self._backoff.next_s() * 1e6)

    def retry(self, now_us: int) -> None:
        """Connect at the next tick: there is another address."""
        if self.state is not SlaveState.STOPPED:
            self.state = SlaveState.WAITING
            self._retry_us = now_us

    # ---- streaming ------------------------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Where to receive."""
        return self._parser.get_buffer()

    @property
    def buffered(self) -> int:
        """Bytes of a frame whose rest has not come."""
        return self._parser.buffered

    def received(self, count: int, now_us: int) -> list[Effect]:
        """So many bytes are in `buffer`. Bodies are to be landed before the next call, and reported as they landed."""
        self._heard_us = now_us
        return self._take(self._parser.received(count), now_us)

    def _take(self, batch: FrameBatch, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for offset, body in batch:
            self.frames += 1
            wrong = self._misplaced(offset, len(body))
            if wrong is not None:
                return [*effects, self._refuse(now_us, InvalidMessageError(wrong))]
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

    def _misplaced(self, offset: int, size: int) -> str | None:
        """What the parser lets through: it knows nothing of files."""
        room = self._file_bytes - offset % self._file_bytes
        if offset < 0:
            return f"a master sent a frame at offset {offset}"
        if not self._wanted() and offset % self._file_bytes:
            return f"a master answered a request for its last file with {offset}, which is not the beginning of a file"
        if size > room:
            return (
                f"a frame of {size} bytes at {offset} crosses the end of a file: the master's files have another size"
            )
        return None

    def landed(self, end: int) -> None:
        """All that was to be landed has; `end` is where the log ends. It works: the next loss is a new one."""
        self._backoff.reset()
        if self._refused_at is not None and end > self._refused_at:
            self._refused_at = None

    def refused(self, now_us: int, end: int, error: ReplogError) -> Close:
        """The log did not take what was to be landed; where it ends now."""
        self.end = end
        return self._refuse(now_us, error)

    def _refuse(self, now_us: int, error: ReplogError) -> Close:
        """Once it may have been the wire; twice at one place it is the master."""
        self.error = error
        if self._refused_at == self.end and not error.retriable:
            self.state = SlaveState.STOPPED
        else:
            self._refused_at = self.end
            self.lost(now_us, error)
        return Close(error)

    # ---- time -----------------------------------------------------------------------------------------------

    def tick(self, now_us: int) -> list[Effect]:
        """The time."""
        if self.state is SlaveState.WAITING and now_us >= self._retry_us:
            self.state = SlaveState.CONNECTING
            self._since_us = now_us
            return [Connect()]
        if self.state is SlaveState.CONNECTING and now_us - self._since_us >= self._connect_us:
            return [self._leave(now_us, "did not answer")]
        if self.state is SlaveState.STREAMING and now_us - self._heard_us >= self._silence_us:
            return [self._leave(now_us, "was silent")]
        if self.state is SlaveState.STREAMING and now_us - self._told_us >= self._heartbeat_us:
            return [self._report(now_us, self._wanted())]
        return []

    def _leave(self, now_us: int, what: str) -> Close:
        error = PeerTimeoutError(f"the master {what} for {(now_us - max(self._since_us, self._heard_us)) / 1e6:g} s")
        self.lost(now_us, error)
        return Close(error)

    def _report(self, now_us: int, offset: int) -> ReportToMaster:
        self._told_us = now_us
        return ReportToMaster(offset)
