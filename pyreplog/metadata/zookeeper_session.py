"""ZooKeeperSession: kazoo's client, with time limits for calls and translated errors.

kazoo's states: CONNECTED; SUSPENDED, the connection is lost and the session may live; LOST, the server or this client
has ended the session, after which kazoo begins another one by itself. A request that is made while the connection is
down waits in kazoo and may be sent much later. So a call waits for the connection before it makes its request.
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
    """A session with one of `hosts` ("host:port,host:port"). Any thread may use it.

    ttl: session timeout to request, in seconds.
    timeout: seconds that a call, or the first connection, may take.
    listener: called with every change of kazoo's state, from kazoo's thread; must not block.

    Raises MetadataUnavailableError if none of the hosts answers, InvalidArgumentError if `hosts` is malformed.
    """

    def __init__(self, hosts: str, *, ttl: float, timeout: float, listener: Callable[[str], object]) -> None:
        self._hosts, self._timeout, self._listener = hosts, timeout, listener
        self.ttl = ttl
        self.deadline = math.inf
        """Time of `time.monotonic()` after which no call waits; for calls that begin after it was set."""
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
        except (KazooTimeoutError, KazooException) as error:  # KazooException: kazoo could not stop in time
            raise MetadataUnavailableError(self._no_answer()) from error

    def _note_granted_ttl(self) -> None:
        """Set `ttl` to the session timeout that the server grants; it may limit the requested one.

        kazoo keeps two thirds of the granted timeout in a local variable, which its `_connect` returns.
        """
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
        """Whether the connection is up, as far as kazoo knows."""
        return self._connected.is_set()

    def read(self, send: Send) -> Any:
        """Send a request, and repeat it after a lost connection; return the answer.

        Raises MetadataUnavailableError if no answer comes within the timeout, and the errors of kazoo that are answers
        of the server.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._send(send, deadline)
            except _INTERRUPTED as error:
                if time.monotonic() >= min(deadline, self.deadline):
                    raise MetadataUnavailableError(self._no_answer()) from error

    def read_once(self, send: Send, timeout: float) -> Any:
        """Send a request once; return the answer. timeout: seconds. Raises the errors of `read`."""
        try:
            return self._send(send, time.monotonic() + timeout)
        except _INTERRUPTED as error:
            raise MetadataUnavailableError(self._no_answer()) from error

    def write(self, send: Send) -> Any:
        """Send a request once; return the answer.

        Raises MetadataUnavailableError if the request was not sent, OutcomeUnknownError if it was sent and no answer
        came, and the errors of kazoo that are answers of the server.
        """
        try:
            return self._send(send, time.monotonic() + self._timeout)
        except _INTERRUPTED as error:
            lost = f"the connection to {self._hosts} was lost before the answer came: {type(error).__name__}"
            raise OutcomeUnknownError(lost) from error

    def _send(self, send: Send, deadline: float) -> Any:
        deadline = min(deadline, self.deadline)
        up = self._connected.wait(max(0.0, deadline - time.monotonic()))
        if self._closed:
            raise ClosedError(f"the session with {self._hosts} was closed")
        if not up:
            raise MetadataUnavailableError(self._no_answer())
        return send(self._client).get(timeout=max(0.0, deadline - time.monotonic()))

    def _no_answer(self) -> str:
        return f"no ZooKeeper server at {self._hosts} answered in time; nothing was changed"

    def close(self) -> None:
        """End the session and delete its ephemeral nodes. If no server answers, they exist until the session times out.

        Calls that wait raise ClosedError or OutcomeUnknownError. Closing twice has no effect.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self.deadline == math.inf:
                self._end()
            else:  # kazoo waits 10 s or more for a server that does not answer
                ending = threading.Thread(target=self._end, name="pyreplog-zookeeper-close", daemon=True)
                ending.start()
                ending.join(max(0.0, self.deadline - time.monotonic()))
                if ending.is_alive():
                    _logger.warning("a ZooKeeper session was left to time out: %s", self._no_answer())
            self._connected.set()

    def _end(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as error:
            _logger.warning("a ZooKeeper session was left to time out: %s", error)
