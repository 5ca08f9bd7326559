"""BrokerService: answers the fetches of other brokers, as the handler of a `net.Server`."""

from __future__ import annotations

import logging
from functools import partial

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import InvalidMessageError, ReplogError, UnsupportedRequestError
from pyreplog.future import AppendFuture
from pyreplog.net.connection import Connection
from pyreplog.net.server_connection import ServerConnection
from pyreplog.partition.delayed_fetch import FetchResponses
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.wire import decode_fetch, encode_error, encode_responses

logger = logging.getLogger(__name__)

_WAIT_MS_MAX = 60_000
_HEAD_BYTES = 1 << 16
"""Of an answer, what is left for all but records."""


class BrokerService:
    """Handler of a server, see `net.connection.Handler`. Fetches that wait hold up no others.

    Args:
        replicas: the partitions of this broker.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def opened(self, connection: Connection) -> None:
        logger.debug("broker %s connected", connection.peer.identity.node)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Handle requests. An InvalidMessageError ends the connection after the requests before it."""
        assert isinstance(connection, ServerConnection)
        for number, body in batch:
            if body:
                self._handle(connection, number, body)

    def _handle(self, connection: ServerConnection, number: int, body: memoryview) -> None:
        try:
            params, fetches = decode_fetch(body)
        except UnsupportedRequestError as error:
            connection.reply(number, encode_error(str(error)))
            return
        params = params._replace(
            max_wait_ms=min(params.max_wait_ms, _WAIT_MS_MAX),
            max_bytes=min(params.max_bytes, max(connection.peer.max_body_bytes - _HEAD_BYTES, 1)),
        )
        future = self._replicas.fetch_messages(params, fetches)
        future.add_done_callback(partial(self._answer, connection, number))

    def _answer(self, connection: ServerConnection, number: int, future: AppendFuture[FetchResponses]) -> None:
        error = future.exception()
        if error is not None:
            connection.reply(number, encode_error(str(error)))
        else:
            connection.reply(number, *encode_responses(future.result()))

    def drained(self, connection: Connection) -> None:
        return

    def closed(self, connection: Connection, error: ReplogError) -> None:
        if isinstance(error, InvalidMessageError):
            logger.warning("broker %s sent what is no request: %s", connection.peer.identity.node, error)
