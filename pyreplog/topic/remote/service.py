"""Topics over TCP, the server's side: what clients ask is done here, or by threads for what blocks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidMessageError,
    ReplogError,
    SequenceError,
    TopicOwnedError,
)
from pyreplog.net.connection import Connection
from pyreplog.net.fairjobs import FairJobs
from pyreplog.net.inflight import ServerConnection
from pyreplog.topic.config import SubscriptionConfig
from pyreplog.topic.remote import protocol
from pyreplog.topic.remote.batches import Delivered, encode_delivered
from pyreplog.topic.remote.calls import call
from pyreplog.topic.remote.faults import encode_fault
from pyreplog.topic.remote.lane import Lane
from pyreplog.topic.remote.outlet import Outlet
from pyreplog.topic.remote.protocol import (
    Answer,
    Done,
    Moved,
    MovedTo,
    Opened,
    asks_for_checksum,
    decode_request,
    encode_reply,
)
from pyreplog.topic.remote.session import NOT_KNOWN, Session
from pyreplog.topic.topic import Topic
from pyreplog.topic.topics import Topics

SERVICE = "topics"
"""As the hello names it."""

READ_BYTES_MAX = 4 << 20
CLOSE_S = 0.5

R = TypeVar("R")


class TopicService:
    """A `net.connection.Handler`. Its calls come from the reactor's driver, which never waits here."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._workers = FairJobs("pyreplog-topics")
        self._lock = threading.Lock()  # of the tables
        self._sessions: dict[Connection, Session] = {}
        self._producers: dict[tuple[str, str], list[Lane]] = {}  # lanes of a producer of a topic
        self._leaving: ReplogError | None = None
        self._steps: dict[type[Any], Callable[[Session, int, Any], None]] = {
            protocol.Publish: self._publish,
            protocol.Leave: self._leave,
            protocol.Detach: self._detach,
            protocol.Read: self._read,
        }
        self._consumer_steps: dict[type[Any], Callable[[Session, int, Outlet, Any], None]] = {
            protocol.Flow: _flow,
            protocol.Fetch: _fetch,
            protocol.Acknowledge: _acknowledge,
            protocol.AcknowledgeRange: _acknowledge_range,
            protocol.AcknowledgeAndFetch: _acknowledge_and_fetch,
            protocol.AcknowledgeCumulative: _acknowledge_cumulative,
            protocol.Nack: _nack,
            protocol.Redeliver: _redeliver,
            protocol.Seek: _seek,
            protocol.Flush: _flush,
            protocol.Resume: _resume,
        }
        self._jobs: dict[type[Any], Callable[[Session, int, Any], None]] = {
            protocol.Open: self._open,
            protocol.Subscribe: self._subscribe,
            protocol.Call: self._call,
        }

    # ---- connections ----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        assert isinstance(connection, ServerConnection)
        with self._lock:
            self._sessions[connection] = Session(connection)

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """InvalidMessageError and DamagedMessageError end the connection; what came before has been handled."""
        session = self._sessions[connection]
        for number, body in batch:
            if body:
                if number == CONTROL_OFFSET:
                    raise InvalidMessageError("expected requests, found a control body")
                request = decode_request(body)
                if asks_for_checksum(body):
                    session.checks(number)
                self._handle(session, number, request)

    def drained(self, connection: Connection) -> None:
        """Nothing waits for that: a consumer is sent what it asks for."""

    def closed(self, connection: Connection, error: ReplogError) -> None:
        with self._lock:
            session = self._sessions.pop(connection, None)
        self._workers.leave(connection)
        for lane in session.end(error) if session is not None else ():
            self._forget(lane)

    def _handle(self, session: Session, number: int, request: Any) -> None:
        kind = type(request)
        if kind in self._jobs:
            self._workers.submit(session.connection, lambda: self._do(session, number, request))
            return
        try:
            if kind in self._steps:
                self._steps[kind](session, number, request)
                return
            outlet = session.outlet(request.consumer)
            if outlet is None:
                session.reply(number, NOT_KNOWN)
            else:
                self._consumer_steps[kind](session, number, outlet, request)
        except InvalidMessageError:
            raise
        except ReplogError as error:
            session.fail(number, error)

    def _do(self, session: Session, number: int, request: Any) -> None:
        """In a thread that may wait."""
        try:
            self._check_staying()
            self._jobs[type(request)](session, number, request)
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

    def _open(self, session: Session, number: int, request: protocol.Open) -> None:
        topic = self._topics.open(request.topic, create=request.create, settings=_settings(request.settings))
        last = -1
        if request.lane:
            lane = Lane(topic, request.producer, request.client, session.reply)
            session.add_lane(request.lane, lane)
            if request.producer and topic.config.deduplicate:
                self._take_over(lane)
                last = topic.publisher.last_given(request.producer)
        most = topic.topics.surroundings.entry_bytes_max
        session.reply(number, encode_reply(Opened(last, most, json.dumps(vars(topic.config)))))

    def _take_over(self, lane: Lane) -> None:
        """A producer numbers its messages by itself: so it is one client's at a time."""
        key = lane.topic.name, lane.producer
        with self._lock:
            former, self._producers[key] = self._producers.get(key, []), [lane]
        why = SequenceError(lane.topic.name, f"another client publishes as {lane.producer} now")
        for other in former:
            other.end(NOT_KNOWN if other.client == lane.client else encode_fault(why)).result()

    def _forget(self, lane: Lane) -> None:
        key = lane.topic.name, lane.producer
        with self._lock:
            if self._producers.get(key) == [lane]:
                del self._producers[key]

    def _publish(self, session: Session, number: int, request: protocol.Publish) -> None:
        lane = session.lane(request.lane)
        if lane is None:
            session.reply(number, NOT_KNOWN)
        else:
            lane.publish(number, request.entries)

    def _leave(self, session: Session, number: int, request: protocol.Leave) -> None:
        lane = session.lane(request.lane)
        if lane is None:
            session.done(number)
            return

        def left() -> None:  # until then another lane of its producer ends it, and so does the end of the connection
            session.remove_lane(request.lane)
            self._forget(lane)
            session.done(number)

        lane.leave(left)

    # ---- consuming ------------------------------------------------------------------------------------------

    def _subscribe(self, session: Session, number: int, request: protocol.Subscribe) -> None:
        settings = _settings(request.settings)
        wanted = SubscriptionConfig.of(settings) if request.settings else None
        topic = self._topics.open(request.topic, create=False)
        there = topic.make_subscription(request.subscription, request.start, request.durable, wanted, {})
        outlet = Outlet(request.name, session.reply)
        session.add_outlet(request.consumer, outlet)
        try:
            address = session.connection.remote_address
            attached = there.attach(outlet, wanted, priority=request.priority, address=address)
        except BaseException as error:
            session.remove_outlet(request.consumer)
            outlet.detach(ClosedError(f"it was not attached: {error}"))
            raise
        topic.used = True
        outlet.attached(there, attached)
        session.done(number)

    def _detach(self, session: Session, number: int, request: protocol.Detach) -> None:
        outlet = session.remove_outlet(request.consumer)
        if outlet is None:
            session.done(number)
        else:
            outlet.detach(ClosedError("the consumer was closed"), then=lambda: session.done(number))

    # ---- the rest -------------------------------------------------------------------------------------------

    def _read(self, session: Session, number: int, request: protocol.Read) -> None:
        topic = self._opened_here(request.topic)
        if topic is None:
            session.reply(number, NOT_KNOWN)
            return
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        ack = topic.managed.read(request.offset, bytes_max=bytes_max, end=request.end)

        def came(_: object) -> None:
            error = ack.exception()
            if error is not None:
                session.fail(number, error)
            else:
                session.reply(number, *encode_delivered(Delivered(0, True, ack.result(), {})))

        ack.add_done_callback(came)

    def _opened_here(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def _call(self, session: Session, number: int, request: protocol.Call) -> None:
        session.reply(number, encode_reply(Answer(call(self._topics, request.topic, request.name, request.arguments))))

    # ---- the end --------------------------------------------------------------------------------------------

    def _check_staying(self) -> None:
        if self._leaving is not None:
            raise self._leaving

    def leave(self) -> None:
        """Topics are not opened any more; consumers are let go, so that none waits for an answer."""
        self._leaving = error = ClosedError("this server is about to end")
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.let_consumers_go(error)

    def close(self) -> None:
        """After the server. What still waits for bookies, or the metadata store, ends with its cluster."""
        self._workers.close(CLOSE_S)


def _settings(text: str) -> dict[str, Any]:
    """InvalidArgumentError."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"settings: expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"settings: expected an object, found {type(found).__name__}")
    return found


def _flow(session: Session, number: int, outlet: Outlet, request: protocol.Flow) -> None:
    outlet.flow(request.messages)
    session.done(number)


def _fetch(session: Session, number: int, outlet: Outlet, request: protocol.Fetch) -> None:
    outlet.fetch(number)


def _acknowledge(session: Session, number: int, outlet: Outlet, request: protocol.Acknowledge) -> None:
    outlet.acknowledge(request.generation, request.offsets)
    session.done(number)


def _acknowledge_range(session: Session, number: int, outlet: Outlet, request: protocol.AcknowledgeRange) -> None:
    outlet.acknowledge(request.generation, (request.start, request.end))
    session.done(number)


def _acknowledge_and_fetch(
    session: Session, number: int, outlet: Outlet, request: protocol.AcknowledgeAndFetch
) -> None:
    outlet.acknowledge(request.generation, (request.start, request.end))
    outlet.fetch(number)


def _acknowledge_cumulative(
    session: Session, number: int, outlet: Outlet, request: protocol.AcknowledgeCumulative
) -> None:
    session.answer(number, outlet.acknowledge_cumulative(request.generation, request.end), lambda _: Done())


def _nack(session: Session, number: int, outlet: Outlet, request: protocol.Nack) -> None:
    outlet.source.nack(outlet.number, request.offsets, None if request.delay_us < 0 else request.delay_us)
    session.done(number)


def _redeliver(session: Session, number: int, outlet: Outlet, request: protocol.Redeliver) -> None:
    outlet.source.redeliver(outlet.number)
    session.reply(number, encode_reply(_moved(0, outlet)))


def _seek(session: Session, number: int, outlet: Outlet, request: protocol.Seek) -> None:
    session.answer(number, outlet.source.seek(request.start), lambda offset: _moved(offset, outlet))


def _moved(offset: int, outlet: Outlet) -> Moved | MovedTo:
    generation, era = outlet.state
    return Moved(offset, generation) if era is None else MovedTo(offset, generation, era)


def _resume(session: Session, number: int, outlet: Outlet, request: protocol.Resume) -> None:
    session.answer(number, outlet.resume(request.era, request.end, request.ranges), lambda resumed: resumed)


def _flush(session: Session, number: int, outlet: Outlet, request: protocol.Flush) -> None:
    session.answer(number, outlet.source.flush(), lambda _: Done())
