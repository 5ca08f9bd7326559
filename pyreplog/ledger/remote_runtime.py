"""The runtime of a cluster whose bookies run in other processes: found in the metadata, reached over TCP."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from functools import partial

from pyreplog._native.ledger.remote_runtime_base import RemoteRuntimeBase
from pyreplog._native.net.add_replies import AddGroup
from pyreplog.bookie.protocol import (
    ADD,
    COPY,
    FEATURES,
    HOLDINGS,
    Reply,
    ReplyStatus,
    Request,
    RequestKind,
    decode_reply,
    encode_request,
)
from pyreplog.bookie.registration import Availability
from pyreplog.bookie.service import SERVICE
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMessageError,
    InvalidMetadataError,
    NotConnectedError,
    ReplogError,
)
from pyreplog.ledger.protocol.add_merger import UNANSWERED_MAX, AddMerger
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX
from pyreplog.ledger.registrations import Registrations
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.status import BookieStatus
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor

_ADDS_MAX = 4096
"""With more mergers, one for each pair of bookie and ledger, those without a request are dropped."""

QUEUED_BYTES = 64 << 20
"""Bytes that may wait for a bookie that is slow, or has not sent its hello: four windows of ledgers. With fewer than
two windows, one ledger would fill the queue before `request_timeout_ms` is over, and the bookie would count as
failed."""

REQUEST_TIMEOUT_MAX_MS = 86_400_000

ENTRY_MARGIN_BYTES = 4096
"""More bytes than a frame holds beside a record."""


class RemoteRuntime(RemoteRuntimeBase, RuntimeBase):
    """Connects to each bookie when it is first needed, with one channel.

    request_timeout_ms: milliseconds without an answer after which a bookie counts as failed.
    """

    _ready: dict[str, Channel]
    _adds: dict[tuple[str, int], AddMerger]
    reactor: Reactor

    def __init__(
        self,
        metadata: MetadataStore,
        cluster: bytes,
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        limits: Limits | None,
        request_timeout_ms: int,
        busy_poll_us: int,
    ) -> None:
        if not 1 <= request_timeout_ms <= REQUEST_TIMEOUT_MAX_MS:
            raise InvalidArgumentError(
                f"request_timeout_ms: expected 1 to {REQUEST_TIMEOUT_MAX_MS}, found {request_timeout_ms}"
            )
        limits = limits or Limits(queued_bytes=QUEUED_BYTES)
        frame_room = limits.max_body_bytes - ENTRY_MARGIN_BYTES & ~7
        entry_bytes_max = min(ENTRY_BYTES_MAX, frame_room)
        RuntimeBase.__init__(self, metadata, entry_bytes_max=entry_bytes_max, busy_poll_us=busy_poll_us)
        self._cluster, self._secret, self._tls, self._limits = cluster, secret, tls, limits
        self._request_timeout_s = request_timeout_s = request_timeout_ms / 1000
        self._request_timeout_us = request_timeout_ms * 1000
        self._now_us = self.reactor.clock.monotonic_us
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._ready = {}  # channels to the registered addresses of bookies; emptied when registrations change
        self._adds, self._unanswered_max = {}, UNANSWERED_MAX
        try:
            self._registrations = Registrations(metadata, self._registered, self._read_again)
        except BaseException:
            super().close()
            raise
        deadline = time.monotonic() + request_timeout_s
        if self._registrations.wait(request_timeout_s):
            self.bookie_states.wait(max(deadline - time.monotonic(), 0.0))

    # ---- registrations --------------------------------------------------------------------------------------

    def _registered(self, changed: Set[str]) -> None:
        """Handle changed registrations: choose channels anew, and release bookies from quarantine."""
        with self._lock:
            self._ready = {}
        self._quarantine.release(changed)
        self.on_bookies()

    def bookie_statuses(self) -> list[BookieStatus]:
        return [
            BookieStatus(
                bookie,
                entry.address,
                entry.rack,
                entry.read_only,
                entry.free_bytes,
                self.bookie_states.phase(bookie),
                scrub=entry.scrub,
                verified_since_us=entry.verified_since_us,
            )
            for bookie, entry in self._registrations.items()
        ]

    # ---- requests -------------------------------------------------------------------------------------------

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        if (request.flags & COPY or request.kind >= HOLDINGS) and not self._supports(bookie, request, on_reply):
            return
        if request.kind == ADD:
            adds = self._adds.get((bookie, request.ledger)) or self._merger_of(bookie, request.ledger)
            adds.send(request, on_reply)
            return
        timeout = self._request_timeout_s + (request.limit / 1000 if request.kind == RequestKind.WAIT_LAC else 0.0)
        try:
            self._channel(bookie).request(
                encode_request(request), on_reply=lambda body: on_reply(_decoded(body)), timeout=timeout
            )
        except ReplogError as error:
            on_reply(error)

    def _supports(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> bool:
        """Return whether a bookie supports a feature according to its hello; otherwise answer the request, now or
        later."""
        try:
            peer = self._channel(bookie).peer
        except ReplogError as error:
            on_reply(error)
            return False
        if peer is None:  # wait for the hello
            self.send(
                bookie,
                Request(RequestKind.STATUS),
                lambda reply: self._have_met(bookie, request, reply, on_reply),
            )
            return False
        if request.feature is not None and request.feature not in peer.features:
            reason = f"bookie {bookie} does not know {request.feature!r}: upgrade it"
            refused = Reply(ReplyStatus.UNSUPPORTED, request.ledger, request.first, request.last, body=reason.encode())
            on_reply(refused)
            return False
        return True

    def _have_met(
        self, bookie: str, request: Request, reply: Reply | Exception, on_reply: Callable[[Reply | Exception], None]
    ) -> None:
        if isinstance(reply, Exception):
            on_reply(reply)
        else:
            self.send(bookie, request, on_reply)

    def _merger_of(self, bookie: str, ledger: int) -> AddMerger:
        if len(self._adds) >= _ADDS_MAX:
            self._adds = {key: adds for key, adds in list(self._adds.items()) if not adds.is_idle}
        return self._adds.setdefault((bookie, ledger), AddMerger(partial(self._send_adds, bookie)))

    def _send_adds(self, bookie: str, requests: Sequence[Request], group: AddGroup) -> None:
        """Send several requests, whose entries are consecutive, as one."""
        first = requests[0]
        if len(requests) == 1:
            buffers = [encode_request(first), first.records]
        else:
            head = encode_request(first._replace(last=group.last))
            buffers = [head, *(request.records for request in requests)]
        try:
            channel = self._ready.get(bookie) or self._channel(bookie)
            channel.request(*buffers, on_reply=group, timeout=self._request_timeout_s)
        except ReplogError as error:
            group(error)

    def _channel(self, bookie: str) -> Channel:
        """Return the channel to a bookie. Raises NotConnectedError if it is not registered, and ClosedError."""
        with self._lock:
            channel, registration = self._channels.get(bookie), self._registrations.get(bookie)
            if channel is not None and (registration is None or channel.address == _address(registration)):
                self._ready[bookie] = channel
                return channel
            if registration is None:
                raise NotConnectedError(f"bookie {bookie} is not registered")
            self._channels[bookie] = replacement = self._connect(bookie, registration)
        if channel is not None:  # the bookie registered another address
            self.work(channel.close)
        return replacement

    def _connect(self, bookie: str, registration: Availability) -> Channel:
        name, _, incarnation = bookie.partition("@")
        try:
            expected = NodeIdentity(
                node=name, incarnation=bytes.fromhex(incarnation), cluster=self._cluster.hex(), service=SERVICE
            )
        except ValueError as error:
            raise InvalidMetadataError(f"bookie {bookie!r}: expected name@incarnation: {error}") from error
        return Channel(
            self.reactor, _address(registration), expected=expected, identity=NodeIdentity(features=FEATURES),
            secret=self._secret, tls=self._tls, limits=self._limits,
        )  # fmt: skip

    def close(self, timeout: float | None = None) -> None:
        self._registrations.close()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
            self._ready = {}
        with ExitStack() as cleanup:
            cleanup.callback(super().close, timeout)
            for channel in channels:
                cleanup.callback(channel.close)


def _address(registration: Availability) -> tuple[str, int]:
    """Return host and port of a bookie. Raises InvalidMetadataError if its registration is malformed."""
    host, _, port = registration.address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidMetadataError(f"address of a bookie: expected host:port, found {registration.address!r}")
    return host.strip("[]"), int(port)


def _decoded(body: memoryview | ReplogError) -> Reply | Exception:
    if isinstance(body, ReplogError):
        return body
    try:
        return decode_reply(body)
    except InvalidMessageError as error:
        return error
