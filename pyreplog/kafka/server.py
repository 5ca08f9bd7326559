"""KafkaServer: the Kafka listener of a broker."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyreplog.errors import (
    AuthenticationError,
    ClosedError,
    InvalidArgumentError,
    InvalidMetadataError,
    PeerError,
    ReplogError,
    UnansweredProduceError,
    UnsupportedRequestError,
)
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle
from pyreplog.kafka.apis.api_versions import describe_versions, versions_of
from pyreplog.kafka.apis.context import ApiContext, LongCall, Outcome, RequestContext, Unanswered
from pyreplog.kafka.apis.registry import APIS
from pyreplog.kafka.auto_topic_creation import AutoTopicCreationManager
from pyreplog.kafka.config import KafkaConfig
from pyreplog.kafka.connection import Answer, KafkaConnection
from pyreplog.kafka.coordinators import Coordinators
from pyreplog.kafka.groups.group_coordinator import GroupCoordinator
from pyreplog.kafka.groups.group_trends import GroupTrends
from pyreplog.kafka.node_ids import node_id_of
from pyreplog.kafka.quotas.client_quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from pyreplog.kafka.quotas.quota_follower import QuotaFollower
from pyreplog.kafka.quotas.quota_manager import QuotaManager
from pyreplog.kafka.receive_budget import ReceiveBudget
from pyreplog.kafka.sasl import SaslSession, SaslUsers
from pyreplog.kafka.wire.codec import Request, decode_request, encode_response
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.layout import cluster_id
from pyreplog.net.limits import check_tls
from pyreplog.net.listener import Listener
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import (
    Address,
    Stream,
    address_text,
    parse_address,
    size_of,
    weak_callback,
)
from pyreplog.net.tls import TlsStream
from pyreplog.partition.broker import Broker
from pyreplog.partition.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from pyreplog.kafka.ledgers.topics import LedgerTopics
    from pyreplog.topic.client.remote.client import Client
    from pyreplog.topic.owner.topics import Topics

logger = logging.getLogger(__name__)

_CHECK_S_MAX = 1.0
_CLOSE_S = 5.0
"""Seconds that connections may take to end, and that the brokers may take to be read from the metadata store."""
_SASL_APIS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class _PendingRequest(NamedTuple):
    """A request that was not answered yet.

    Attributes:
        request: the request without its message, because the message's views pin the receive buffer.
        context: context of the request.
        size: size of the request, bytes.
        spent_us: microseconds of work on it so far, without waiting.
    """

    request: Request
    context: RequestContext
    size: int
    spent_us: int


class KafkaServer(Handle):
    """Serves Kafka clients for a broker.

    One thread serves all connections; a few others change metadata. Any thread may use this object. Close it before the
    broker: its clients then go to the other brokers, which soon lead the partitions of this broker.

    Args:
        broker: the broker whose partitions are served.
        config: settings of the listener.
        host: address on which it listens.
        port: port on which it listens; 0: a free one.
        advertised: address that clients use, "host:port" or "[v6]:port"; "": the listening address. Clients ask any
            broker for the addresses of all brokers.
        tls: TLS context for servers; None: no TLS.
        users: users as which clients must authenticate by SASL; None: no authentication, every client may do
            everything.
        topics: topics on ledgers that clients see beside the partitions of the broker: `Cluster.topics`, or the client
            that `pyreplog.connect` returns. It stays open when the listener is closed. None: no such topics.

    Raises:
        OSError: the address is in use, or is not an address of this machine.
        InvalidArgumentError: the host does not exist, the advertised address is malformed, or another broker has the
            same node id.
        WrongTypeError: `topics` is something else.
        ReplogError: errors of the metadata store.

    Example:
        ```python
        with open_store("sqlite:metadata") as store, Broker(Path("data-1"), "1", store) as broker:
            with pyreplog.kafka.Server(broker, port=9092) as server:
                print(server.address)
        ```
    """

    def __init__(
        self, broker: Broker, *, config: KafkaConfig | None = None, host: str = "127.0.0.1", port: int = 0,
        advertised: str = "", tls: ssl.SSLContext | None = None, users: SaslUsers | None = None,
        topics: Topics | Client | None = None,
    ) -> None:  # fmt: skip
        check_tls("tls", tls)
        self.config = config or KafkaConfig()
        self.group_trends = GroupTrends()
        """Samples of committed offsets, which metrics keep from one scrape to the next."""
        self.connections: set[KafkaConnection] = set()
        """Open connections. Only the server's thread changes the set; read it in tests and for metrics only."""
        self.receive_budget = ReceiveBudget(self.config.incomplete_request_bytes)
        """Memory of requests that have not arrived whole. Only the server's thread changes it; read it in tests and for
        metrics only."""
        self.unanswered_failures = 0
        """Number of Produce requests with acks=0 whose records were refused. Read it in tests and for metrics only."""
        self._lock = threading.Lock()  # guards the number
        self._broker, self._tls, self._users = broker, tls, users
        if advertised:
            parse_address(advertised)
        with ExitStack() as undo:
            _check_node_ids(broker)
            self._reactor = Reactor()
            undo.callback(self._reactor.close)
            self._listener = Listener(self._reactor, host, port, weak_callback(self._open))
            undo.callback(self._listener.close)
            self.address = self._listener.address
            """Address on which the server listens."""
            self.advertised = advertised or address_text(self.address)
            """Address that clients use."""
            self._pool = ThreadPoolExecutor(self.config.admin_threads, thread_name_prefix="pyreplog-kafka")
            undo.callback(self._pool.shutdown)
            name_of_cluster = base64.urlsafe_b64encode(cluster_id(broker.store)).decode().rstrip("=")
            self._ledger_topics = _ledger_topics(topics, name_of_cluster)
            if self._ledger_topics is not None:
                undo.callback(self._ledger_topics.close)
            self._coordinators = Coordinators(broker, self.config, self._ledger_topics)
            undo.callback(self._coordinators.close)
            self.quotas = QuotaManager()
            """The quotas of clients, and what the clients have used."""
            self._quota_follower = QuotaFollower(broker.store, self.quotas)
            undo.callback(self._quota_follower.close)
            self._api = ApiContext(
                broker,
                self.config,
                self._reactor,
                self._pool,
                name_of_cluster,
                self._coordinators,
                self.quotas,
                AutoTopicCreationManager(broker.store, self.config, self._reactor.clock, self._pool),
                self._ledger_topics,
            )
            broker.advertise_kafka(self.advertised)
            super().__init__(f"Kafka listener at {address_text(self.address)}")
            undo.pop_all()
        self._listener.begin()
        self._check_s = min(_CHECK_S_MAX, min(self.config.idle_ms, self.config.request_ms, self.config.stall_ms) / 4000)
        self._reactor.call_later(self._check_s, weak_callback(self._check_time))
        self._reactor.start()

    @property
    def broker(self) -> Broker:
        """The broker whose partitions are served."""
        return self._broker

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of the consumer groups of this broker."""
        return self._coordinators.groups

    def ledger_topics_of(self, name: str) -> LedgerTopics | None:
        """Return the topics on ledgers that are served, if a topic of that name could be one of them.

        Args:
            name: name of the topic.

        Returns:
            The topics; None: there are none, or a topic of brokers has the name.
        """
        return self._api.topics_of(name)

    @property
    def node_id(self) -> int:
        """Node id of this broker in Kafka's protocol."""
        return self._api.node_id

    def create_offsets_topic(self) -> None:
        """Create the topic of groups and their offsets, if it does not exist, so that the first group need not wait.

        It blocks for the metadata store, but does not wait for leaders.

        Raises:
            ReplogError: errors of the metadata store.
        """
        self._coordinators.create_offsets_topic()

    def replace_users(self, users: SaslUsers) -> None:
        """Replace the users, for new connections. Any thread may call it.

        Args:
            users: all users from now on.

        Raises:
            InvalidArgumentError: the listener was made without users.
        """
        if self._users is None:
            raise InvalidArgumentError("users: expected a listener that was made with users, found one without")
        self._users = users

    # ---- connections ----------------------------------------------------------------------------------------

    def _open(self, sock: socket.socket, address: Address) -> None:
        peer = address_text(address)
        if len(self.connections) >= self.config.connections:
            logger.warning("Kafka client %s: closed, there are %d connections", peer, len(self.connections))
            sock.close()
            return
        try:
            stream: Stream = sock if self._tls is None else TlsStream(self._tls, sock, None)
            session = None if self._users is None else SaslSession(self._users)
            connection = KafkaConnection(
                self._reactor, stream, peer, self._Requests(self), self.config, session, self.receive_budget
            )
            connection.is_trusted = session is None
            connection.open()
        except OSError as error:  # the client has disconnected
            logger.debug("Kafka client %s: %s", peer, error)
            sock.close()
            return
        self.connections.add(connection)

    def _check_time(self) -> None:
        now_us = self._reactor.clock.monotonic_us()
        for connection in list(self.connections):
            connection.check_time(now_us)
        with suppress(ReplogError):  # the reactor was closed
            self._reactor.call_later(self._check_s, weak_callback(self._check_time))

    # ---- requests -------------------------------------------------------------------------------------------

    class _Requests:
        """Passes the requests of connections to the server."""

        def __init__(self, server: KafkaServer) -> None:
            self._server = server

        def request(self, connection: KafkaConnection, data: memoryview) -> None:
            self._server._request(connection, data)

        def closed(self, connection: KafkaConnection) -> None:
            self._server.connections.discard(connection)

    def _request(self, connection: KafkaConnection, data: memoryview) -> None:
        began_us = self._reactor.clock.monotonic_us()
        request = decode_request(data, max_items=self.config.max_request_items)
        size = len(data)
        del data
        if request.key == ApiKey.API_VERSIONS:
            self._describe_versions(connection, request)
            return
        handle = APIS.get(request.key)
        if handle is None or request.message is None or request.version < versions_of(request.key)[0]:
            raise UnsupportedRequestError(
                f"expected an API that ApiVersions lists, found key {request.key} version {request.version}"
            )
        session = connection.session
        if isinstance(session, SaslSession) and not session.user and request.key not in _SASL_APIS:
            raise AuthenticationError(f"expected an authentication first, found a request of key {request.key}")
        context = RequestContext(request.version, request.client_id, connection.peer, connection.session)
        try:
            outcome = handle(self._api, context, request.message)
        except UnansweredProduceError:
            self._count_unanswered()
            raise
        connection.is_trusted = connection.is_trusted or bool(isinstance(session, SaslSession) and session.user)
        spent_us = self._reactor.clock.monotonic_us() - began_us
        pending = _PendingRequest(request._replace(message=None), context, size, spent_us)
        if isinstance(outcome, LongCall):
            connection.hold()
            self._api.run(outcome.run).add_done_callback(partial(self._end_long_call, connection, pending))
        else:
            self._accept_outcome(connection, pending, outcome)

    def _end_long_call(
        self, connection: KafkaConnection, pending: _PendingRequest, future: AppendFuture[Outcome]
    ) -> None:
        """Accept the outcome of a call, and handle the requests behind it; runs on the thread that made the call."""
        error = future.exception()
        try:
            if error is None:
                self._accept_outcome(connection, pending, future.result())
            else:
                self._close_after(connection, pending, error)
        finally:
            connection.release()

    def _accept_outcome(self, connection: KafkaConnection, pending: _PendingRequest, outcome: Outcome) -> None:
        if isinstance(outcome, Unanswered):
            if outcome.is_held:
                connection.hold()
            outcome.done.add_done_callback(partial(self._end_unanswered, connection, pending, is_held=outcome.is_held))
            outcome = None
        if outcome is None:
            if throttle_ms := self._record_bytes(pending, 0):
                connection.mute(throttle_ms)
            return
        answer = connection.expect_answer()
        if isinstance(outcome, AppendFuture):
            outcome.add_done_callback(partial(self._handle_outcome, connection, answer, pending))
        else:
            self._send_response(connection, answer, pending, outcome)

    def _end_unanswered(
        self, connection: KafkaConnection, pending: _PendingRequest, future: AppendFuture[None], *, is_held: bool
    ) -> None:
        """Close the connection if a request without a response failed; runs on the thread that knows the outcome."""
        error = future.exception()
        if error is not None:
            if connection.error is not None:
                logger.warning("Kafka client %s has disconnected: %s", connection.peer, error)
            self._close_after(connection, pending, error)
        if is_held:
            connection.release()

    def _count_unanswered(self) -> None:
        with self._lock:
            self.unanswered_failures += 1

    def _describe_versions(self, connection: KafkaConnection, request: Request) -> None:
        served = {**APIS, ApiKey.API_VERSIONS: None}
        answer = connection.expect_answer()
        if request.message is None:  # KIP-511: the client may support only the layout of version 0
            request = request._replace(version=0)
            response = describe_versions(served, ErrorCode.UNSUPPORTED_VERSION)
        else:
            response = describe_versions(served)
        context = RequestContext(request.version, request.client_id, connection.peer, connection.session)
        self._send_response(
            connection, answer, _PendingRequest(request._replace(message=None), context, 0, 0), response
        )

    def _handle_outcome(
        self, connection: KafkaConnection, answer: Answer, pending: _PendingRequest, future: AppendFuture[Any]
    ) -> None:
        """Send the response to a request that waited; runs on the thread that completed the future."""
        error = future.exception()
        if error is None:
            self._send_response(connection, answer, pending, future.result())
        else:
            self._close_after(connection, pending, error)

    def _close_after(self, connection: KafkaConnection, pending: _PendingRequest, error: BaseException) -> None:
        """Close a connection because a request of it failed."""
        if isinstance(error, UnansweredProduceError):
            self._count_unanswered()
        if isinstance(error, ReplogError):
            connection.close(error)
        else:
            logger.error("Kafka client %s: a request failed", connection.peer, exc_info=error)
            connection.close(PeerError(f"{type(error).__name__} in a request of key {pending.request.key}"))

    def _send_response(
        self, connection: KafkaConnection, answer: Answer, pending: _PendingRequest, message: Any
    ) -> None:
        """Send a response.

        If the client is above a quota, the response says so, and the connection is muted (KIP-219).
        """
        request, throttle_ms = pending.request, 0
        began_us = self._reactor.clock.monotonic_us()
        try:
            buffers = encode_response(request.key, request.version, request.correlation_id, message)
            if self.quotas.table and request.key not in _SASL_APIS:
                throttle_ms = max(self._record_bytes(pending, size_of(buffers)), self._record_time(pending, began_us))
            if throttle_ms:
                message = message._replace(throttle_time_ms=throttle_ms)
                buffers = encode_response(request.key, request.version, request.correlation_id, message)
        except ReplogError as error:
            logger.error("Kafka client %s: a response cannot be encoded: %s", connection.peer, error)
            connection.close(error)
            return
        connection.answer(answer, buffers)
        if throttle_ms:
            connection.mute(throttle_ms)

    # ---- quotas ---------------------------------------------------------------------------------------------

    def _record_bytes(self, pending: _PendingRequest, answer_bytes: int) -> int:
        """Record the bytes of a Produce request or a Fetch response; return the throttle time in milliseconds."""
        if pending.request.key == ApiKey.PRODUCE:
            return self._record(PRODUCER_BYTE_RATE, pending, pending.size)
        return self._record(CONSUMER_BYTE_RATE, pending, answer_bytes) if pending.request.key == ApiKey.FETCH else 0

    def _record_time(self, pending: _PendingRequest, began_us: int) -> int:
        """Record the time of a request, as percents of a second; return the throttle time in milliseconds."""
        spent_us = pending.spent_us + self._reactor.clock.monotonic_us() - began_us
        return self._record(REQUEST_PERCENTAGE, pending, spent_us / 10_000)

    def _record(self, kind: str, pending: _PendingRequest, value: float) -> int:
        context, now_us = pending.context, self._reactor.clock.monotonic_us()
        return self.quotas.record(kind, context.user, context.client_id or "", value, now_us)

    # ---- closing --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        """Close all connections. Clients then learn of other leaders from the other brokers."""
        with suppress(ReplogError):  # otherwise the address expires with the broker's lease
            self._broker.advertise_kafka("")
        with suppress(ReplogError):
            self._reactor.call_soon(self._close_in_driver)
            self._reactor.drive(lambda: self._listener.closed and not self.connections, _CLOSE_S)
        self._coordinators.close()
        if self._ledger_topics is not None:
            self._ledger_topics.close()
        self._quota_follower.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._reactor.close()

    def _close_in_driver(self) -> None:
        self._listener.end()
        for connection in list(self.connections):
            connection.close(ClosedError("the Kafka listener was closed"))


def _ledger_topics(topics: Topics | Client | None, name_of_cluster: str) -> LedgerTopics | None:
    if topics is None:
        return None
    from pyreplog.kafka.ledgers.topics import LedgerTopics  # most listeners have none, and do not load it

    return LedgerTopics(topics, f"kafka-{name_of_cluster}")


def _check_node_ids(broker: Broker) -> None:
    """Raise InvalidArgumentError if another broker has the node id of this one."""
    if not broker.metadata.wait(_CLOSE_S):
        raise InvalidMetadataError("the brokers of the metadata store were not read in time")
    mine = node_id_of(broker.name)
    for other in broker.metadata.brokers():
        if other != broker.name and node_id_of(other) == mine:
            raise InvalidArgumentError(
                f"broker {broker.name} has the node id {mine}, as broker {other} has: give it another name"
            )
