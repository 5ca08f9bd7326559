"""BrokerService: answers the fetches of other brokers and the requests of clients, as the handler of a `net.Server`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.net.frame import FrameBatch
from pyreplog.errors import InvalidMessageError, ReplogError, UnsupportedRequestError
from pyreplog.future import AppendFuture
from pyreplog.net.connection import Connection
from pyreplog.net.server_connection import ServerConnection
from pyreplog.partition.client_requests import ClientRequests
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
    decode_request,
    encode_cleaned_segments,
    encode_codes,
    encode_consume_responses,
    encode_descriptions,
    encode_offsets,
    encode_produce_responses,
    encode_producer_snapshot_piece,
    encode_segment_piece,
    kind_of,
)
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.replica_manager import ReplicaManager
from pyreplog.partition.requests import (
    CleanedSegmentsRequest,
    PartitionCodes,
    ProducerSnapshotRequest,
    SegmentReadRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.wire import FETCH, decode_fetch, encode_error, encode_responses

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WAIT_MS_MAX = 60_000
_HEAD_BYTES = 1 << 16
"""Bytes of an answer that are reserved for fields other than records."""


class BrokerService:
    """Handler of a server, see `net.connection.Handler`. Waiting requests do not block others.

    While the bytes in flight of a connection exceed its limit, no requests are read from it.

    Markers of one broker are appended in the order in which it has sent them. A marker on an older connection than a
    later one of the same broker is refused: the broker has closed that connection, and may have written the marker
    again.

    Args:
        replicas: the partitions of this broker.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas, self._clients = replicas, ClientRequests(replicas)
        self.verify: Callable[[VerifyTransactionRequest], AppendFuture[PartitionCodes]] | None = None
        """Sends a verification to this broker's transaction coordinator; None: it has none yet."""
        self._order = count(1)
        self._opened: dict[Connection, int] = {}  # connections, numbered in the order in which they were opened
        self._with_markers: dict[str, int] = {}  # broker -> number of the newest connection with markers

    def opened(self, connection: Connection) -> None:
        logger.debug("broker %s connected", connection.peer.identity.node)
        self._opened[connection] = next(self._order)

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
        request = decode_fetch(body)
        request = request._replace(
            max_wait_ms=min(request.max_wait_ms, _WAIT_MS_MAX), max_bytes=min(request.max_bytes, _room(connection))
        )
        _answer(connection, number, self._replicas.fetch_for_replicas(request), encode_responses)

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
        elif isinstance(request, DescribePartitionsRequest):
            connection.reply(number, encode_descriptions(self._clients.describe_partitions(request)))
        elif isinstance(request, WriteMarkersRequest):
            self._write_markers(connection, number, request)
        elif isinstance(request, CleanedSegmentsRequest):
            connection.reply(number, encode_cleaned_segments(self._replicas.cleaned_segments(request)))
        elif isinstance(request, SegmentReadRequest):
            request = request._replace(max_bytes=min(request.max_bytes, _room(connection)))
            connection.reply(number, *encode_segment_piece(self._replicas.read_segment(request)))
        elif isinstance(request, ProducerSnapshotRequest):
            request = request._replace(max_bytes=min(request.max_bytes, _room(connection)))
            connection.reply(number, *encode_producer_snapshot_piece(self._replicas.producer_snapshot(request)))
        elif self.verify is None:
            refused = dict.fromkeys(request.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            connection.reply(number, encode_codes(refused))
        else:
            _answer(connection, number, self.verify(request), lambda result: [encode_codes(result)])

    def _write_markers(self, connection: ServerConnection, number: int, request: WriteMarkersRequest) -> None:
        broker, order = connection.peer.identity.node, self._opened[connection]
        newest = self._with_markers.get(broker, order)
        if order < newest:
            raise UnsupportedRequestError(f"broker {broker} has sent markers on a newer connection since")
        self._with_markers[broker] = order
        _answer(connection, number, self._replicas.write_markers(request), lambda result: [encode_codes(result)])

    def drained(self, connection: Connection) -> None:
        return

    def closed(self, connection: Connection, error: ReplogError) -> None:
        broker = connection.peer.identity.node
        self._opened.pop(connection, None)
        if broker in self._with_markers and all(other.peer.identity.node != broker for other in self._opened):
            del self._with_markers[broker]  # no marker of the broker is in flight
        if isinstance(error, InvalidMessageError):
            logger.warning("broker %s sent a malformed request: %s", connection.peer.identity.node, error)


def _room(connection: ServerConnection) -> int:
    """Return the approximate number of bytes of records that fit into an answer on a connection."""
    return max(connection.peer.max_body_bytes - _HEAD_BYTES, 1)


def _answer(
    connection: ServerConnection, number: int, future: AppendFuture[T], encode: Callable[[T], list[ReadableBuffer]]
) -> None:  # fmt: skip
    """Answer a request when its future completes."""

    def reply(future: AppendFuture[T]) -> None:
        error = future.exception()
        if error is not None:
            if not isinstance(error, ReplogError):
                logger.error("a request of broker %s failed", connection.peer.identity.node, exc_info=error)
            connection.reply(number, encode_error(str(error)))
        else:
            connection.reply(number, *encode(future.result()))

    future.add_done_callback(reply)
