"""A master of RocketMQ's HA protocol: feeds slaves from a raw log, and knows what they have."""

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
from pyreplog.net.reactor import READ, Reactor
from pyreplog.net.sockets import Address, address_family, resolve_address, set_socket_options, weak_callback
from pyreplog.purgatory import Purgatory
from pyreplog.rocketmq.effects import Timeouts
from pyreplog.rocketmq.rawlog import RawLog
from pyreplog.rocketmq.records import RocketMQMessage
from pyreplog.rocketmq.slave_connection import SlaveConnection, SlaveStatus
from pyreplog.rocketmq.slave_feed_machine import SlaveFeedMachine
from pyreplog.stream.throttle import Throttle

logger = logging.getLogger(__name__)

_BACKLOG = 64
_REPLICATED = "replicated"


class RocketMQMaster(Endpoint):
    """Listens for stock slaves (RocketMQ 4.9 and 5.x, default HA) and feeds each from `log`.

    host: loopback unless told otherwise: whoever can connect gets the log, the protocol has no authentication.
    port: 0 for a free one. slaves: how many must have a record for it to be `replicated`. Connections do not make
    slaves: those from one address count as one, for nothing in the protocol says who is there.
    max_bytes_per_s: of log bytes, to each slave; None: as much as it takes. RocketMQ's limit counts headers only.
    limits: of `connections` at once, as of other servers; the surplus is closed, for the protocol has no word for it.

    An acknowledged position is in a slave's page cache, not on its disk: the protocol cannot say more.

    Any thread may call any method. `close` leaves the log open.
    Errors: OSError, the address is in use or not of this machine; InvalidArgumentError.
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
            raise InvalidArgumentError(f"expected 1 or more of each, found {slaves=}, {max_bytes_per_s=}")
        self.log, self._needed, self._max_bytes_per_s = log, slaves, max_bytes_per_s
        self._times, self._limits = times or Timeouts(), limits or Limits()
        self.refused = 0
        self.last_refusal: ReplogError | None = None
        self._replicated = 0
        self._connections: set[SlaveConnection] = set()
        self._purgatory = Purgatory()
        self._putting = threading.Lock()
        self._waking = False
        family = address_family(host)
        if family is None:
            family, (host, port) = resolve_address(host, port)
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        name = self._listener.getsockname()
        self.address: Address = (name[0], name[1])
        super().__init__(f"RocketMQ master at {self.address[0]}:{self.address[1]}", reactor)
        reactor.register(self._listener.fileno(), weak_callback(self._accept), READ)
        reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    # ---- the log --------------------------------------------------------------------------------------------

    def put(self, message: RocketMQMessage) -> int:
        """Append a message and have it sent; the position behind it. Errors as `RawLog.put`."""
        self._check_open()
        with self._putting:
            self.log.put(message)
            end = self.log.end
        self.wake()
        return end

    def submit(self, message: RocketMQMessage, timeout_s: float = 3.0) -> AppendFuture[int]:
        """`put`; the ack of the position behind it is completed when as many slaves have it as needed. Without that it
        fails after `timeout_s` with OutcomeUnknownError: the record stays in the log."""
        end = self.put(message)
        future = AppendFuture(end)
        deadline_us = self._reactor.clock.monotonic_us() + int(timeout_s * 1e6)
        self._purgatory.watch(_REPLICATED, end, future, deadline_us)
        return future

    @property
    def replicated(self) -> int:
        """As many slaves as needed had all before this position, at one time."""
        return self._replicated

    def wake(self) -> None:
        """There is more in the log, put there by somebody else."""
        if not self._waking:
            self._waking = True
            self._reactor.call_soon(weak_callback(self._pump))

    def slaves(self) -> list[SlaveStatus]:
        """Those connected now."""
        return [connection.status() for connection in list(self._connections)]

    # ---- the driver -----------------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        try:
            sock, name = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors left: at the next tick there may be one
            logger.error("%s: no connection can be accepted for now: %s", self._what, error)
            self._reactor.modify(self._listener.fileno(), 0)
            return
        if len(self._connections) >= self._limits.connections:
            sock.close()
            self._refuse(TooManyConnectionsError(f"the master has its {self._limits.connections} connections"), name)
            return
        now_us = self._reactor.clock.monotonic_us()
        connection = SlaveConnection(
            self._reactor,
            set_socket_options(sock),
            (name[0], name[1]),
            self.log,
            SlaveFeedMachine(now_us, self.log.file_bytes, self._times),
            None if (rate := self._max_bytes_per_s) is None else Throttle(rate, max(rate // 10, 1), now_us),
            progressed=weak_callback(self._progressed),
            left=weak_callback(self._left),
        )
        self._connections.add(connection)

    def _pump(self) -> None:
        self._waking = False
        for connection in list(self._connections):
            connection.pump()

    def _tick(self) -> None:
        if self._error is not None:
            return
        now_us = self._reactor.clock.monotonic_us()
        for connection in list(self._connections):
            connection.tick(now_us)
        self._purgatory.expire(now_us)
        self._reactor.modify(self._listener.fileno(), READ)
        self._reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    def _progressed(self) -> None:
        """A slave has more than before."""
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

    def _left(self, connection: SlaveConnection, error: ReplogError) -> None:
        self._connections.discard(connection)
        if isinstance(error, DisconnectedError | ClosedError):
            logger.info("%s: slave %s:%d: %s", self._what, *connection.address, error)
            return
        self._refuse(error, connection.address)

    def _refuse(self, error: ReplogError, address: tuple[str, int]) -> None:
        self.refused += 1
        self.last_refusal = error
        logger.warning("%s: slave %s:%d was disconnected: %s", self._what, *address[:2], error)

    # ---- the end --------------------------------------------------------------------------------------------

    def _gone(self) -> bool:
        return self._listener.fileno() < 0 and not self._connections

    def _shut(self) -> None:
        closed = ClosedError(f"the {self._what} was closed")
        self._reactor.unregister(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections):
            connection.close(closed)
        self._purgatory.fail(_REPLICATED, closed)

    def _forked(self) -> None:
        super()._forked()
        self._listener.close()
