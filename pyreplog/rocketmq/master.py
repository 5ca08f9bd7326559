"""RocketMQMaster: sends a raw log to slaves with RocketMQ's HA protocol, and tracks their acknowledgements."""

from __future__ import annotations

import logging
import socket
import threading

from pyreplog._native.quorum.quorum import kth_largest
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    InvalidArgumentError,
    ReplogError,
    TooManyConnectionsError,
)
from pyreplog.future import AppendFuture
from pyreplog.net.endpoint import Endpoint
from pyreplog.net.limits import Limits
from pyreplog.net.listener import Listener
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address, weak_callback
from pyreplog.purgatory import Purgatory
from pyreplog.rocketmq.effects import Timeouts
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.rocketmq.records import RocketMQMessage
from pyreplog.rocketmq.slave_connection import SlaveConnection, SlaveStatus
from pyreplog.rocketmq.slave_feed_machine import SlaveFeedMachine
from pyreplog.stream.rate_limiter import RateLimiter

logger = logging.getLogger(__name__)

_REPLICATED = "replicated"


class RocketMQMaster(Endpoint):
    """Sends a log to the slaves of stock brokers (RocketMQ 4.9 and 5.x, default HA).

    Any thread may call any method. `close` leaves the log open. An acknowledged position is in the page cache of a
    slave, not on its disk: the protocol reports no more. The protocol has no authentication.

    Args:
        reactor: drives the connections.
        log: the log to send.
        host: address to listen at. Every peer that can connect to it receives the log.
        port: port to listen at; 0: any free port.
        slaves: slaves that must have a record before it counts as replicated. Connections from one address count as
            one slave, since the protocol does not identify slaves.
        max_bytes_per_s: bytes of log per second to each slave; None: no limit. RocketMQ's own limit counts headers
            only.
        times: timeouts and intervals of the protocol; None: RocketMQ's.
        limits: only `connections` is used; a connection beyond that is closed.

    Raises:
        InvalidArgumentError: `slaves` or `max_bytes_per_s` is less than 1, or `host` is unknown.
        OSError: the address is in use, or is not one of this machine.

    Example:
        ```python
        with Reactor() as reactor, RawLog("store") as log, RocketMQMaster(reactor, log, port=10912) as master:
            reactor.start()
            master.submit(RocketMQMessage(topic="orders", body=b"order 1")).result(timeout=3.0)
        ```

    See docs/rocketmq.md.
    """

    def __init__(
        self,
        reactor: Reactor,
        log: RawLog,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slaves: int = 1,
        max_bytes_per_s: int | None = None,
        times: Timeouts | None = None,
        limits: Limits | None = None,
    ) -> None:
        if slaves < 1 or (max_bytes_per_s is not None and max_bytes_per_s < 1):
            raise InvalidArgumentError(
                f"slaves, max_bytes_per_s: expected 1 or more of each, found {slaves} and {max_bytes_per_s}"
            )
        self.log, self._needed, self._max_bytes_per_s = log, slaves, max_bytes_per_s
        self._times, self._limits = times or Timeouts(), limits or Limits()
        self.refused = 0
        self.last_refusal: ReplogError | None = None
        self._replicated = 0
        self._connections: set[SlaveConnection] = set()
        self._purgatory = Purgatory()
        self._put_lock = threading.Lock()
        self._is_wake_pending = False
        self._listener = Listener(reactor, host, port, weak_callback(self._on_connection))
        self.address = self._listener.address
        super().__init__(f"RocketMQ master at {self.address[0]}:{self.address[1]}", reactor)
        self._listener.begin()
        reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    # ---- the log --------------------------------------------------------------------------------------------

    def put(self, message: RocketMQMessage) -> int:
        """Append a message, and send it to the slaves.

        Args:
            message: the message.

        Returns:
            The position behind its record.

        Raises:
            ReplogError: as `RawLog.put`.
        """
        self._check_open()
        with self._put_lock:
            self.log.put(message)
            end = self.log.end
        self.wake()
        return end

    def submit(self, message: RocketMQMessage, timeout: float = 3.0) -> AppendFuture[int]:
        """Append a message, send it, and return a future that completes when enough slaves have it.

        Args:
            message: the message.
            timeout: seconds after which the future fails with OutcomeUnknownError. The record stays in the log.

        Returns:
            An `AppendFuture` that gives the position behind the record.

        Raises:
            ReplogError: as `RawLog.put`.
        """
        end = self.put(message)
        future = AppendFuture(end)
        deadline_us = self._reactor.clock.monotonic_us() + int(timeout * 1e6)
        self._purgatory.watch(_REPLICATED, end, future, deadline_us)
        return future

    @property
    def replicated(self) -> int:
        """Position up to which enough slaves have acknowledged the log."""
        return self._replicated

    def wake(self) -> None:
        """Send bytes that another thread has appended to the log."""
        if not self._is_wake_pending:
            self._is_wake_pending = True
            self._reactor.call_soon(weak_callback(self._pump))

    def slaves(self) -> list[SlaveStatus]:
        """Return the state of each connected slave."""
        return [connection.status() for connection in list(self._connections)]

    # ---- reactor callbacks ----------------------------------------------------------------------------------

    def _on_connection(self, sock: socket.socket, address: Address) -> None:
        if len(self._connections) >= self._limits.connections:
            sock.close()
            self._refuse(TooManyConnectionsError(f"the master has its {self._limits.connections} connections"), address)
            return
        now_us = self._reactor.clock.monotonic_us()
        connection = SlaveConnection(
            self._reactor,
            sock,
            address,
            self.log,
            SlaveFeedMachine(now_us, self.log.file_bytes, self._times),
            None if (rate := self._max_bytes_per_s) is None else RateLimiter(rate, max(rate // 10, 1), now_us),
            progressed=weak_callback(self._on_progress),
            left=weak_callback(self._on_disconnected),
        )
        self._connections.add(connection)

    def _pump(self) -> None:
        self._is_wake_pending = False
        for connection in list(self._connections):
            connection.pump()

    def _tick(self) -> None:
        if self._error is not None:
            return
        now_us = self._reactor.clock.monotonic_us()
        for connection in list(self._connections):
            connection.tick(now_us)
        self._purgatory.expire(now_us)
        self._reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    def _on_progress(self) -> None:
        """Compute `replicated`, after a slave has acknowledged more."""
        hosts: dict[str, int] = {}
        for connection in self._connections:
            host = connection.address[0]
            hosts[host] = max(hosts.get(host, 0), connection.feeding.acked)
        if len(hosts) < self._needed:
            return
        reached = kth_largest(hosts.values(), self._needed)
        if reached > self._replicated:
            self._replicated = reached
            self._purgatory.advance_and_drain(_REPLICATED, reached)

    def _on_disconnected(self, connection: SlaveConnection, error: ReplogError) -> None:
        self._connections.discard(connection)
        if isinstance(error, DisconnectedError | ClosedError):
            logger.info("%s: slave %s:%d: %s", self._label, *connection.address, error)
            return
        self._refuse(error, connection.address)

    def _refuse(self, error: ReplogError, address: Address) -> None:
        self.refused += 1
        self.last_refusal = error
        logger.warning("%s: slave %s:%d was disconnected: %s", self._label, *address, error)

    # ---- closing --------------------------------------------------------------------------------------------

    def _is_released(self) -> bool:
        return self._listener.closed and not self._connections

    def _close_in_driver(self) -> None:
        closed = ClosedError(f"the {self._label} was closed")
        self._listener.end()
        for connection in list(self._connections):
            connection.close(closed)
        self._purgatory.fail(_REPLICATED, closed)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._listener.close()
