"""A log on its way over one connection: as much as the connection takes, and woken when there is more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyreplog._native.net.frame import CONTROL_OFFSET, encode
from pyreplog.errors import DisconnectedError, ReplogError
from pyreplog.stream.frame_feed import TRANSFER_BYTES, FrameFeed
from pyreplog.stream.tail_watcher import TailWatcher
from pyreplog.stream.throttle import Throttle

if TYPE_CHECKING:
    from pyreplog.clock import Clock
    from pyreplog.log.commitlog import CommitLog
    from pyreplog.net.connection import Connection
    from pyreplog.net.reactor import Reactor

_BATCH_BYTES = 4 << 20
"""So much is handed to the kernel in one call: each is a release of the GIL."""

_TURN_BYTES = 8 << 20
"""So much may be sent before others on the reactor have their turn."""


class StreamSender:
    """Streams a log from a position on; for the handler of a connection, which tells it `drained` and `closed`.

    Frames go straight from the mapped segments into the socket; a segment being sent is not recycled. Nothing more is
    put into the connection's queue while some of it waits there: what is behind lies in the log, not in memory.
    `pump` may be called by any thread, at any time: by who has appended and waits for replicas (who asks
    `frame_feed.leave` first), by `tail_watcher`.

    position: where the stream begins, in front of a record or a segment. growth: who tells that the log has grown;
    None: whoever appends calls `pump`. throttle: of body bytes. When the log cannot be sent on (what is next was
    removed, or cut), the connection is closed with the error.
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
        throttle: Throttle | None = None,
    ) -> None:
        self._reactor, self._connection, self._log = reactor, connection, log
        self._clock: Clock = reactor.clock
        self.feed = FrameFeed(log, position, transfer_bytes)
        """What is to be handed to the connection next."""
        self._growth, self._throttle = growth, throttle
        self._pump_on = self.pump  # one bound method, by which `tail_watcher` knows it
        self._busy = self.feed.turn = threading.Lock()
        self._again = False
        self._closed = False
        self._is_delayed = False  # by the throttle: a timer runs
        self._sent_bytes = 0
        if throttle is None:
            connection.carry(self.feed)

    @property
    def sent_bytes(self) -> int:
        """Of bodies, so far."""
        return self._sent_bytes + self.feed.left_bytes

    def control(self, body: bytes) -> bool:
        """Send a control body, between frames of the log. False: the connection is closed. Any thread."""
        return self._connection.send(encode(CONTROL_OFFSET, body))

    def pump(self) -> None:
        """Send what there is, as far as the connection takes it now. Never blocks. Any thread."""
        self._again = True
        while self._again and self._busy.acquire(blocking=False):
            try:
                self._again = False
                self._send()
            except (ReplogError, OSError) as error:  # a segment that cannot be read, say
                self._connection.close(error if isinstance(error, ReplogError) else DisconnectedError(str(error)))
            finally:
                self._busy.release()

    drained = pump

    def closed(self) -> None:
        """The connection has ended."""
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
            if size < limit:  # that was all
                if self._growth is not None:
                    self._wait()
                return

    def _wait(self) -> None:
        """For the log to grow."""
        if self._growth is not None:
            self._growth.when_beyond(self.feed.position, self._pump_on)

    def _limit(self, throttle: Throttle) -> int:
        """Bytes that may be sent now; 0: a timer was set."""
        allowed = throttle.allowed(self._clock.monotonic_us())
        if not allowed and not self._is_delayed:
            self._is_delayed = True
            self._reactor.call_later(throttle.wait_us() / 1e6, self._rested)
        return min(allowed, _BATCH_BYTES)

    def _rested(self) -> None:
        self._is_delayed = False
        self.pump()
