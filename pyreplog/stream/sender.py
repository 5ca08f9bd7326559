"""StreamSender: sends a log over one connection, as fast as it takes the data, and continues when the log has grown."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyreplog._native.net.frame import CONTROL_OFFSET, encode
from pyreplog.errors import DisconnectedError, ReplogError
from pyreplog.stream.frame_feed import TRANSFER_BYTES, FrameFeed
from pyreplog.stream.rate_limiter import RateLimiter
from pyreplog.stream.tail_watcher import TailWatcher

if TYPE_CHECKING:
    from pyreplog.clock import Clock
    from pyreplog.log.commit_log import CommitLog
    from pyreplog.net.connection import Connection
    from pyreplog.net.reactor import Reactor

_BATCH_BYTES = 4 << 20
"""Most bytes that one call hands to the kernel; each call releases the GIL."""

_TURN_BYTES = 8 << 20
"""Bytes that are sent before other connections of the reactor have their turn."""


class StreamSender:
    """Streams a log over a connection, from a position on. The connection's handler calls `drained` and `closed`.

    Frames go straight from the mapped segments into the socket; a segment that is being sent is not recycled. No frame
    is added to the connection's queue while bytes wait there: the backlog is in the log, not in memory. Any thread may
    call `pump` at any time: an appender that waits for replicas, which calls `feed.leave` first, or `growth`.

    If the log cannot be sent any further, because the next bytes were trimmed or truncated, the connection is closed
    with the error.

    Args:
        reactor: the reactor of the connection.
        connection: the connection.
        log: the log to send.
        position: where the stream begins, in front of a record or a segment.
        transfer_bytes: most bytes of a frame's body.
        growth: calls `pump` when the log has grown; None: appenders call `pump`.
        throttle: limits the bytes of bodies; None: no limit.
    """

    def __init__(
        self,
        reactor: Reactor,
        connection: Connection,
        log: CommitLog,
        position: int,
        *,
        transfer_bytes: int = TRANSFER_BYTES,
        growth: TailWatcher | None = None,
        throttle: RateLimiter | None = None,
    ) -> None:
        self._reactor, self._connection, self._log = reactor, connection, log
        self._clock: Clock = reactor.clock
        self.feed = FrameFeed(log, position, transfer_bytes)
        """The frames that are sent next."""
        self._growth, self._throttle = growth, throttle
        self._pump_on = self.pump  # one bound method, the key in `growth`
        self._pumping = self.feed.turn = threading.Lock()
        self._is_pump_requested = False
        self._closed = False
        self._is_delayed = False  # whether a timer of the throttle runs
        self._sent_bytes = 0
        if throttle is None:
            connection.attach(self.feed)

    @property
    def sent_bytes(self) -> int:
        """Bytes of bodies that were sent."""
        return self._sent_bytes + self.feed.left_bytes

    def control(self, body: bytes) -> bool:
        """Send a control body between frames of the log; return False if the connection is closed. Any thread."""
        return self._connection.send(encode(CONTROL_OFFSET, body))

    def pump(self) -> None:
        """Send the log as far as the connection takes it now. Never blocks. Any thread."""
        self._is_pump_requested = True
        while self._is_pump_requested and self._pumping.acquire(blocking=False):
            try:
                self._is_pump_requested = False
                self._send()
            except (ReplogError, OSError) as error:  # for example a segment that cannot be read
                self._connection.close(error if isinstance(error, ReplogError) else DisconnectedError(str(error)))
            finally:
                self._pumping.release()

    drained = pump

    def closed(self) -> None:
        """Stop, because the connection has ended."""
        self._closed = True
        self.feed.end()
        if self._growth is not None:
            self._growth.forget(self._pump_on)

    def _send(self) -> None:
        connection, feed = self._connection, self.feed
        sent = 0
        while not self._closed and not connection.queued_bytes:
            if sent >= _TURN_BYTES:
                self._reactor.call_soon(self._pump_on)
                return
            limit = _BATCH_BYTES if self._throttle is None else self._limit(self._throttle)
            if not limit:
                return
            frames, size = feed.take(limit)
            if not size:
                self._watch_growth()
                return
            sent += size
            if self._throttle is not None:
                self._throttle.spend(size)
            self._sent_bytes += size
            if not connection.send(*frames):
                return
            if size < limit:  # the end of the log
                if self._growth is not None:
                    self._watch_growth()
                return

    def _watch_growth(self) -> None:
        """Register `pump` to be called when the log has grown."""
        if self._growth is not None:
            self._growth.when_beyond(self.feed.position, self._pump_on)

    def _limit(self, throttle: RateLimiter) -> int:
        """Return the bytes that may be sent now; if 0, set a timer."""
        allowed = throttle.allowed(self._clock.monotonic_us())
        if not allowed and not self._is_delayed:
            self._is_delayed = True
            self._reactor.call_later(throttle.wait_us() / 1e6, self._on_throttle_timer)
        return min(allowed, _BATCH_BYTES)

    def _on_throttle_timer(self) -> None:
        self._is_delayed = False
        self.pump()
