"""Sends a log over one connection, as fast as the connection takes it, and goes on when the log has grown."""

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
"""Handed to the kernel in one call; each call releases the GIL."""

_TURN_BYTES = 8 << 20
"""Sent before other connections of the reactor have their turn."""


class StreamSender:
    """Streams a log over a connection, from a position on. The connection's handler calls `drained` and `closed`.

    Frames go straight from the mapped segments into the socket; a segment that is being sent is not recycled. Nothing
    is added to the connection's queue while some of it waits there: the backlog lies in the log, not in memory. Any
    thread may call `pump` at any time: an appender that waits for replicas, which calls `feed.leave` first, or
    `growth`.

    If the log cannot be sent any further, because the next bytes were removed or cut, the connection is closed with the
    error.

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
        self._busy = self.feed.turn = threading.Lock()
        self._again = False
        self._closed = False
        self._is_delayed = False  # by the throttle, whose timer runs
        self._sent_bytes = 0
        if throttle is None:
            connection.attach(self.feed)

    @property
    def sent_bytes(self) -> int:
        """Bytes of bodies that were sent so far."""
        return self._sent_bytes + self.feed.left_bytes

    def control(self, body: bytes) -> bool:
        """Send a control body, between frames of the log; return False if the connection is closed. Any thread."""
        return self._connection.send(encode(CONTROL_OFFSET, body))

    def pump(self) -> None:
        """Send what the log has, as far as the connection takes it now. Never blocks. Any thread."""
        self._again = True
        while self._again and self._busy.acquire(blocking=False):
            try:
                self._again = False
                self._send()
            except (ReplogError, OSError) as error:  # for example a segment that cannot be read
                self._connection.close(error if isinstance(error, ReplogError) else DisconnectedError(str(error)))
            finally:
                self._busy.release()

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
                self._wait()
                return
            sent += size
            if self._throttle is not None:
                self._throttle.spend(size)
            self._sent_bytes += size
            if not connection.send(*frames):
                return
            if size < limit:  # the end of the log
                if self._growth is not None:
                    self._wait()
                return

    def _wait(self) -> None:
        """Have `pump` called when the log has grown."""
        if self._growth is not None:
            self._growth.when_beyond(self.feed.position, self._pump_on)

    def _limit(self, throttle: RateLimiter) -> int:
        """Return the bytes that may be sent now; if 0, set a timer."""
        allowed = throttle.allowed(self._clock.monotonic_us())
        if not allowed and not self._is_delayed:
            self._is_delayed = True
            self._reactor.call_later(throttle.wait_us() / 1e6, self._rested)
        return min(allowed, _BATCH_BYTES)

    def _rested(self) -> None:
        self._is_delayed = False
        self.pump()
