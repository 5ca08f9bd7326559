"""One ZooKeeper session: kazoo's client, with bounded calls and its errors in our terms.

kazoo's states: CONNECTED; SUSPENDED, the connection is lost and the session may live; LOST, the server has ended the
session (or this client has), after which kazoo begins another one by itself. A request that is made while the
connection is down waits in kazoo and may be sent much later; so nothing is asked before it is up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from pyreplog.errors import ClosedError, InvalidArgumentError, MetadataUnavailableError, OutcomeUnknownError

_logger = logging.getLogger(__name__)
_kazoo_logger = logging.getLogger(__name__ + ".kazoo")

_INTERRUPTED = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, KazooTimeoutError)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

Send = Callable[[KazooClient], Any]
"""Makes a request of the client and returns kazoo's asynchronous result."""


class ZooKeeperSession:
    """A session with one of `hosts` ("host:port,host:port"); any thread may use it.

    ttl: the session timeout to ask for, in seconds.
    timeout: seconds that a call, or the first connection, may take.
    listener: called with every change of kazoo's state, from kazoo's thread; must not block.
    Errors: MetadataUnavailableError, none of the hosts answers; InvalidArgumentError, no such hosts.
    """

    def __init__(self, hosts: str, *, ttl: float, timeout: float, listener: Callable[[str], object]) -> None:
        self._hosts, self._timeout, self._listener = hosts, timeout, listener
        self.ttl = ttl
        self.deadline = math.inf
        """By `time.monotonic()`: calls that begin from now on do not wait any longer."""
        self._connected = threading.Event()
        self._closing, self._closed = threading.Lock(), False
        try:
            self._client = KazooClient(
                hosts, timeout=ttl, connection_retry=KazooRetry(**_RECONNECT), logger=_kazoo_logger
            )
        except ValueError as error:
            raise InvalidArgumentError(f"hosts: expected host:port,host:port, found {hosts!r} ({error})") from error
        self._note_granted_ttl()
        self._client.add_listener(self._changed)
        try:
            self._client.start(timeout)
        except (KazooTimeoutError, KazooException) as error:  # the second: kazoo could not stop in time
            raise MetadataUnavailableError(self._silence()) from error

    def _note_granted_ttl(self) -> None:
        """The server bounds session timeouts; kazoo keeps what it granted in a local variable, as 2/3 of it."""
        connection = self._client._connection
        connect = connection._connect

        def note(*args: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*args)
            self.ttl = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        connection._connect = note

    def _changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._listener(state)

    # ---- calls ----------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the connection is up, as far as is known."""
        return self._connected.is_set()

    def read(self, send: Send) -> Any:
        """Ask until an answer comes or the time has run out. Errors: MetadataUnavailableError; kazoo's answers."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._ask(send, deadline)
            except _INTERRUPTED as error:
                if time.monotonic() >= min(deadline, self.deadline):
                    raise MetadataUnavailableError(self._silence()) from error

    def read_once(self, send: Send, timeout: float) -> Any:
        """Ask once. Errors: MetadataUnavailableError; kazoo's answers."""
        try:
            return self._ask(send, time.monotonic() + timeout)
        except _INTERRUPTED as error:
            raise MetadataUnavailableError(self._silence()) from error

    def write(self, send: Send) -> Any:
        """Ask once. Errors: MetadataUnavailableError, it was not sent; OutcomeUnknownError; kazoo's answers."""
        try:
            return self._ask(send, time.monotonic() + self._timeout)
        except _INTERRUPTED as error:
            lost = f"the connection to {self._hosts} was lost before the answer came: {type(error).__name__}"
            raise OutcomeUnknownError(lost) from error

    def _ask(self, send: Send, deadline: float) -> Any:
        deadline = min(deadline, self.deadline)
        up = self._connected.wait(max(0.0, deadline - time.monotonic()))
        if self._closed:
            raise ClosedError(f"the session with {self._hosts} was closed")
        if not up:
            raise MetadataUnavailableError(self._silence())
        return send(self._client).get(timeout=max(0.0, deadline - time.monotonic()))

    def _silence(self) -> str:
        return f"no ZooKeeper server at {self._hosts} answered in time; nothing was changed"

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes; they last until it times out if no server can be told.

        Calls that wait raise ClosedError, or OutcomeUnknownError. Closing twice is fine.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self.deadline == math.inf:
                self._end()
            else:  # kazoo waits for a server that does not answer, 10 s or more
                ending = threading.Thread(target=self._end, name="pyreplog-zookeeper-close", daemon=True)
                ending.start()
                ending.join(max(0.0, self.deadline - time.monotonic()))
                if ending.is_alive():
                    _logger.warning("a ZooKeeper session was left to time out: %s", self._silence())
            self._connected.set()

    def _end(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as error:
            _logger.warning("a ZooKeeper session was left to time out: %s", error)
