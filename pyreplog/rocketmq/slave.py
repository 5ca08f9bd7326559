"""A slave of RocketMQ's HA protocol: copies a broker's commit log into a raw log."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import struct
import threading
from collections.abc import Callable

from pyreplog._native.net.send_queue import SendQueue
from pyreplog.errors import ClosedError, DisconnectedError, NotConnectedError, ReplogError
from pyreplog.net.endpoint import Endpoint
from pyreplog.net.reactor import READ, WRITE, Reactor
from pyreplog.net.sockets import Address, resolve_address, set_socket_options, weak_callback
from pyreplog.rocketmq.effects import AppendToLog, Close, Connect, Effect, ReportToMaster, Timeouts
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.rocketmq.slave_machine import SlaveMachine, SlaveState

logger = logging.getLogger(__name__)

_WORD = struct.Struct(">q")
_SYNC_S = 0.5
"""As often as RocketMQ's own asynchronous flush."""


class RocketMQSlave(Endpoint):
    """Copies the commit log of a stock broker (RocketMQ 4.9 and 5.x, default HA) into a log.

    A thread syncs the log twice a second. A crash of this process loses nothing of it; a crash of the machine loses
    what was not synced, and the slave fetches it again. Any thread may call any method. `close` leaves the log open.

    Args:
        reactor: drives the connection.
        log: the log to copy into.
        master: host and HA port of the broker (by default its port + 1).
        start: where an empty log begins. None: at the master's last file, which is all that RocketMQ offers; 0: at the
            beginning; else the position of the beginning of a file that the master has.
        landed: called in the reactor after bytes were written, for example the `wake` of a RocketMQMaster.
        times: times of the protocol; None: RocketMQ's.

    Raises:
        InvalidArgumentError: the host is unknown, or `start` is not the beginning of a file.

    Example:
        ```python
        with Reactor() as reactor, RawLog("copy") as log, RocketMQSlave(reactor, log, ("broker", 10912)) as slave:
            reactor.start()
            print(slave.state)
        ```

    See docs/rocketmq.md.
    """

    def __init__(
        self,
        reactor: Reactor,
        log: RawLog,
        master: Address,
        *,
        start: int | None = None,
        landed: Callable[[], None] | None = None,
        times: Timeouts | None = None,
    ) -> None:
        self.log, self._times, self._landed = log, times or Timeouts(), landed
        self._to = resolve_address(*master)
        self._pulling = SlaveMachine(
            reactor.clock.monotonic_us(),
            log.end,
            log.file_bytes,
            start=start,
            times=self._times,
            random=random.random,  # of delays only
        )
        self._sock: socket.socket | None = None
        self._send_queue: SendQueue | None = None
        self._events = 0
        self._shut_down = False
        self._ended = threading.Event()
        super().__init__(f"RocketMQ slave of {master[0]}:{master[1]}", reactor)
        self._syncer = threading.Thread(
            target=_keep_synced, args=(log, self._ended), name="pyreplog-rocketmq-sync", daemon=True
        )
        self._syncer.start()
        reactor.call_soon(weak_callback(self._tick))

    @property
    def state(self) -> SlaveState:
        """What the slave does now."""
        return self._pulling.state

    @property
    def error(self) -> ReplogError | None:
        """Why the last connection or attempt has ended; in state STOPPED, why no other follows."""
        return self._pulling.error

    @property
    def connects(self) -> int:
        """Number of connections so far."""
        return self._pulling.connects

    @property
    def frames(self) -> int:
        """Number of frames received so far, heartbeats included."""
        return self._pulling.frames

    def follow(self, master: Address) -> None:
        """Connect to another address at once. RocketMQ's own slave keeps the connection that it has.

        Args:
            master: host and HA port.

        Raises:
            InvalidArgumentError: the host is unknown.
            ClosedError: the slave was closed.
        """
        self._check_open()
        to = resolve_address(*master)
        self._reactor.call_soon(lambda: self._turn_to(to))

    # ---- the driver -----------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return self._reactor.clock.monotonic_us()

    def _turn_to(self, to: tuple[socket.AddressFamily, Address]) -> None:
        self._to = to
        self._disconnect()
        self._pulling.retry(self._now_us())
        self._do(self._pulling.tick(self._now_us()))

    def _tick(self) -> None:
        if self._error is not None:
            return
        self._do(self._pulling.tick(self._now_us()))
        self._reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    def _do(self, effects: list[Effect]) -> None:
        """What has landed is reported, whatever went wrong behind it."""
        reports: list[bytes] = []
        begin = self.log.end
        error = self._carry_out(effects, reports)
        if self.log.end > begin:
            self._pulling.landed(self.log.end)
            if self._landed is not None:
                self._landed()
        if reports:
            self._send(b"".join(reports))
        if error is not None:
            self._close(error)

    def _carry_out(self, effects: list[Effect], reports: list[bytes]) -> ReplogError | None:
        """Why the connection is to be closed."""
        for effect in effects:
            match effect:
                case AppendToLog(offset, body):
                    try:
                        self.log.append_replicated(offset, body)
                    except ReplogError as error:
                        return self._pulling.refused(self._now_us(), self.log.end, error).error
                case ReportToMaster(offset):
                    reports.append(_WORD.pack(offset))
                case Connect():
                    self._connect()
                case Close(error):
                    return error
        return None

    def _connect(self) -> None:
        family, address = self._to
        try:
            sock = set_socket_options(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:  # no descriptors are left
            self._lost(NotConnectedError(f"{address}: {error}"))
            return
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._lost(NotConnectedError(f"{address}: {os.strerror(code)}"))
            return
        self._sock, self._events = sock, READ | WRITE
        self._reactor.register(sock.fileno(), weak_callback(self._ready), self._events)

    def _ready(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            if self._send_queue is None:
                self._connected(sock)
            elif events & WRITE:
                self._send(b"")
            elif events:
                self._receive(sock)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(DisconnectedError(f"the connection was lost: {error}"))

    def _connected(self, sock: socket.socket) -> None:
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            self._lost(NotConnectedError(f"{self._to[1]}: {os.strerror(failed)}"))
            return
        self._send_queue = SendQueue(sock.sendmsg)
        self._do(self._pulling.connected(self._now_us()))

    def _receive(self, sock: socket.socket) -> None:
        count = sock.recv_into(self._pulling.buffer())
        if not count:
            cut = f", {self._pulling.buffered} bytes into a frame" if self._pulling.buffered else ""
            self._lost(DisconnectedError(f"the master closed the connection{cut}"))
            return
        self._do(self._pulling.received(count, self._now_us()))

    def _send(self, data: bytes) -> None:
        outbox, sock = self._send_queue, self._sock
        if outbox is None or sock is None:
            return
        try:
            outbox.put((data,), len(data))
            outbox.flush()
        except OSError as error:
            self._lost(DisconnectedError(f"the connection was lost: {error}"))
            return
        events = READ | (WRITE if outbox.queued_bytes else 0)
        if events != self._events:
            self._reactor.modify(sock.fileno(), events)
            self._events = events

    def _lost(self, error: ReplogError) -> None:
        self._pulling.lost(self._now_us(), error)
        self._close(error)

    def _close(self, error: ReplogError) -> None:
        self._disconnect()
        if self._pulling.state is SlaveState.STOPPED:
            logger.error("%s: stopped at %d: %s", self._label, self.log.end, error)
        elif self._error is None:
            logger.info("%s: %s", self._label, error)

    def _disconnect(self) -> None:
        sock, self._sock, self._send_queue = self._sock, None, None
        if sock is not None:
            self._reactor.unregister(sock.fileno())
            sock.close()

    # ---- the end --------------------------------------------------------------------------------------------

    def _is_released(self) -> bool:
        return self._shut_down

    def _close_in_driver(self) -> None:
        self._ended.set()
        self._disconnect()
        self._pulling.lost(self._now_us(), ClosedError(f"the {self._label} was closed"))
        self._shut_down = True

    def close(self) -> None:
        """Close the connection, and wait for a sync that runs. The log stays open."""
        super().close()
        self._ended.set()
        self._syncer.join()


def _keep_synced(log: RawLog, ended: threading.Event) -> None:
    """Its own thread; knows nothing of the slave, which may be forgotten."""
    while not ended.wait(_SYNC_S):
        try:
            log.sync()
        except ReplogError as error:  # the next bytes meet it, too
            logger.error("%r: %s", log, error)
            return
