"""ServerConnection: counts and limits requests whose replies were not sent. A server reads no more than it can hold."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import FrameError
from pyreplog.net.connection import INFLIGHT_FULL, Handler
from pyreplog.net.fast_path import FastPathConnection
from pyreplog.net.handshake import Peer
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Stream, size_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

REQUEST_BYTES = 256
"""Bytes that a request counts besides its body, so that small requests are limited, too."""


class Budget:
    """Bytes in flight on all connections of a server. Any thread may use it.

    changed: called when the limit is crossed, by the thread that crosses it.
    """

    __slots__ = ("_changed", "_limit", "_lock", "full", "used_bytes")

    def __init__(self, limit: int, changed: Callable[[], object]) -> None:
        self._limit, self._changed = limit, changed
        self._lock = allocate_lock()
        self.used_bytes = 0
        self.full = False

    def add(self, count: int) -> None:
        """Add bytes to those in flight; a negative number removes bytes."""
        with self._lock:
            self.used_bytes += count
            full = self.used_bytes > self._limit
            crossed = full is not self.full
            self.full = full
        if crossed:
            self._changed()


class ServerConnection(FastPathConnection):
    """A connection whose frames are requests: `reply` answers each of them, or `forget` drops it.

    Heartbeats and control bodies do not count. requests: bytes of the requests without a reply, by correlation id.
    """

    def __init__(
        self,
        reactor: Reactor,
        stream: Stream,
        handler: Handler,
        limits: Limits,
        peer: Peer,
        budget: Budget,
        ended: Callable[[ServerConnection], object],
    ) -> None:
        super().__init__(reactor, stream, handler, limits, peer)
        self._ended = ended
        self.inflight_bytes = 0
        self._budget = budget
        self.requests: dict[int, int] = {}
        self._queued_replies: deque[tuple[int, int]] = deque()  # (`sent_bytes` after a reply, bytes of its request)

    @property
    def inflight(self) -> int:
        """Number of unanswered requests."""
        return len(self.requests)

    def reply(self, correlation_id: int, *buffers: ReadableBuffer) -> bool:
        """Answer a request once, with a body that consists of `buffers`. Any thread may call it.

        Like `send`, it never blocks, and keeps the buffers. Returns False if the connection is closed. When the reply
        was sent, the bytes of the request are removed from the budget.
        """
        size = size_of(buffers)
        with self._lock:
            sent = self._send_or_queue_frame(correlation_id, buffers, size)
            charge = self._settle_bytes(self.requests.pop(correlation_id, 0))
        if charge:
            self._return_budget(charge)
        return sent

    def reply_frames(self, correlation_ids: Sequence[int], frames: Sequence[ReadableBuffer]) -> bool:
        """Answer several requests at once, with the frames of their replies."""
        size = size_of(frames)
        with self._lock:
            sent = self._send_or_queue(tuple(frames), size)
            charge = self._settle(*correlation_ids)
        if charge:
            self._return_budget(charge)
        return sent

    def forget(self, correlation_id: int) -> None:
        """Drop a request that gets no reply, or no further one. Any thread may call it."""
        with self._lock:
            charge = self._settle(correlation_id)
        self._return_budget(charge)

    def _settle(self, *correlation_ids: int) -> int:
        """Remove requests; return the bytes to remove from the budget now."""
        return self._settle_bytes(sum(map(self.requests.pop, correlation_ids, repeat(0))))

    def _settle_bytes(self, charge: int) -> int:
        """Note that the replies to requests of so many bytes are sent or queued; return the bytes to remove from the
        budget now.

        Those of queued replies are removed when they were sent.
        """
        send_queue = self.send_queue
        if send_queue.queued_bytes:
            self._queued_replies.append((send_queue.sent_bytes + send_queue.queued_bytes, charge))
            return 0
        self.inflight_bytes -= charge
        return charge

    def _dispatch(self, batch: FrameBatch) -> None:
        """Pass requests to the handler.

        A request that is answered on the fast path is never counted as in flight. For a plain socket FastPathReceiver
        has tried the fast path already.
        """
        send_queue = self.send_queue
        if (
            self.fast_path is not None
            and not send_queue.plain
            and not send_queue.corked
            and not send_queue.queued_bytes
        ):
            answer = self.fast_path(self, batch)
            if answer is not None:
                if answer:
                    with self._lock:
                        self._send_or_queue((answer,), len(answer))
                return
        taken, bad = batch.note(self.requests, REQUEST_BYTES)
        if taken:
            self._charge(taken)
        if bad is not None:
            raise FrameError(self.received_bytes, "a correlation id from 0 that is not in use", str(bad))
        if taken or any(body for _, body in batch):
            self._handler.frames(self, batch)

    def _charge(self, taken: int) -> None:
        self._budget.add(taken)
        with self._lock:
            self.inflight_bytes += taken
            if self.inflight_bytes > self.limits.connection_inflight_bytes:
                self.reasons |= INFLIGHT_FULL
                self._update_events()

    def _return_budget(self, charge: int) -> None:
        """Remove bytes from the budget, and resume reading if the limit of this connection has stopped it."""
        if charge:
            self._budget.add(-charge)
            if self.reasons & INFLIGHT_FULL and self.inflight_bytes <= self.limits.connection_inflight_bytes:
                self.release(INFLIGHT_FULL)

    def _flushed(self) -> None:
        """Remove the bytes of requests whose replies were sent from the budget."""
        leaving, sent = self._queued_replies, self.send_queue.sent_bytes
        charge = 0
        with self._lock:
            while leaving and leaving[0][0] <= sent:
                charge += leaving.popleft()[1]
            self.inflight_bytes -= charge
        self._return_budget(charge)
        super()._flushed()

    def _finish(self) -> None:
        if not self._closed:
            with self._lock:
                charge, self.inflight_bytes = self.inflight_bytes, 0
                self.requests.clear()
                self._queued_replies.clear()
            self._budget.add(-charge)
        super()._finish()
        self._ended(self)

    @property
    def idle(self) -> bool:
        """Whether all requests are answered and all replies were sent."""
        return not self.requests and not self.queued_bytes
