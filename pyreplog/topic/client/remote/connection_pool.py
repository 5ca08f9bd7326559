"""The connections of a client to topic servers, and the owners of topics."""

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
from pyreplog._native.topic.wire_fields import WireReader
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
    UnsupportedRequestError,
)
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.net.backoff import BACKOFF_FIRST_S, BACKOFF_MOST_S, Backoff
from pyreplog.net.channel import Channel, OnLost
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.pending_requests import OnReply
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import Address
from pyreplog.net.timers import Timer
from pyreplog.topic.model.wire.protocol import (
    ERROR,
    EXTENDED_FROM,
    FEATURES,
    OK,
    ORIGINS,
    REPLICATE_TO,
    STALE,
    SUBSCRIPTIONS,
    VERSION,
    Call,
    CloseProducer,
    Exchange,
    Open,
    OpenOrigin,
    Publish,
    PublishTo,
    ReadRequest,
    Replicate,
    ReplicateTo,
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
"""Limits with which a batch that is published, and the result of a read, fit into a frame."""
_SHORTEST_HELLO_MS = 1
FOREVER_S = 86_400.0
"""Timeout of requests that wait without limit, until the connection is lost."""


READ_ONLY_CALLS = frozenset(
    {"topics", "partitioned_topics", "partitions", "where", "position", "config", "stats", "internal_stats",
     "last_sequence", "subscriptions", "cluster", "geo_status",
     "geo_readiness", "geo_where", "geo_handover", "geo_take_over"}
)  # fmt: skip
"""Names of calls that change nothing, or that change nothing more when they are repeated."""

_FEATURE_OF: dict[type[Any], str] = {
    OpenOrigin: ORIGINS, Exchange: SUBSCRIPTIONS, PublishTo: REPLICATE_TO, ReplicateTo: REPLICATE_TO,
}  # fmt: skip
"""The feature that a server needs for a request; for those of a session, for the first one."""
_PURPOSES = {REPLICATE_TO: "so that messages can name the clusters to which they are replicated; they were not sent"}
"""Why a server is to know a feature, other than for replication to it."""

_open: set[ConnectionPool] = set()
"""Pools that are not closed: a client that is forgotten still publishes its submitted messages."""


class StaleError(ClosedError):
    """The server does not know the producer session or consumer (any longer); nothing was done."""


def is_transient(error: BaseException) -> bool:
    """Return whether to try again, perhaps with another server: this one is gone, or does not own the topic any more.

    It includes more errors than `retriable`: the callers number what they send, or ask only questions, so an unknown
    outcome does no harm. A handshake that fails for another reason than load would fail again.
    """
    if isinstance(error, HandshakeError):
        return error.retriable
    if isinstance(error, PeerError):
        return True
    return isinstance(error, ClosedError | TopicFencedError | TopicOwnedError | OutcomeUnknownError)


def outcome_of(body: memoryview | ReplogError, *, is_checked: bool = False) -> tuple[Outcome, str]:
    """Return the outcome of a request, and the address of the server to be asked instead.

    is_checked: it had a checksum.
    """
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
        return StaleError("the server does not know the producer session or consumer"), ""
    return (reader if status == OK else reader.refusal("a known status", str(status))), ""


_PUBLISHING = frozenset((Publish, PublishTo, CloseProducer, OpenOrigin, Replicate, ReplicateTo))


def publishes(request: Request) -> bool:
    """Return whether a request uses the connection for publishing."""
    return type(request) in _PUBLISHING or (isinstance(request, Open) and request.session > 0)


class ConnectionPool:
    """The connections of a client. Any thread; callbacks are called by the thread that drives the reactor.

    entries: servers that are asked in turn for topics whose owner is not known. timeout: seconds that a request may
    take, and for which lost requests are repeated.
    """

    def __init__(
        self,
        entries: Sequence[Address],
        *,
        secret: bytes | Secret | None,
        tls: ssl.SSLContext | None,
        limits: Limits | None,
        timeout: float,
        cluster: bytes | None = None,
    ) -> None:
        self.timeout = timeout
        self._expected = NodeIdentity(service=SERVICE, cluster="" if cluster is None else cluster.hex())
        self.client = secrets.token_hex(8)
        self._entries, self._tls, self._limits = list(entries), tls, _in_time(limits or LIMITS, timeout / len(entries))
        self._secret = Secret.of(secret)
        self._lock = threading.Lock()  # guards the tables
        self._channels: dict[tuple[Address, bool], Channel] = {}
        self._owners: dict[str, Address] = {}
        self._handles = itertools.count(1)
        self._closed = False
        self._close_by: float | None = None
        self.was_reached = False  # whether any server was reached
        self._delayed: set[_RoutedRequest] = set()  # requests that are repeated later
        self.reactor = Reactor()
        self.reactor.start()
        _open.add(self)

    def next_handle(self) -> int:
        """Return a handle for a producer session or a consumer that was never used before."""
        return next(self._handles)

    def send(self, address: Address, request: Request, on_outcome: OnOutcome, timeout: float = FOREVER_S) -> None:
        """Send a request to a server; `on_outcome` is called once, perhaps before this returns."""
        for_publishing = publishes(request)
        channel = self._channels.get((address, for_publishing))
        peer = None if channel is None else channel.peer
        is_checked = peer is not None and peer.version >= 2
        self._send(
            address,
            request,
            lambda reply: on_outcome(address, outcome_of(reply, is_checked=is_checked)[0]),
            timeout,
            for_publishing=for_publishing,
            is_checked=is_checked,
        )

    def ask(self, topic: str, request: Request, on_outcome: OnOutcome) -> None:
        """Send a request to the owner of a topic, or to any server if it is "".

        `on_outcome` is called with the address of the server that answered.
        """
        _RoutedRequest(self, topic, request, on_outcome).go_on(NotConnectedError("no server is known"))

    def ask_for(self, topic: str, request: Request, read: Callable[[WireReader], T]) -> AppendFuture[T]:
        """Send a request like `ask`; the future gives what `read` reads from the reply."""
        done: AppendFuture[T] = AppendFuture()

        def on_outcome(_: Address, outcome: Outcome) -> None:
            settle(done, outcome, read)

        self.ask(topic, request, on_outcome)
        return done

    def watch(self, address: Address, on_lost: OnLost, *, publishes: bool) -> None:
        """Tell when the present connection to a server is lost, see `Channel.watch`. publishes: see `_channel`."""
        try:
            self._channel(address, publishes).watch(on_lost)
        except ReplogError as error:
            on_lost(error)

    def _send(
        self,
        address: Address,
        request: Request,
        on_reply: OnReply,
        timeout: float,
        *,
        for_publishing: bool,
        is_checked: bool,
    ) -> None:
        try:
            channel = self._channels.get((address, for_publishing))
            if channel is None:
                channel = self._channel(address, for_publishing)
            feature = _FEATURE_OF.get(type(request))
            if feature is not None and (peer := channel.peer) is None:  # wait for the hello

                def met(reply: memoryview | ReplogError) -> None:
                    if isinstance(reply, ReplogError):
                        on_reply(reply)
                    else:
                        self._send(
                            address, request, on_reply, timeout, for_publishing=for_publishing, is_checked=is_checked
                        )

                channel.request(*encode_request(CloseProducer(0)), on_reply=met, timeout=timeout)
                return
            if feature is not None and peer is not None and feature not in peer.features:
                purpose = _PURPOSES.get(feature, "so that other clusters can replicate to it")
                raise UnsupportedRequestError(
                    f"the server at {address[0]}:{address[1]} does not know {feature!r}: upgrade it, {purpose}"
                )
            channel.request(*encode_request(request, is_checked=is_checked), on_reply=on_reply, timeout=timeout)
        except ReplogError as error:
            on_reply(error)

    def version(self, address: Address, publishes: bool = False) -> int:
        """Return the protocol version of the connection to a server; 0: there is none. publishes: see `_channel`."""
        channel = self._channels.get((address, publishes))
        peer = None if channel is None else channel.peer
        return 0 if peer is None else peer.version

    def _channel(self, address: Address, publishes: bool) -> Channel:
        """Return the channel to a server.

        Publishing has its own channel: while a topic accepts no messages, acknowledgements may still make room.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the client was closed")
            channel = self._channels.get((address, publishes))
            if channel is None:
                channel = self._channels[address, publishes] = Channel(
                    self.reactor, address,
                    identity=NodeIdentity(version=VERSION, extended_from=EXTENDED_FROM, features=FEATURES),
                    expected=self._expected,
                    secret=self._secret, tls=self._tls,
                    limits=self._limits,
                )  # fmt: skip
            return channel

    # ---- owners ---------------------------------------------------------------------------------------

    def candidates(self, topic: str) -> deque[Address]:
        """Return the servers to ask, in this order."""
        with self._lock:
            owner = self._owners.get(topic)
        return deque(self._entries if owner is None else [owner, *(entry for entry in self._entries if entry != owner)])

    def note_owner(self, topic: str, address: Address) -> None:
        """Remember the server that answered for a topic."""
        with self._lock:
            self._owners[topic] = address

    # ---- waiting --------------------------------------------------------------------------------------------

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Wait for a future, as `ledger.driver.Runtime.wait` does; the waiting thread drives the reactor."""
        if not future.done():
            check_may_wait()
        return self.reactor.wait(future, timeout)

    def begin_to_close(self) -> None:
        """Begin to close: all handles that are closed from now on have `timeout` together."""
        self._close_by = time.monotonic() + self.timeout

    @property
    def close_timeout(self) -> float:
        """Seconds for closing a handle."""
        return self.timeout if self._close_by is None else max(self._close_by - time.monotonic(), 0.0)

    def retry_later(self, request: _RoutedRequest, seconds: float) -> bool:
        """Repeat a request after some seconds; return False if the pool is closed."""
        with self._lock:
            if self._closed:  # `close` would not find the request
                return False
            self._delayed.add(request)
        return self.wake_after(seconds, lambda: self._wake(request)) is not None

    def _wake(self, request: _RoutedRequest) -> None:
        with self._lock:
            if request not in self._delayed:
                return
            self._delayed.remove(request)
        request.go_on(NotConnectedError("no server is known"))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        try:
            return self.reactor.call_later(seconds, call)
        except ReplogError:
            return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = list(self._channels.values()), {}
            resting = list(self._delayed)
        with ExitStack() as stack:
            stack.callback(_open.discard, self)
            stack.callback(self.reactor.close)
            for request in resting:
                stack.callback(self._wake, request)  # which finds the pool closed
            for channel in channels:
                stack.callback(channel.close)


class _RoutedRequest:
    """A request that is routed to the owner of a topic.

    If no server can be reached, or the connection is lost before a read-only request is answered, all servers are asked
    again, up to the timeout of the pool; but not if no server was ever reached, because the addresses may be wrong.
    """

    def __init__(self, pool: ConnectionPool, topic: str, request: Request, on_outcome: OnOutcome) -> None:
        self._pool, self._topic, self._request, self._on_outcome = pool, topic, request, on_outcome
        self._left = pool.candidates(topic)
        self._has_followed = self._is_checked = False
        self._address = self._left[0]
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MOST_S, random.random)
        self._may_repeat = isinstance(request, Open | ReadRequest) or (
            isinstance(request, Call) and request.name in READ_ONLY_CALLS
        )
        """A repetition is harmless. Other requests are repeated only if they were never sent."""
        self._until_us = pool.reactor.clock.monotonic_us() + int(pool.timeout * 1e6)

    def go_on(self, error: ReplogError) -> None:
        """Ask the next server. error: the outcome if there is none, or no time is left."""
        remaining_us = self._until_us - self._pool.reactor.clock.monotonic_us()
        if not self._left or remaining_us <= 0:
            self._on_outcome(self._address, error)
            return
        self._address = self._left.popleft()
        for_publishing = publishes(self._request)
        self._is_checked = self._pool.version(self._address, for_publishing) >= 2
        self._pool._send(
            self._address,
            self._request,
            self._on_reply,
            remaining_us / 1e6,
            for_publishing=for_publishing,
            is_checked=self._is_checked,
        )

    def _start_over(self) -> bool:
        """Ask all servers again after a while; return False if no time is left."""
        left_s = (self._until_us - self._pool.reactor.clock.monotonic_us()) / 1e6
        if not self._pool.was_reached or left_s < BACKOFF_FIRST_S:
            return False
        delay_s = min(self._backoff.next_s(), left_s / 2)
        self._left = self._pool.candidates(self._topic)
        return self._pool.retry_later(self, delay_s)

    def _on_reply(self, reply: memoryview | ReplogError) -> None:
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
            self._pool.note_owner(self._topic, self._address)
        self._on_outcome(self._address, outcome)


def _in_time(limits: Limits, share_s: float) -> Limits:
    """Return limits with which a server that never says hello leaves time for those that are asked next."""
    share_ms = max(round(min(share_s * 1000, limits.handshake_ms)), _SHORTEST_HELLO_MS)
    return replace(limits, handshake_ms=share_ms)


def settle(done: AppendFuture[T], outcome: Outcome, read: Callable[[WireReader], T]) -> None:
    """Settle a future with what is read from a reply, or with its error."""
    if isinstance(outcome, ReplogError):
        set_exception(done, outcome)
        return
    try:
        result = read(outcome)
    except ReplogError as error:
        set_exception(done, error)
    else:
        set_result(done, result)


def reads(kind: type[Reply]) -> Callable[[WireReader], Any]:
    """Return a function that reads a reply of a kind."""
    return lambda reader: decode_reply(kind, reader)


def parse_address(text: str) -> Address:
    """Return (host, port). Raises InvalidMessageError if the text is no address."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise InvalidMessageError(f"address: expected HOST:PORT, found {text[:300]!r}")
    return host.strip("[]"), int(port)
