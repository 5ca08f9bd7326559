"""One slave's socket, at the master."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from pyreplog._native.net.frame import HEADER_SIZE, encode_header
from pyreplog._native.net.send_queue import SendQueue
from pyreplog.errors import DisconnectedError, ReplogError
from pyreplog.net.reactor import READ, WRITE, Reactor
from pyreplog.net.sockets import Address
from pyreplog.rocketmq.effects import FRAME_BYTES, Close, Effect, SendFrame, SlaveAcked
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.rocketmq.slave_feed_machine import SlaveFeedMachine
from pyreplog.stream.rate_limiter import RateLimiter

_RECEIVE_BYTES = 4096
_QUEUE_BYTES = 16 * FRAME_BYTES
_ROUNDS = 4
"""So often the queue is filled before other descriptors have their turn."""


@dataclass(frozen=True)
class SlaveStatus:
    """The state of one slave.

    Attributes:
        address: address of the slave.
        sent: position up to which the log was sent; None: the slave has not asked yet.
        acked: position that the slave has acknowledged; None: none yet.
        lag_bytes: bytes from `acked` to the end of the log.
        reports: acknowledgements that arrived.
    """

    address: Address
    sent: int | None
    acked: int
    lag_bytes: int
    reports: int


class SlaveConnection:
    """Does what a SlaveFeedMachine says. All by the reactor's driver.

    progressed: called when the slave has more than before. left: called once, with the reason.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        address: Address,
        log: RawLog,
        feeding: SlaveFeedMachine,
        throttle: RateLimiter | None,
        *,
        progressed: Callable[[], None],
        left: Callable[[SlaveConnection, ReplogError], None],
    ) -> None:
        self.address, self.feeding = address, feeding
        self._reactor, self._sock, self._log, self._throttle = reactor, sock, log, throttle
        self._progressed, self._left = progressed, left
        self._send_queue = SendQueue(sock.sendmsg)
        self._events = READ
        self._resting = self._closed = False
        reactor.register(sock.fileno(), self._ready, READ)

    def status(self) -> SlaveStatus:
        feeding = self.feeding
        return SlaveStatus(self.address, feeding.next, feeding.acked, self._log.whole - feeding.acked, feeding.reports)

    def _ready(self, events: int) -> None:
        self._work(self._receive if events & ~WRITE else None)

    def pump(self) -> None:
        """Send what there is, as long as the kernel takes it."""
        self._work(None)

    def tick(self, now_us: int) -> None:
        """The time."""
        self._work(lambda: self._do(self.feeding.tick(now_us, idle=not self._send_queue.queued_bytes)))

    def _work(self, first: Callable[[], None] | None) -> None:
        if self._closed:
            return
        try:
            if first is not None:
                first()
            self._pump()
        except ReplogError as error:  # what was to be sent has just been trimmed
            self.close(error)
        except OSError as error:
            self.close(DisconnectedError(f"the connection was lost: {error}"))

    def _receive(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close(DisconnectedError("the slave closed the connection"))
            return
        now_us = self._reactor.clock.monotonic_us()
        self._do(self.feeding.received(data, now_us, self._log.start, self._log.whole))

    def _pump(self) -> None:
        for _ in range(_ROUNDS):
            if self._closed or not self._fill():
                break
            self._send_queue.flush()
            if self._send_queue.queued_bytes:
                break
        self._watch()

    def _fill(self) -> bool:
        """Whether there is something to send, now that the queue was filled."""
        now_us, log = self._reactor.clock.monotonic_us(), self._log
        while self._send_queue.queued_bytes < _QUEUE_BYTES and self._allowed(now_us):
            effect = self.feeding.more(now_us, log.start, log.whole)
            if effect is None:
                break
            self._do([effect])
        return not self._closed and self._send_queue.queued_bytes > 0

    def _allowed(self, now_us: int) -> bool:
        """A whole frame leaves as soon as one byte may; the rest of it is owed: a low limit makes no tiny frames."""
        return self._throttle is None or self._throttle.allowed(now_us) > 0

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(offset, size):
                    body = self._log.view(offset, size) if size else b""
                    self._send_queue.put((encode_header(offset, size), body), HEADER_SIZE + size)
                    if self._throttle is not None:
                        self._throttle.spend(size)
                case SlaveAcked():
                    self._progressed()
                case Close(error):
                    self.close(error)

    def _watch(self) -> None:
        """Writable is of interest while something is queued, or would be but for others' turn."""
        if self._closed:
            return
        behind = self.feeding.next is not None and self.feeding.next < self._log.whole
        allowed = self._allowed(self._reactor.clock.monotonic_us())
        events = READ | (WRITE if self._send_queue.queued_bytes or (behind and allowed) else 0)
        if behind and not allowed and not self._resting and self._throttle is not None:
            self._resting = True
            self._reactor.call_later(self._throttle.wait_us() / 1e6, self._rested)
        if events != self._events:
            self._reactor.modify(self._sock.fileno(), events)
            self._events = events

    def _rested(self) -> None:
        self._resting = False
        self.pump()

    def close(self, error: ReplogError) -> None:
        """End it. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._reactor.unregister(self._sock.fileno())
        self._sock.close()
        self._send_queue.clear()
        self._left(self, error)
