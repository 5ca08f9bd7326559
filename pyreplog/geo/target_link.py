"""TargetLink: the connection to one target cluster, over which the topics of this process are replicated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from pyreplog.errors import InvalidMessageError, ReplogError
from pyreplog.event_queue import EventQueue
from pyreplog.geo.protocol.fair_window import FairWindow
from pyreplog.net.sockets import Address
from pyreplog.origins.origin import Gap, LastEntry, Origin, OriginEntry, OriginState
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.connection_pool import Outcome
from pyreplog.topic.model.wire.protocol import (
    Exchange,
    Exchanged,
    OpenOrigin,
    OriginOpened,
    Replicate,
    Replicated,
    ReplicateTo,
    decode_reply,
)

WINDOW_BYTES = 32 << 20
"""Most bytes in flight to one cluster, of all topics."""


class Opening(NamedTuple):
    """A request to open a session.

    Attributes:
        topic: name of the topic, here and at the target.
        origin: the origin.
        session: number of the session.
        partitions: if the topic is a partition, the number of partitions; otherwise 0.
        settings: JSON with the topic's settings, for a target that has to create it.
    """

    topic: str
    origin: Origin
    session: int
    partitions: int
    settings: str


class TargetSession(NamedTuple):
    """A session that the target opened.

    Attributes:
        topic: name of the topic.
        address: the server that owns the topic.
        handle: of the session, on that connection.
        cluster: id of the target cluster.
        state: position of the target in the origin.
        settings: those of the topic there, and `clock_us`, the time of the server's wall clock.
    """

    topic: str
    address: Address
    handle: int
    cluster: bytes
    state: OriginState
    settings: Mapping[str, Any] = {}


OnOpened = Callable[[TargetSession | ReplogError], object]
OnLost = Callable[[ReplogError], object]
OnStored = Callable[[int | ReplogError], object]
OnExchanged = Callable[[Address, Exchanged | ReplogError], object]


class Target(Protocol):
    """The target cluster of a replicator. No method waits; a callback may be called before the method returns."""

    def open(self, opening: Opening, on_opened: OnOpened, on_lost: OnLost) -> None:
        """Open a session; `on_lost` is called when its connection is lost, unless `drop` was called before."""
        ...

    def replicate(
        self,
        session: TargetSession,
        entries: Sequence[OriginEntry],
        gaps: Sequence[Gap],
        size: int,
        on_stored: OnStored,
    ) -> None:
        """Send entries and gaps; `on_stored` is called with the target's `stored`, or an error."""
        ...

    def drop(self, topic: str) -> None:
        """Forget the sessions of a topic, and its unsent requests: they get no outcome."""
        ...


class ExchangeLink(Protocol):
    """The connection to another cluster for the replication of subscriptions. Its method does not wait."""

    def exchange(self, request: Exchange, address: Address | None, on_exchanged: OnExchanged) -> None:
        """Send a request to a server; None: to the owner of the topic. `on_exchanged` gets the answer, or an error."""
        ...


