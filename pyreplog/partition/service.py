"""BrokerService: answers the fetches of other brokers and the requests of clients, as the handler of a `net.Server`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import InvalidMessageError, ReplogError, UnsupportedRequestError
from pyreplog.future import AppendFuture
from pyreplog.net.connection import Connection
from pyreplog.net.server_connection import ServerConnection
from pyreplog.partition.client_requests import ClientRequests, WriteMarkers
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    ListOffsetsRequest,
    ProduceRequest,
    decode_request,
    encode_codes,
    encode_consume_responses,
    encode_offsets,
    encode_produce_responses,
    kind_of,
)
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.wire import FETCH, decode_fetch, encode_error, encode_responses

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WAIT_MS_MAX = 60_000
_HEAD_BYTES = 1 << 16
"""Of an answer, what is left for all but records."""


class BrokerService:
    """Handler of a server, see `net.connection.Handler`. Requests that wait hold up no others.

    A client that sends more than its connection may have on its way is not read from until answers have left it.

    Args:
        replicas: the partitions of this broker.
        write_markers: ends transactions; None: this broker does not.
    """

    def __init__(self, replicas: ReplicaManager, write_markers: WriteMarkers | None = None) -> None:
        self._replicas, self._clients = replicas, ClientRequests(replicas, write_markers)

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
            if kind_of(body) == FETCH:
                self._fetch(connection, number, body)
            else:
                self._handle_client(connection, number, body)
        except UnsupportedRequestError as error:
            connection.reply(number, encode_error(str(error)))

    def _fetch(self, connection: ServerConnection, number: int, body: memoryview) -> None:
        params, fetches = decode_fetch(body)
        params = params._replace(
            max_wait_ms=min(params.max_wait_ms, _WAIT_MS_MAX), max_bytes=min(params.max_bytes, _room(connection))
        )
        _answer(connection, number, self._replicas.fetch_messages(params, fetches), encode_responses)

    def _handle_client(self, connection: ServerConnection, number: int, body: memoryview) -> None:
        request = decode_request(body)
        if isinstance(request, ProduceRequest):
            responses = self._clients.produce(request)
            _answer(connection, number, responses, lambda result: [encode_produce_responses(result)])
        elif isinstance(request, ConsumeRequest):
            consumed = self._clients.consume(request, _room(connection))
            _answer(connection, number, consumed, encode_consume_responses)
        elif isinstance(request, ListOffsetsRequest):
            connection.reply(number, encode_offsets(self._clients.list_offsets(request)))
        else:
            codes = self._clients.write_markers(request)
            _answer(connection, number, codes, lambda result: [encode_codes(result)])

    def drained(self, connection: Connection) -> None:
        return

    def closed(self, connection: Connection, error: ReplogError) -> None:
        if isinstance(error, InvalidMessageError):
            logger.warning("broker %s sent what is no request: %s", connection.peer.identity.node, error)


def _room(connection: ServerConnection) -> int:
    """Bytes of records that an answer on a connection may have, roughly."""
    return max(connection.peer.max_body_bytes - _HEAD_BYTES, 1)


def _answer(
    connection: ServerConnection, number: int, future: AppendFuture[T], encode: Callable[[T], list[ReadableBuffer]]
) -> None:  # fmt: skip
    """Answer a request when its outcome is there."""

    def reply(future: AppendFuture[T]) -> None:
        error = future.exception()
        if error is not None:
            connection.reply(number, encode_error(str(error)))
        else:
            connection.reply(number, *encode(future.result()))

    future.add_done_callback(reply)
