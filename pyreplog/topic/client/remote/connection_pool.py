"""The way from a client to topic servers: connections, and which server has which topic."""

from __future__ import annotations

import itertools
import logging
import random
import secrets
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    HandshakeError,
    InvalidMessageError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerError,
    ReplogError,
    TopicFencedError,
    TopicOwnedError,
)
from pyreplog.future import AppendFuture
from pyreplog.net.backoff import BACKOFF_FIRST_S, BACKOFF_MOST_S, Backoff
from pyreplog.net.client import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.pending_requests import OnReply
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address
from pyreplog.net.timers import Timer
from pyreplog.topic.model.wire.fields import WireReader
from pyreplog.topic.model.wire.protocol import (
    ERROR,
    EXTENDED_FROM,
    OK,
    STALE,
    VERSION,
    Call,
    CloseProducer,
    Open,
    Publish,
    ReadRequest,
    Reply,
    Request,
    decode_fault,
    decode_reply,
    encode_request,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Outcome = WireReader | ReplogError
OnOutcome = Callable[[Address, Outcome], object]

SERVICE = "topics"
LIMITS = Limits(max_body_bytes=32 << 20, queued_bytes=64 << 20, connection_inflight_bytes=64 << 20)
"""A batch that is published at once, and what is read at once, fit into a frame."""
_SHORTEST_HELLO_S = 0.001
FOREVER_S = 86_400.0
"""For what waits as long as it takes: a connection that is lost ends it."""


READING = frozenset(
    {"topics", "partitioned_topics", "partitions", "where", "position", "config", "stats", "internal_stats",
     "last_sequence", "subscriptions"}
)  # fmt: skip
"""Calls that change nothing."""

_open: set[ConnectionPool] = set()
"""Until they are closed: a client that is forgotten publishes what was submitted, which takes its connections."""


class StaleError(ClosedError):
    """The server knows no such lane or consumer (any more): nothing was done."""


def is_passing(error: BaseException) -> bool:
    """Whether to try again, maybe with another server: this one has gone, or has not got the topic any more.

    It is wider than `retriable`: who tries again numbers what it sends, or asks for what changes nothing, so an unknown
    outcome does no harm. A handshake that fails for other reasons than load will fail again.
    """
    if isinstance(error, HandshakeError):
        return error.retriable
    if isinstance(error, PeerError):
        return True
    return isinstance(error, ClosedError | TopicFencedError | TopicOwnedError | OutcomeUnknownError)


def outcome_of(body: memoryview | ReplogError, *, is_checked: bool = False) -> tuple[Outcome, str]:
    """Of a request, that was checked or not; and the address of who is to be asked instead."""
    if isinstance(body, ReplogError):
        return body, ""
    reader = WireReader("reply", body, 1, is_checked=is_checked)
    status = body[0] if len(body) else -1
    try:
        if status == ERROR:
            return decode_fault(reader)
        if status == STALE:
            reader.end()
    except InvalidMessageError as error:
        return error, ""
    if status == STALE:
        return StaleError("the server knows no such lane or consumer"), ""
    return (reader if status == OK else reader.refusal("a known status", str(status))), ""


def publishes(request: Request) -> bool:
    """Whether it goes over the connection for what is published."""
    return isinstance(request, Publish | CloseProducer) or (isinstance(request, Open) and request.lane > 0)


class ConnectionPool:
    """Any thread; callbacks are called by whoever drives the reactor.

    entries: servers that are asked for topics whose owner is not known, in turn. timeout: seconds that a request may
    take, and for which what was lost is tried again.
    """

    def __init__(
        self,
        entries: Sequence[Address],
        *,
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
        limits: Limits | None,
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self.client = secrets.token_hex(8)
        self._entries, self._tls, self._limits = list(entries), tls, _in_time(limits or LIMITS, timeout / len(entries))
        self._secret = Secret.of(secret)
        self._lock = threading.Lock()  # of the tables
        self._channels: dict[tuple[Address, bool], Channel] = {}
        self._owners: dict[str, Address] = {}
        self._handles = itertools.count(1)
        self._closed = False
        self._close_by: float | None = None
        self.was_reached = False  # any server
        self._resting: set[_Inquiry] = set()  # until they ask again
        self.reactor = Reactor()
        self.reactor.start()
        _open.add(self)

    def next_handle(self) -> int:
        """For a lane or a consumer: one that was never used."""
        return next(self._handles)

    def send(self, address: Address, request: Request, on_outcome: OnOutcome, timeout: float = FOREVER_S) -> None:
        """Ask a server; called back once, maybe before this returns."""
        is_checked = self.version(address, publishes(request)) >= 2
        self._send(
            address,
            request,
            lambda reply: on_outcome(address, outcome_of(reply, is_checked=is_checked)[0]),
            timeout,
            is_checked=is_checked,
        )

    def ask(self, topic: str, request: Request, on_outcome: OnOutcome) -> None:
        """Ask whoever owns a topic, or any server if it is ""; called back with the one that answered."""
        _Inquiry(self, topic, request, on_outcome).go_on(NotConnectedError("no server is known"))

    def ask_for(self, topic: str, request: Request, read: Callable[[WireReader], T]) -> AppendFuture[T]:
        """`ask`; the AppendFuture gives what is read off the reply."""
        done: AppendFuture[T] = AppendFuture()

        def came(_: Address, outcome: Outcome) -> None:
            settle(done, outcome, read)

        self.ask(topic, request, came)
        return done

    def _send(
        self, address: Address, request: Request, on_reply: OnReply, timeout: float, *, is_checked: bool = False
    ) -> None:
        which = publishes(request)
        try:
            channel = self._channels.get((address, which)) or self._channel(address, which)
            channel.request(*encode_request(request, is_checked=is_checked), on_reply=on_reply, timeout=timeout)
        except ReplogError as error:
            on_reply(error)

    def version(self, address: Address, publishes: bool = False) -> int:
        """Of the protocol, as spoken with a server now; 0: there is no connection. publishes: see `_channel`."""
        channel = self._channels.get((address, publishes))
        peer = None if channel is None else channel.peer
        return 0 if peer is None else peer.version

    def _channel(self, address: Address, publishes: bool) -> Channel:
        """One for what is published: while a topic takes no more, acknowledgements may still make room."""
        with self._lock:
            if self._closed:
                raise ClosedError("the client was closed")
            channel = self._channels.get((address, publishes))
            if channel is None:
                channel = self._channels[address, publishes] = Channel(
                    self.reactor, address, identity=NodeIdentity(version=VERSION, extended_from=EXTENDED_FROM),
                    expected=NodeIdentity(service=SERVICE),
                    secret=self._secret, tls=self._tls,
                    limits=self._limits,
                )  # fmt: skip
            return channel

    # ---- who has what ---------------------------------------------------------------------------------------

    def candidates(self, topic: str) -> deque[Address]:
        """Whom to ask, in this order."""
        with self._lock:
            owner = self._owners.get(topic)
        return deque(self._entries if owner is None else [owner, *(one for one in self._entries if one != owner)])

    def found(self, topic: str, address: Address) -> None:
        with self._lock:
            self._owners[topic] = address

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """As `ledger.driver.Runtime.wait`: the thread that waits drives the reactor."""
        if not future.done():
            check_may_wait()
        return self.reactor.wait(future, timeout)

    def begin_to_close(self) -> None:
        """All that is let go from now on has `timeout` together."""
        self._close_by = time.monotonic() + self.timeout

    @property
    def patience(self) -> float:
        """Seconds for what is let go."""
        return self.timeout if self._close_by is None else max(self._close_by - time.monotonic(), 0.0)

    def rest(self, inquiry: _Inquiry, seconds: float) -> bool:
        """Have it go on after a while; False: not any more."""
        with self._lock:
            if self._closed:  # `close` would not find it
                return False
            self._resting.add(inquiry)
        return self.wake_after(seconds, lambda: self._wake(inquiry)) is not None

    def _wake(self, inquiry: _Inquiry) -> None:
        with self._lock:
            if inquiry not in self._resting:
                return
            self._resting.remove(inquiry)
        inquiry.go_on(NotConnectedError("no server is known"))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        try:
            return self.reactor.call_later(seconds, call)
        except ReplogError:
            return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = list(self._channels.values()), {}
            resting = list(self._resting)
        with ExitStack() as rest:
            rest.callback(_open.discard, self)
            rest.callback(self.reactor.close)
            for inquiry in resting:
                rest.callback(self._wake, inquiry)  # which finds the link closed
            for channel in channels:
                rest.callback(channel.close)


class _Inquiry:
    """One request on its way to whoever owns a topic.

    When no server can be reached, or the connection is lost before a mere question has an answer, all are asked again,
    up to the link's timeout; unless none ever was: the addresses may be wrong.
    """

    def __init__(self, pool: ConnectionPool, topic: str, request: Request, on_outcome: OnOutcome) -> None:
        self._pool, self._topic, self._request, self._on_outcome = pool, topic, request, on_outcome
        self._left = pool.candidates(topic)
        self._has_followed = self._is_checked = False
        self._address = self._left[0]
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, random.random)
        self._may_repeat = isinstance(request, Open | ReadRequest) or (
            isinstance(request, Call) and request.name in READING
        )
        """Once more is as once. Of others nothing was asked if there is no connection."""
        self._until_us = pool.reactor.clock.monotonic_us() + int(pool.timeout * 1e6)

    def go_on(self, error: ReplogError) -> None:
        """Ask the next server; error: if there is none, or no time is left."""
        left_us = self._until_us - self._pool.reactor.clock.monotonic_us()
        if not self._left or left_us <= 0:
            self._on_outcome(self._address, error)
            return
        self._address = self._left.popleft()
        self._is_checked = self._pool.version(self._address, publishes(self._request)) >= 2
        self._pool._send(self._address, self._request, self._came, left_us / 1e6, is_checked=self._is_checked)

    def _start_over(self) -> bool:
        """After a while; False: no time is left for that."""
        left_s = (self._until_us - self._pool.reactor.clock.monotonic_us()) / 1e6
        if not self._pool.was_reached or left_s < BACKOFF_FIRST_S:
            return False
        delay_s = min(self._backoff.next_s(), left_s / 2)
        self._left = self._pool.candidates(self._topic)
        return self._pool.rest(self, delay_s)

    def _came(self, reply: memoryview | ReplogError) -> None:
        outcome, owner = outcome_of(reply, is_checked=self._is_checked)
        if isinstance(outcome, NotConnectedError) or (isinstance(outcome, DisconnectedError) and self._may_repeat):
            if self._left or not self._start_over():
                self.go_on(outcome)
            return
        self._pool.was_reached = True
        if isinstance(outcome, TopicOwnedError) and owner and not self._has_followed:
            self._has_followed = True
            self._left = deque((parse_address(owner),))
            self.go_on(outcome)
            return
        if self._topic and not isinstance(outcome, TopicOwnedError | PeerError):
            self._pool.found(self._topic, self._address)
        self._on_outcome(self._address, outcome)


def _in_time(limits: Limits, share_s: float) -> Limits:
    """A server that takes a connection and never says hello does not use up the time of those that are asked next."""
    return replace(limits, handshake_s=max(min(limits.handshake_s, share_s), _SHORTEST_HELLO_S))


def settle(done: AppendFuture[T], outcome: Outcome, read: Callable[[WireReader], T]) -> None:
    """With what is read off a reply, or its error."""
    if isinstance(outcome, ReplogError):
        done.fail(outcome)
        return
    try:
        result = read(outcome)
    except ReplogError as error:
        done.fail(error)
    else:
        done.complete(result)


def reads(kind: type[Reply]) -> Callable[[WireReader], Any]:
    """Of a reply of that kind."""
    return lambda reader: decode_reply(kind, reader)


def parse_address(text: str) -> Address:
    """InvalidMessageError: it is none."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise InvalidMessageError(f"address: expected HOST:PORT, found {text[:300]!r}")
    return host.strip("[]"), int(port)