class TargetLink:
    """A `Target` and an `ExchangeLink` over TCP. Any thread may use it.

    The topics share the bytes in flight in equal parts, see `FairWindow`; requests of one topic leave in their order.

    Args:
        client: client of the target's servers; the link closes it.
        window_bytes: most bytes in flight.
    """

    def __init__(self, client: Client, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._client, self._pool = client, client.pool
        self._events = EventQueue()
        self._window: FairWindow[str, _Send] = FairWindow(window_bytes)
        self._opened: dict[Address, dict[str, dict[Origin, OnLost]]] = {}  # sessions by server and topic

    @property
    def inflight_bytes(self) -> int:
        """Bytes that were sent and have no outcome yet."""
        return self._window.inflight_bytes

    def open(self, opening: Opening, on_opened: OnOpened, on_lost: OnLost) -> None:
        """Open a session at the owner of the topic; see `Target`.

        Args:
            opening: the session.
            on_opened: called with the session, or an error.
            on_lost: called with an error when the connection of the session is lost.
        """
        handle = self._pool.next_handle()
        topic, origin, session, partitions, settings = opening
        request = OpenOrigin(handle, session, True, partitions, origin.cluster, topic, origin.token, settings)

        def on_outcome(address: Address, outcome: Outcome) -> None:
            try:
                if isinstance(outcome, ReplogError):
                    raise outcome
                opened: OriginOpened = decode_reply(OriginOpened, outcome)
                settings = _settings(opened.config)
            except ReplogError as error:
                on_opened(error)
                return
            last = LastEntry(opened.first, opened.end, opened.value_crc, opened.publish_time_us)
            state = OriginState(opened.stored, last if last.first >= 0 else None)
            self._events.post(lambda: self._note(address, opening, on_lost))
            on_opened(TargetSession(topic, address, handle, opened.cluster, state, settings))

        self._pool.ask(topic, request, on_outcome)

    def _note(self, address: Address, opening: Opening, on_lost: OnLost) -> None:
        topics = self._opened.get(address)
        if topics is None:
            topics = self._opened[address] = {}
            self._pool.watch(address, partial(self._lost, address), publishes=True)
        topics.setdefault(opening.topic, {})[opening.origin] = on_lost

    def _lost(self, address: Address, error: ReplogError) -> None:
        def lost() -> None:
            for sessions in self._opened.pop(address, {}).values():
                for on_lost in sessions.values():
                    on_lost(error)

        self._events.post(lost)

    def replicate(
        self,
        session: TargetSession,
        entries: Sequence[OriginEntry],
        gaps: Sequence[Gap],
        size: int,
        on_stored: OnStored,
    ) -> None:
        """Send entries and gaps, in turn with other topics; see `Target`.

        Args:
            session: the session.
            entries: the entries.
            gaps: gaps behind them.
            size: bytes of the entries.
            on_stored: called with the target's `stored`, or an error.
        """
        request: Replicate | ReplicateTo = Replicate(session.handle, gaps, entries)
        lists = [entry.replicate_to for entry in entries]
        if any(lists):
            request = ReplicateTo(session.handle, gaps, lists, entries)
        send = _Send(session.address, request, size, on_stored)

        def put() -> None:
            self._window.put(session.topic, size, send)
            self._send_next()

        self._events.post(put)

    def _send_next(self) -> None:
        for send in self._window.take():
            self._pool.send(send.address, send.request, partial(self._settled, send))

    def _settled(self, send: _Send, _: Address, outcome: Outcome) -> None:
        def release() -> None:
            self._window.release(send.size)
            self._send_next()

        stored: int | ReplogError
        try:
            if isinstance(outcome, ReplogError):
                raise outcome
            replicated: Replicated = decode_reply(Replicated, outcome)
            stored = replicated.stored
        except ReplogError as error:
            stored = error
        self._events.post(release)
        send.on_stored(stored)

    def drop(self, topic: str) -> None:
        """Forget the sessions of a topic, and its unsent requests; see `Target`.

        Args:
            topic: name of the topic.
        """

        def drop() -> None:
            self._window.drop(topic)
            for topics in self._opened.values():
                topics.pop(topic, None)

        self._events.post(drop)

    def exchange(self, request: Exchange, address: Address | None, on_exchanged: OnExchanged) -> None:
        """Send a request about replicated subscriptions; see `ExchangeLink`.

        Args:
            request: the request.
            address: the server; None: the owner of the topic.
            on_exchanged: called with the server that answered, and the answer or an error.
        """

        def on_outcome(server: Address, outcome: Outcome) -> None:
            try:
                if isinstance(outcome, ReplogError):
                    raise outcome
                answer: Exchanged = decode_reply(Exchanged, outcome)
            except ReplogError as error:
                on_exchanged(server, error)
                return
            on_exchanged(server, answer)

        if address is None:
            self._pool.ask(request.topic, request, on_outcome)
        else:
            self._pool.send(address, request, on_outcome)

    def close(self) -> None:
        """Close the connections. All requests fail."""
        self._client.close()


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"settings of the topic: expected JSON, found {text[:80]!r}") from error
    if not isinstance(settings, dict):
        raise InvalidMessageError(f"settings of the topic: expected an object, found {text[:80]!r}")
    return settings


class _Send(NamedTuple):
    """A request that waits for its share of the bytes in flight."""

    address: Address
    request: Replicate | ReplicateTo
    size: int
    on_stored: OnStored
