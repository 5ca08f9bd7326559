"""TopicServer: serves the topics that its process owns, over TCP. Calls that block run on threads of their own."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch
from pyreplog.arguments import as_int
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    InvalidArgumentError,
    InvalidMessageError,
    NoSuchTopicError,
    ReplogError,
    SequenceError,
    TopicOwnedError,
    UnsupportedRequestError,
)
from pyreplog.handles import Handle
from pyreplog.metadata.layout import cluster_id
from pyreplog.net.connection import Connection
from pyreplog.net.fair_executor import FairExecutor
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.server_connection import ServerConnection
from pyreplog.net.sockets import address_text
from pyreplog.origins.origin import LastEntry, Origin, OriginState
from pyreplog.topic.client.remote.connection_pool import LIMITS
from pyreplog.topic.model.arguments import as_reason
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import Delivered, encode_delivered
from pyreplog.topic.model.wire.protocol import (
    CHECKED,
    EXTENDED_FROM,
    FEATURES,
    VERSION,
    CallResult,
    Done,
    Moved,
    MovedTo,
    Opened,
    OriginOpened,
    Replicated,
    decode_request,
    encode_fault,
    encode_reply,
)
from pyreplog.topic.owner.ownership import LEASE_MS
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics
from pyreplog.topic.server.admin_calls import CREATION_WAIT_S, call
from pyreplog.topic.server.client_session import (
    NOT_KNOWN,
    ClientSession,
    ConsumerSession,
    OriginSession,
    ProducerSession,
)

SERVICE = "topics"
"""Name of the service in the hello."""

READ_BYTES_MAX = 4 << 20
CLOSE_S = 0.5

R = TypeVar("R")


class TopicService:
    """Handles the connections: a `net.connection.Handler`. The reactor's driver calls it, which never waits here."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._workers = FairExecutor("pyreplog-topics")
        self._lock = threading.Lock()  # guards the tables
        self._sessions: dict[Connection, ClientSession] = {}
        self._producers: dict[tuple[str, str], list[ProducerSession]] = {}  # by (topic, producer)
        self._leaving: ReplogError | None = None
        self._steps: dict[type[Any], Callable[[ClientSession, int, Any], None]] = {
            protocol.Publish: self._publish,
            protocol.PublishTo: self._publish,
            protocol.CloseProducer: self._leave,
            protocol.Subscribe: self._subscribe,
            protocol.Detach: self._detach,
            protocol.ReadRequest: self._read,
            protocol.Replicate: _replicate,
            protocol.ReplicateTo: _replicate_to,
            protocol.Exchange: self._exchange,
        }
        self._consumer_steps: dict[type[Any], Callable[[ClientSession, int, ConsumerSession, Any], None]] = {
            protocol.Flow: _flow,
            protocol.Fetch: _fetch,
            protocol.Acknowledge: _acknowledge,
            protocol.AcknowledgeRange: _acknowledge_range,
            protocol.AcknowledgeAndFetch: _acknowledge_and_fetch,
            protocol.AcknowledgeCumulative: _acknowledge_cumulative,
            protocol.Nack: _nack,
            protocol.NackWithReason: _nack_with_reason,
            protocol.Redeliver: _redeliver,
            protocol.Seek: _seek,
            protocol.Flush: _flush,
            protocol.Resume: _resume,
        }
        self._jobs: dict[type[Any], Callable[[ClientSession, int, Any], None]] = {
            protocol.Open: self._open,
            protocol.Call: self._call,
            protocol.OpenOrigin: self._open_origin,
        }

    @property
    def calls(self) -> tuple[int, int]:
        """(running, queued) calls that block, on threads of their own; for tests and operators."""
        return self._workers.running, self._workers.queued

    @property
    def sessions(self) -> dict[Connection, ClientSession]:
        """Sessions of the connected clients; for tests and operators."""
        with self._lock:
            return dict(self._sessions)

    # ---- connections ----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        assert isinstance(connection, ServerConnection)
        with self._lock:
            self._sessions[connection] = ClientSession(connection)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Handle requests.

        InvalidMessageError and DamagedMessageError close the connection, after the requests before.
        """
        session = self._sessions[connection]
        for number, body in batch:
            if body:
                if number == CONTROL_OFFSET:
                    raise InvalidMessageError("expected requests, found a control body")
                request: protocol.Request | UnsupportedRequestError
                try:
                    request = decode_request(body)
                except UnsupportedRequestError as error:
                    request = error
                if body[0] & CHECKED:
                    session.checks(number)
                self._handle(session, number, request)

    def drained(self, connection: Connection) -> None:
        """Do nothing: consumers are sent only what they ask for."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        with self._lock:
            session = self._sessions.pop(connection, None)
        self._workers.leave(connection)
        for producer_session in session.end(error) if session is not None else ():
            self._forget(producer_session)

    def _handle(self, session: ClientSession, number: int, request: Any) -> None:
        kind = type(request)
        if kind is UnsupportedRequestError:
            session.fail(number, request)
            return
        if kind in self._jobs:
            self._start(session, number, partial(self._jobs[kind], session, number, request))
            return
        try:
            if kind in self._steps:
                self._steps[kind](session, number, request)
                return
            consumer_session = session.consumer_session(request.consumer)
            if consumer_session is None:
                session.reply(number, NOT_KNOWN)
            else:
                self._consumer_steps[kind](session, number, consumer_session, request)
        except InvalidMessageError:
            raise
        except ReplogError as error:
            session.fail(number, error)

    def _start(self, session: ClientSession, number: int, job: Callable[[], object]) -> None:
        """Handle a request in a thread that may wait."""
        self._workers.submit(session.connection, lambda: self._do(session, number, job))

    def _do(self, session: ClientSession, number: int, job: Callable[[], object]) -> None:
        try:
            self._check_staying()
            job()
        except TopicOwnedError as error:
            session.fail(number, error, self._owner_address(error.topic))
        except Exception as error:
            session.fail(number, error)

    def _owner_address(self, topic: str) -> str:
        try:
            owner = self._topics.owner(topic)
        except ReplogError:
            return ""
        return "" if owner is None or owner.address == self._topics.address else owner.address

    # ---- publishing -----------------------------------------------------------------------------------------

    def _open(self, session: ClientSession, number: int, request: protocol.Open) -> None:
        topic = self._topics.open(request.topic, create=request.create, settings=_settings(request.settings))
        last = -1
        if request.session:
            producer_session = ProducerSession(topic, request.producer, request.client, session.reply)
            session.add_producer(request.session, producer_session)
            if request.producer and topic.config.deduplicate:
                self._take_over(producer_session)
                last = topic.publisher.last_assigned(request.producer)
        most = self._topics.runtime.entry_bytes_max
        session.reply(number, encode_reply(Opened(last, most, json.dumps(topic.config.encoded()))))

    def _take_over(self, session: ProducerSession) -> None:
        """End the former sessions of a producer: its messages are numbered by the client, so one client at a time may
        publish.
        """
        key = session.topic.name, session.producer
        with self._lock:
            former, self._producers[key] = self._producers.get(key, []), [session]
        why = SequenceError(session.topic.name, f"another client publishes as producer {session.producer} now")
        for other in former:
            other.end(NOT_KNOWN if other.client == session.client else encode_fault(why)).result()

    def _forget(self, session: ProducerSession) -> None:
        key = session.topic.name, session.producer
        with self._lock:
            if self._producers.get(key) == [session]:
                del self._producers[key]

    def _publish(self, session: ClientSession, number: int, request: protocol.Publish | protocol.PublishTo) -> None:
        producer_session = session.producer_session(request.session)
        if producer_session is None:
            session.reply(number, NOT_KNOWN)
        else:
            attributes = request.replicate_to if isinstance(request, protocol.PublishTo) else None
            producer_session.publish(number, request.entries, attributes)

    def _leave(self, session: ClientSession, number: int, request: protocol.CloseProducer) -> None:
        producer_session = session.producer_session(request.session)
        if producer_session is None:
            session.done(number)
            return

        def left() -> None:  # until then another session of its producer, or the end of the connection, ends it
            session.remove_producer(request.session)
            self._forget(producer_session)
            session.done(number)

        producer_session.leave(left)

    # ---- replication from other clusters --------------------------------------------------------------------

    def _open_origin(self, session: ClientSession, number: int, request: protocol.OpenOrigin) -> None:
        topic, origin = self._topic_for(request), Origin(request.cluster, request.token)
        if topic.config.durability != "synced":
            raise ConfigError(
                f"topic {topic.name}: durability: expected 'synced' of a topic that other clusters replicate into, "
                f"found {topic.config.durability!r}: change it with `configure`"
            )
        opened = topic.origins.open(origin, request.session)
        session.add_origin(request.handle, OriginSession(topic, origin, request.session))
        session.answer(number, opened, lambda state: _origin_opened(topic, state))

    def _topic_for(self, request: protocol.OpenOrigin) -> Topic:
        try:
            return self._topics.open(request.topic, create=False)
        except NoSuchTopicError:
            if not request.create:
                raise
        settings = _settings(request.settings)
        if request.partitions:
            partition = partition_of(request.topic)
            if partition is None:
                raise InvalidArgumentError(f"topic {request.topic}: expected the name of a partition")
            known = self._topics.partitioned.find(partition[0]) or 0  # it may have more here
            self._topics.partitioned.stored(
                partition[0], max(request.partitions, known), create=True, wait=CREATION_WAIT_S, settings=settings
            )
        return self._topics.open(request.topic, create=True, settings=settings)

    def _exchange(self, session: ClientSession, number: int, request: protocol.Exchange) -> None:
        if request.number == 0:
            self._start(session, number, partial(self._begin_exchange, session, number, request))
            return
        topic = self._opened_here(request.topic)
        peer = None if topic is None else topic.exchange_peer
        if peer is None:
            session.reply(number, NOT_KNOWN)
        else:
            session.answer(number, peer.exchange(request), lambda reply: reply)

    def _begin_exchange(self, session: ClientSession, number: int, request: protocol.Exchange) -> None:
        topic = self._topics.open(request.topic, create=False)
        peer = topic.exchange_peer
        if peer is None:
            raise ConfigError(
                f"topic {topic.name}: its subscriptions are not replicated by the cluster that was asked: set "
                "replicated_subscriptions=true there, in a policy with this cluster as a target (`geo set`)"
            )
        session.add_exchange(request.session, peer)
        session.answer(number, peer.exchange(request), lambda reply: reply)

    # ---- consuming ------------------------------------------------------------------------------------------

    def _subscribe(self, session: ClientSession, number: int, request: protocol.Subscribe) -> None:
        """Note the consumer at once, so that a DETACH that comes before it is attached does not miss it."""
        consumer_session = ConsumerSession(request.name, session.reply)
        try:
            session.add_consumer(request.consumer, consumer_session)
            self._check_staying()  # `leave` detaches those that came before it
        except ReplogError as error:
            session.remove_consumer(request.consumer, consumer_session)
            session.fail(number, error)
            return

        def attach() -> None:
            try:
                self._attach(session, consumer_session, request)
            except BaseException as error:
                session.remove_consumer(request.consumer, consumer_session)
                consumer_session.detach(ClosedError(f"it was not attached: {error}"))
                raise
            session.done(number)

        self._start(session, number, attach)

    def _attach(self, session: ClientSession, consumer_session: ConsumerSession, request: protocol.Subscribe) -> None:
        settings = _settings(request.settings)
        topic = self._topics.open(request.topic, create=False)
        consumer_session.check_attached()
        address = session.connection.remote_address
        source, attached = topic.attach(
            consumer_session, request.subscription, request.start, request.durable, settings, request.priority, address
        )
        consumer_session.attached(source, attached)

    def _detach(self, session: ClientSession, number: int, request: protocol.Detach) -> None:
        consumer_session = session.remove_consumer(request.consumer)
        if consumer_session is None:
            session.done(number)
        else:
            consumer_session.detach(ClosedError("the consumer was closed"), then=lambda: session.done(number))

    # ---- reads and calls -------------------------------------------------------------------------------------------

    def _read(self, session: ClientSession, number: int, request: protocol.ReadRequest) -> None:
        topic = self._opened_here(request.topic)
        if topic is None:
            session.reply(number, NOT_KNOWN)
            return
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        future = topic.managed.read(request.offset, bytes_max=bytes_max, end=request.end)

        def on_read(_: object) -> None:
            error = future.exception()
            if error is not None:
                session.fail(number, error)
            else:
                session.reply(number, *encode_delivered(Delivered(0, True, future.result(), {})))

        future.add_done_callback(on_read)

    def _opened_here(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def _call(self, session: ClientSession, number: int, request: protocol.Call) -> None:
        session.reply(
            number, encode_reply(CallResult(call(self._topics, request.topic, request.name, request.arguments)))
        )

    # ---- the end --------------------------------------------------------------------------------------------

    def _check_staying(self) -> None:
        if self._leaving is not None:
            raise self._leaving

    def leave(self) -> None:
        """Open no more topics, and detach all consumers, so that none waits for an answer."""
        self._leaving = error = ClosedError("this server is shutting down")
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.detach_consumers(error)

    def close(self) -> None:
        """End the threads, after the server; calls that wait for bookies or metadata end with the cluster."""
        self._workers.close(CLOSE_S)


def _settings(text: str) -> dict[str, Any]:
    """Return decoded settings. Raises InvalidArgumentError."""
    try:
        settings = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"settings: expected JSON: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"settings: expected an object, found {type(settings).__name__}")
    return settings


def _origin_opened(topic: Topic, state: OriginState) -> OriginOpened:
    last = state.last or LastEntry(-1, 0, 0, 0)
    settings = {**topic.config.encoded(), "clock_us": topic.clock.now_us()}
    return OriginOpened(state.stored, *last, topic.origin.cluster, json.dumps(settings))


def _replicate(session: ClientSession, number: int, request: protocol.Replicate) -> None:
    replicating = session.origin(request.handle)
    if replicating is None:
        session.reply(number, NOT_KNOWN)
        return
    topic, origin, origin_session = replicating
    stored = topic.origins.replicate(origin, origin_session, request.entries, request.gaps)
    session.answer(number, stored, Replicated)


def _replicate_to(session: ClientSession, number: int, request: protocol.ReplicateTo) -> None:
    lists = zip(request.entries, request.replicate_to, strict=True)
    entries = [entry._replace(replicate_to=attribute) for entry, attribute in lists]
    _replicate(session, number, protocol.Replicate(request.handle, request.gaps, entries))


def _flow(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Flow) -> None:
    consumer_session.flow(request.messages)
    session.done(number)


def _fetch(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Fetch) -> None:
    consumer_session.fetch(number)


def _acknowledge(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Acknowledge
) -> None:
    consumer_session.acknowledge(request.generation, request.offsets)
    session.done(number)


def _acknowledge_range(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.AcknowledgeRange
) -> None:
    consumer_session.acknowledge(request.generation, (request.start, request.end))
    session.done(number)


def _acknowledge_and_fetch(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.AcknowledgeAndFetch
) -> None:
    consumer_session.acknowledge(request.generation, (request.start, request.end))
    consumer_session.fetch(number)


def _acknowledge_cumulative(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.AcknowledgeCumulative
) -> None:
    session.answer(number, consumer_session.acknowledge_cumulative(request.generation, request.end), lambda _: Done())


def _nack(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Nack) -> None:
    consumer_session.source.nack(
        consumer_session.number, request.offsets, None if request.delay_us < 0 else request.delay_us
    )
    session.done(number)


def _nack_with_reason(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.NackWithReason
) -> None:
    delay_us = None if request.delay_us < 0 else request.delay_us
    reason = as_reason(request.reason)
    consumer_session.source.nack(consumer_session.number, request.offsets, delay_us, reason)
    session.done(number)


def _redeliver(
    session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Redeliver
) -> None:
    consumer_session.source.redeliver(consumer_session.number)
    session.reply(number, encode_reply(_moved(0, consumer_session)))


def _seek(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Seek) -> None:
    session.answer(number, consumer_session.source.seek(request.start), lambda offset: _moved(offset, consumer_session))


def _moved(offset: int, consumer_session: ConsumerSession) -> Moved | MovedTo:
    generation, era = consumer_session.state
    return Moved(offset, generation) if era is None else MovedTo(offset, generation, era)


def _resume(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Resume) -> None:
    session.answer(number, consumer_session.resume(request.era, request.end, request.ranges), lambda resumed: resumed)


def _flush(session: ClientSession, number: int, consumer_session: ConsumerSession, request: protocol.Flush) -> None:
    session.answer(number, consumer_session.source.flush_async(), lambda _: Done())


class OwnsTopics(Protocol):
    """A `Cluster`, as a TopicServer uses it."""

    @property
    def topics(self) -> Topics: ...


class TopicServer(Handle):
    """Serves the topics of a cluster to clients, in a thread of its own, until `drain` or `close`.

    Topics are opened when clients ask for them; clients of a topic that another process owns are sent there. Any thread
    may use it. See docs/topics.md.

    Args:
        cluster: a cluster whose topics were not used yet; close it after the server.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        advertise: "host:port" that clients are told; None: where it listens.
        secret: secret that clients need; None: no authentication.
        tls: TLS context of a server; None: no TLS.
        limits: limits of each connection; None: the defaults.
        lease_ms: milliseconds after which other servers take the topics of a server that died.

    Raises:
        InvalidArgumentError: topics of the cluster are open already.
        DiskError: no file descriptor is left.
        ReplogError: the address is in use, or an argument is invalid.
    """

    def __init__(
        self,
        cluster: OwnsTopics,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        secret: bytes | Secret | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._topics = cluster.topics
        self._service = TopicService(self._topics)
        with ExitStack() as undo:
            undo.callback(self._service.close)
            self._reactor = undo.enter_context(Reactor())
            self._server = undo.enter_context(
                Server(
                    self._reactor, self._service, host=host, port=port,
                    identity=NodeIdentity(
                        service=SERVICE, version=VERSION, extended_from=EXTENDED_FROM, features=FEATURES,
                        cluster=cluster_id(self._topics.metadata).hex(),
                    ),
                    secret=Secret.of(secret), tls=tls, limits=limits or LIMITS,
                )
            )  # fmt: skip
            self.address = advertise or address_text(self._server.address)
            self._topics.serve_at(self.address, lease_s=as_int("lease_ms", lease_ms) / 1000)
            undo.pop_all()
        super().__init__(f"topic server at {self.address}")
        self._reactor.start()

    @property
    def server(self) -> Server:
        """The server, with its address and its connections; for tests and operators."""
        return self._server

    @property
    def service(self) -> TopicService:
        """The requests and sessions of clients; for tests and operators."""
        return self._service

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._server.connections)

    def drain(self, timeout: float) -> bool:
        """Accept no more requests, answer pending ones, and close; return whether all were answered.

        Consumers go to other servers. The topics are released when the cluster is closed.

        Args:
            timeout: most seconds for the answers.

        Raises:
            ClosedError: the server was closed.
        """
        self._check_open()
        self._service.leave()
        answered = self._server.drain(timeout)
        self.close()
        return answered

    def _do_close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._reactor.close)
            stack.callback(self._service.close)
            stack.callback(self._server.close)
