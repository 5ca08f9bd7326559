"""TCPTransport: requests to brokers over TCP, at their addresses in the metadata store."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyreplog.errors import NotConnectedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.handles import Handle
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from pyreplog.partition.client_requests import ConsumeResponses, Descriptions, Offsets
from pyreplog.partition.client_wire import (
    FEATURE,
    ClientRequest,
    ConsumeRequest,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
    decode_cleaned_segments,
    decode_codes,
    decode_consume_responses,
    decode_descriptions,
    decode_offsets,
    decode_produce_responses,
    decode_producer_snapshot_piece,
    decode_segment_piece,
    encode_request,
)
from pyreplog.partition.requests import (
    CleanedSegments,
    CleanedSegmentsRequest,
    FetchResponses,
    PartitionCodes,
    ProduceResponses,
    ProducerSnapshotPiece,
    ProducerSnapshotRequest,
    ReplicaFetchRequest,
    SegmentPiece,
    SegmentReadRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.wire import SERVICE, VERSION, decode_responses, encode_fetch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

logger = logging.getLogger(__name__)


class TCPTransport(Handle):
    """Channels to other brokers, opened on demand. Any thread may use it.

    Args:
        reactor: drives the connections; it is started.
        broker: name of this broker.
        cluster: id of the cluster.
        find_address: returns the address of a broker, "host:port"; "": unknown.
        timeout_s: seconds after which a request times out, in addition to a fetch's wait for records.
        secret: the secret of the cluster.
        tls: a context for clients.
        limits: limits of connections.
    """

    def __init__(
        self, reactor: Reactor, broker: str, cluster: str, find_address: Callable[[str], str], *,
        timeout_s: float = 10.0, secret: Secret | None = None, tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._reactor, self._find_address, self._timeout_s = reactor, find_address, timeout_s
        self._identity = NodeIdentity(
            node=broker, cluster=cluster, service=SERVICE, version=VERSION, features=frozenset({FEATURE})
        )
        self._cluster, self._secret, self._tls, self._limits = cluster, secret, tls, limits
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[str, Channel]] = {}  # broker -> its address and channel
        super().__init__(f"transport of broker {broker}")

    def fetch(self, broker: str, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Fetch from a broker; see `BrokerTransport`."""
        future = AppendFuture[FetchResponses]()
        channel = self._channel(broker)
        if channel is None:
            set_exception(future, NotConnectedError(f"broker {broker}: its address is not known"))
            return future
        timeout_s = self._timeout_s + request.max_wait_ms / 1000
        on_reply = partial(_take_reply, future, decode_responses)
        channel.request(encode_fetch(request), on_reply=on_reply, timeout=timeout_s)
        return future

    # ---- requests of clients --------------------------------------------------------------------------------

    def produce(self, broker: str, request: ProduceRequest, timeout_s: float) -> AppendFuture[ProduceResponses]:
        """Append at a broker; see `ClientTransport`."""
        return self._request(broker, request, timeout_s, decode_produce_responses)

    def consume(self, broker: str, request: ConsumeRequest, timeout_s: float) -> AppendFuture[ConsumeResponses]:
        """Fetch from a broker; see `ClientTransport`."""
        return self._request(broker, request, timeout_s, decode_consume_responses)

    def list_offsets(self, broker: str, request: ListOffsetsRequest, timeout_s: float) -> AppendFuture[Offsets]:
        """Ask a broker for offsets; see `ClientTransport`."""
        return self._request(broker, request, timeout_s, decode_offsets)

    def describe_partitions(
        self, broker: str, request: DescribePartitionsRequest, timeout_s: float
    ) -> AppendFuture[Descriptions]:
        """Ask a broker about partitions; see `ClientTransport`."""
        return self._request(broker, request, timeout_s, decode_descriptions)

    # ---- transactions ---------------------------------------------------------------------------------------

    def write_markers(self, broker: str, request: WriteMarkersRequest) -> AppendFuture[PartitionCodes]:
        """Ask a broker to write markers; see `TransactionTransport`."""
        return self._request(broker, request, self._timeout_s, decode_codes)

    def verify_transaction(self, broker: str, request: VerifyTransactionRequest) -> AppendFuture[PartitionCodes]:
        """Ask the coordinator of a transactional id; see `TransactionTransport`."""
        return self._request(broker, request, self._timeout_s, decode_codes)

    # ---- compacted segments ---------------------------------------------------------------------------------

    def cleaned_segments(self, broker: str, request: CleanedSegmentsRequest) -> AppendFuture[CleanedSegments]:
        """Ask a broker which segments it has compacted; see `SegmentTransport`."""
        return self._request(broker, request, self._timeout_s, decode_cleaned_segments)

    def read_segment(self, broker: str, request: SegmentReadRequest) -> AppendFuture[SegmentPiece]:
        """Read bytes of a compacted segment of a broker; see `SegmentTransport`."""
        return self._request(broker, request, self._timeout_s, decode_segment_piece)

    # ---- producer snapshots ---------------------------------------------------------------------------------

    def producer_snapshot(self, broker: str, request: ProducerSnapshotRequest) -> AppendFuture[ProducerSnapshotPiece]:
        """Read bytes of a producer snapshot of a broker; see `ProducerSnapshotTransport`."""
        return self._request(broker, request, self._timeout_s, decode_producer_snapshot_piece)

    def _request(
        self, broker: str, request: ClientRequest, timeout_s: float, decode: Callable[[ReadableBuffer], T]
    ) -> AppendFuture[T]:  # fmt: skip
        future = AppendFuture[T]()
        channel = self._channel(broker)
        if channel is None:
            set_exception(future, NotConnectedError(f"broker {broker}: its address is not known"))
            return future
        channel.request(*encode_request(request), on_reply=partial(_take_reply, future, decode), timeout=timeout_s)
        return future

    def _channel(self, broker: str) -> Channel | None:
        """Return the channel to a broker; close a channel to a former address."""
        address = self._find_address(broker)
        former: Channel | None = None
        with self._lock:
            self._check_open()
            known = self._channels.get(broker)
            if known is not None and known[0] == address:
                return known[1]
            if known is not None:
                former = known[1]
                del self._channels[broker]
            channel: Channel | None = None
            if address:
                channel = Channel(
                    self._reactor, parse_address(address), identity=self._identity, secret=self._secret, tls=self._tls,
                    expected=NodeIdentity(node=broker, cluster=self._cluster, service=SERVICE), limits=self._limits,
                )  # fmt: skip
                self._channels[broker] = address, channel
        if former is not None:
            former.close()
        return channel

    def _do_close(self) -> None:
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        with ExitStack() as stack:
            for _, channel in channels:
                stack.callback(channel.close)


def _take_reply(
    future: AppendFuture[T], decode: Callable[[ReadableBuffer], T], reply: memoryview | ReplogError
) -> None:  # fmt: skip
    """Complete a request. The body is copied, because its view would pin a receive buffer until the records are
    appended."""
    if isinstance(reply, ReplogError):
        set_exception(future, reply)
        return
    try:
        responses = decode(bytes(reply))
    except ReplogError as error:
        set_exception(future, error)
        return
    set_result(future, responses)
