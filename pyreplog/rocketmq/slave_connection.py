"""SlaveConnection: the socket of one slave, at the master."""

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
"""How often the send queue is filled before other descriptors have their turn."""


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
    """Drives a SlaveFeedMachine. All methods are called by the reactor's driver.

    Args:
        progressed: called when the slave has acknowledged more.
        left: called once with the error that ended the connection.
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
        self._on_progress, self._on_closed = progressed, left
        self._send_queue = SendQueue(sock.sendmsg)
        self._events = READ
        self._is_delayed = self._closed = False
        reactor.register(sock.fileno(), self._ready, READ)

    def status(self) -> SlaveStatus:
        feeding = self.feeding
        return SlaveStatus(self.address, feeding.next, feeding.acked, self._log.whole - feeding.acked, feeding.reports)

    def _ready(self, events: int) -> None:
        self._step(self._receive if events & ~WRITE else None)

    def pump(self) -> None:
        """Send the log as far as the kernel takes it."""
        self._step(None)

    def tick(self, now_us: int) -> None:
        """Check timeouts."""
        self._step(lambda: self._do(self.feeding.tick(now_us, idle=not self._send_queue.queued_bytes)))

    def _step(self, first: Callable[[], None] | None) -> None:
        if self._closed:
            return
        try:
            if first is not None:
                first()
            self._pump()
        except ReplogError as error:  # for example the next bytes have just been trimmed
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
        self._watch_socket()

    def _fill(self) -> bool:
        """Fill the send queue. Return whether it has bytes to send."""
        now_us, log = self._reactor.clock.monotonic_us(), self._log
        while self._send_queue.queued_bytes < _QUEUE_BYTES and self._allowed(now_us):
            effect = self.feeding.more(now_us, log.start, log.whole)
            if effect is None:
                break
            self._do([effect])
        return not self._closed and self._send_queue.queued_bytes > 0

    def _allowed(self, now_us: int) -> bool:
        """Return whether the throttle allows a frame. It may be larger than the allowance, so that a low limit does not
        make tiny frames; the excess is made up for later."""
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
                    self._on_progress()
                case Close(error):
                    self.close(error)

    def _watch_socket(self) -> None:
        """Watch for writability while bytes are queued, or while the log has more to send and the throttle allows
        it."""
        if self._closed:
            return
        behind = self.feeding.next is not None and self.feeding.next < self._log.whole
        allowed = self._allowed(self._reactor.clock.monotonic_us())
        events = READ | (WRITE if self._send_queue.queued_bytes or (behind and allowed) else 0)
        if behind and not allowed and not self._is_delayed and self._throttle is not None:
            self._is_delayed = True
            self._reactor.call_later(self._throttle.wait_us() / 1e6, self._on_throttle_timer)
        if events != self._events:
            self._reactor.modify(self._sock.fileno(), events)
            self._events = events

    def _on_throttle_timer(self) -> None:
        self._is_delayed = False
        self.pump()

    def close(self, error: ReplogError) -> None:
        """Close the connection. Closing twice has no effect."""
        if self._closed:
            return
        self._closed = True
        self._reactor.unregister(self._sock.fileno())
        self._sock.close()
        self._send_queue.clear()
        self._on_closed(self, error)
