"""Serves a bookie over TCP: the requests of one turn of the reactor are handled, committed together, and answered."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pyreplog._native.bookie.bookie_service_base import BookieServiceBase
from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch, encode_header
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.key_verifier import KeyRegistry, KeyVerdict, KeyVerifier
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import (
    ADD,
    READ,
    REPLY_BYTES,
    WAIT_LAC,
    Reply,
    ReplyStatus,
    Request,
    decode_request,
    encode_reply,
)
from pyreplog.errors import InvalidMessageError, ReplogError, UnsupportedRequestError
from pyreplog.net.connection import Connection
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import ServerConnection
from pyreplog.net.sockets import weak_callback
from pyreplog.net.timers import Timer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

SERVICE = "bookie"
"""The name of the service in the hello."""

_POLL_S = 1.0


class BookieService(BookieServiceBase):
    """The handler of a net.Server (`connection.Handler`). The reactor's driver makes all calls.

    Args:
        reactor: drives the server.
        bookie: an open bookie, whose `request` is not used: the reactor's driver commits for all connections.
        ledgers: verifies keys of ledgers by their metadata.
    """

    _reactor: Reactor
    _bookie: LocalBookie

    def __init__(self, reactor: Reactor, bookie: LocalBookie, ledgers: KeyRegistry) -> None:
        super().__init__(reactor, bookie)
        self._keys = KeyVerifier(reactor, ledgers, weak_callback(self._checked))
        self._reads: dict[ServerConnection, deque[tuple[int, Request]]] = {}  # READs that wait for earlier replies
        self._timer: Timer = reactor.call_later(_POLL_S, self._on_timer)

    @property
    def waiting_readers(self) -> int:
        """Number of connections with READs that wait until earlier replies have been sent."""
        return len(self._reads)

    @property
    def waiting_claims(self) -> int:
        """Number of keys that wait for an answer of the metadata store."""
        return self._keys.waiting

    @property
    def is_store_away(self) -> bool:
        """Whether no keys are verified for a while, because the metadata store did not answer."""
        return self._keys.is_store_away

    # ---- requests -------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        logger.debug("%s connected", connection.peer.identity.node or "a client")

    def frames(self, connection: Connection, batch: FrameBatch) -> None:
        """Handle requests. An InvalidMessageError closes the connection after the requests before it were handled."""
        assert isinstance(connection, ServerConnection)
        self._bookie.with_bookie(self._handle, connection, batch)

    def _handle_other(self, bookie: Bookie, connection: ServerConnection, number: int, body: memoryview, /) -> None:
        if not body:
            return
        try:
            request = _decode(number, body, connection.peer.max_body_bytes)
        except UnsupportedRequestError as error:
            self._answer(connection, number, Reply(ReplyStatus.UNSUPPORTED, body=str(error).encode()))
            return
        if request.kind == READ and self._is_backlogged(connection):
            self._reads.setdefault(connection, deque()).append((number, request))
            return
        if bookie.claims(request):
            self._keys.ask(connection, number, request)
            return
        if request.kind == WAIT_LAC:
            bookie.expire(self._reactor.clock.monotonic_us())
        bookie.handle(request, partial(self._answer, connection, number), connection)
        if request.kind == WAIT_LAC:
            self._set_timer(bookie)

    def _checked(self, connection: ServerConnection, waiting: list[tuple[int, Request]], verdict: KeyVerdict) -> None:
        """Handle requests that waited for a verdict on their key."""

        def go_on(bookie: Bookie) -> None:
            for number, request in waiting:
                bookie.handle(request, partial(self._answer, connection, number), connection, verdict)
            if bookie.waits:
                self._commit_soon()

        self._bookie.with_bookie(go_on)

    def _is_backlogged(self, connection: ServerConnection) -> bool:
        """Return whether replies that a client has not received hold so many entries that more would fill memory, or
        pin segments."""
        return connection in self._reads or connection.queued_bytes > connection.limits.queued_bytes

    def drained(self, connection: Connection) -> None:
        """Handle READs that waited until earlier replies were sent."""
        assert isinstance(connection, ServerConnection)
        waiting = self._reads.pop(connection, None)
        if waiting is not None:
            self._bookie.with_bookie(lambda bookie: self._read_on(bookie, connection, waiting))

    def _read_on(self, bookie: Bookie, connection: ServerConnection, waiting: deque[tuple[int, Request]]) -> None:
        while waiting and not self._is_backlogged(connection):
            number, request = waiting.popleft()
            if bookie.claims(request):
                self._keys.ask(connection, number, request)
            else:
                bookie.handle(request, partial(self._answer, connection, number), connection)
        if waiting:
            self._reads[connection] = waiting
        if bookie.waits:
            self._commit_soon()

    def closed(self, connection: Connection, error: ReplogError) -> None:
        """Drop READs and long polls of a closed connection. Its other requests are completed without replies."""
        assert isinstance(connection, ServerConnection)
        self._reads.pop(connection, None)
        self._keys.leave(connection)
        self._bookie.with_bookie(lambda bookie: bookie.leave(connection))
        logger.debug("%s: %s", connection.peer.identity.node or "a client", error)

    def _frame(self, connection: ServerConnection, number: int, reply: Reply, /) -> tuple[ReadableBuffer, ...]:
        """Return the parts of a reply's frame."""
        size = memoryview(reply.body).nbytes if reply.body else 0
        limit = connection.peer.max_body_bytes
        if size > limit - REPLY_BYTES:
            reason = f"entry {reply.first} has {size} bytes encoded, and the client takes frames of {limit} bytes"
            reply = reply._replace(status=ReplyStatus.UNKNOWN, body=reason.encode())
            size = len(reply.body)
        head = encode_header(number, REPLY_BYTES + size) + encode_reply(reply)
        return (head, reply.body) if size else (head,)

    # ---- time -----------------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        """End long polls, and check the free space."""
        self._bookie.with_bookie(self._expire)

    def _expire(self, bookie: Bookie) -> None:
        bookie.expire(self._reactor.clock.monotonic_us())
        self._set_timer(bookie)

    def _set_timer(self, bookie: Bookie) -> None:
        deadline_us = bookie.next_deadline_us()
        left_s = _POLL_S
        if deadline_us is not None:
            left_s = min(max(deadline_us - self._reactor.clock.monotonic_us(), 0) / 1e6, _POLL_S)
        self._timer.cancel()
        self._timer = self._reactor.call_later(left_s, self._on_timer)

    def close(self) -> None:
        """Stop the timer and the key verifier. Call it after the server was closed, on any thread."""
        self._timer.cancel()
        self._keys.close()


def _decode(number: int, body: memoryview, max_body: int) -> Request:
    """Decode a request; only the records of an ADD refer to the receive buffer. Limit the reply to one frame."""
    if number == CONTROL_OFFSET:
        raise InvalidMessageError("expected requests, found a control body")
    request = decode_request(body)
    if request.kind == ADD:
        return request
    if request.records:
        raise InvalidMessageError(f"request of kind {request.kind}: expected no records, found {len(body)} bytes")
    limit = request.limit
    if request.kind == READ:
        limit = min(limit or max_body, max(max_body - REPLY_BYTES, 1))
    return request._replace(records=b"", limit=limit)
