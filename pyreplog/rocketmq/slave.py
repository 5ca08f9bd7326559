"""RocketMQSlave: copies a broker's commit log into a raw log with RocketMQ's HA protocol."""

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
"""Seconds between syncs, as for RocketMQ's asynchronous flush."""


class RocketMQSlave(Endpoint):
    """Copies the commit log of a stock broker (RocketMQ 4.9 and 5.x, default HA) into a log.

    A thread syncs the log twice a second. A crash of this process loses no received bytes; a crash of the machine loses
    unsynced bytes, which the slave fetches again. Any thread may call any method. `close` leaves the log open.

    Args:
        reactor: drives the connection.
        log: the log to copy into.
        master: host and HA port of the broker (by default its port + 1).
        start: where an empty log begins. None: at the master's last file, which is all that RocketMQ offers; 0: at the
            start of the log; otherwise the position of the start of a file that the master has.
        landed: called by the reactor after bytes were appended, for example the `wake` of a RocketMQMaster.
        times: timeouts and intervals of the protocol; None: RocketMQ's.

    Raises:
        InvalidArgumentError: the host is unknown, or `start` is not the start of a file.

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
        self._master_address = resolve_address(*master)
        self._machine = SlaveMachine(
            reactor.clock.monotonic_us(),
            log.end,
            log.file_bytes,
            start=start,
            times=self._times,
            random=random.random,  # for the delays of retries
        )
        self._sock: socket.socket | None = None
        self._send_queue: SendQueue | None = None
        self._events = 0
        self._is_disconnected = False
        self._is_closing = threading.Event()
        super().__init__(f"RocketMQ slave of {master[0]}:{master[1]}", reactor)
        self._syncer = threading.Thread(
            target=_keep_synced, args=(log, self._is_closing), name="pyreplog-rocketmq-sync", daemon=True
        )
        self._syncer.start()
        reactor.call_soon(weak_callback(self._tick))

    @property
    def state(self) -> SlaveState:
        """The state of the slave."""
        return self._machine.state

    @property
    def error(self) -> ReplogError | None:
        """Why the last connection or attempt ended; in state STOPPED, why the slave does not connect again."""
        return self._machine.error

    @property
    def connects(self) -> int:
        """Number of connections so far."""
        return self._machine.connects

    @property
    def frames(self) -> int:
        """Number of frames received so far, heartbeats included."""
        return self._machine.frames

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
        self._reactor.call_soon(lambda: self._connect_to(to))

    # ---- reactor callbacks ----------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return self._reactor.clock.monotonic_us()

    def _connect_to(self, to: tuple[socket.AddressFamily, Address]) -> None:
        self._master_address = to
        self._disconnect()
        self._machine.retry(self._now_us())
        self._do(self._machine.tick(self._now_us()))

    def _tick(self) -> None:
        if self._error is not None:
            return
        self._do(self._machine.tick(self._now_us()))
        self._reactor.call_later(self._times.tick_s, weak_callback(self._tick))

    def _do(self, effects: list[Effect]) -> None:
        """Carry out effects. Appended bytes are reported even if a later effect fails."""
        reports: list[bytes] = []
        begin = self.log.end
        error = self._carry_out(effects, reports)
        if self.log.end > begin:
            self._machine.landed(self.log.end)
            if self._landed is not None:
                self._landed()
        if reports:
            self._send(b"".join(reports))
        if error is not None:
            self._close(error)

    def _carry_out(self, effects: list[Effect], reports: list[bytes]) -> ReplogError | None:
        """Carry out effects; return the error to close the connection with, or None."""
        for effect in effects:
            match effect:
                case AppendToLog(offset, body):
                    try:
                        self.log.append_replicated(offset, body)
                    except ReplogError as error:
                        return self._machine.refused(self._now_us(), self.log.end, error).error
                case ReportToMaster(offset):
                    reports.append(_WORD.pack(offset))
                case Connect():
                    self._connect()
                case Close(error):
                    return error
        return None

    def _connect(self) -> None:
        family, address = self._master_address
        try:
            sock = set_socket_options(socket.socket(family, socket.SOCK_STREAM))
        except OSError as error:  # for example no descriptor is free
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
            self._lost(NotConnectedError(f"{self._master_address[1]}: {os.strerror(failed)}"))
            return
        self._send_queue = SendQueue(sock.sendmsg)
        self._do(self._machine.connected(self._now_us()))

    def _receive(self, sock: socket.socket) -> None:
        count = sock.recv_into(self._machine.buffer())
        if not count:
            cut = f", {self._machine.buffered} bytes into a frame" if self._machine.buffered else ""
            self._lost(DisconnectedError(f"the master closed the connection{cut}"))
            return
        self._do(self._machine.received(count, self._now_us()))

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
        self._machine.lost(self._now_us(), error)
        self._close(error)

    def _close(self, error: ReplogError) -> None:
        self._disconnect()
        if self._machine.state is SlaveState.STOPPED:
            logger.error("%s: stopped at %d: %s", self._label, self.log.end, error)
        elif self._error is None:
            logger.info("%s: %s", self._label, error)

    def _disconnect(self) -> None:
        sock, self._sock, self._send_queue = self._sock, None, None
        if sock is not None:
            self._reactor.unregister(sock.fileno())
            sock.close()

    # ---- closing --------------------------------------------------------------------------------------------

    def _is_released(self) -> bool:
        return self._is_disconnected

    def _close_in_driver(self) -> None:
        self._is_closing.set()
        self._disconnect()
        self._machine.lost(self._now_us(), ClosedError(f"the {self._label} was closed"))
        self._is_disconnected = True

    def close(self) -> None:
        """Close the connection, and wait for a running sync. The log stays open."""
        super().close()
        self._is_closing.set()
        self._syncer.join()


def _keep_synced(log: RawLog, ended: threading.Event) -> None:
    """Sync the log at intervals, in a thread, without a reference to the slave: the slave may be collected."""
    while not ended.wait(_SYNC_S):
        try:
            log.sync()
        except ReplogError as error:  # the next bytes meet it, too
            logger.error("%r: %s", log, error)
            return
