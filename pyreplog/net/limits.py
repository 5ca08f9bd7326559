"""Limits: how much a peer may demand, and how long to wait for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from pyreplog._native.net.frame import DEFAULT_MAX_BODY, MAX_BODY
from pyreplog.arguments import check_type
from pyreplog.config import Settings
from pyreplog.errors import ConfigError

_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """Limits of connections. Both sides send each other those that concern the other.

    A server needs at most `inflight_bytes` of memory, plus `connections` times the largest frame being received and
    `queued_bytes`.

    Attributes:
        max_body_bytes: bytes of the body of a frame that a peer may send.
        connections: connections that a server has at once; more are refused.
        pending_connections: connections of a server whose hello is not complete, besides `connections`. One more closes
            the oldest of the address that has most.
        pending_per_address: the same for one address (of IPv6: network of 64 bits). One more closes the oldest of the
            address.
        queued_bytes: bytes that wait to be sent on one connection. Above it, the connection does not read; after
            `stall_ms` above it, the connection is closed. A client whose hello is not complete refuses requests above
            it.
        connection_inflight_bytes: bytes of requests that a server has read from one connection and whose replies have
            not left. Above it, the server does not read from that connection.
        inflight_bytes: the same for all connections of a server.
        heartbeat_ms: milliseconds without sending after which a heartbeat is sent.
        silence_ms: milliseconds without receiving after which the connection is closed; at least two heartbeats.
        stall_ms: milliseconds for which the queue may be above `queued_bytes`.
        handshake_ms: milliseconds for connecting, hello included.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    max_body_bytes: int = DEFAULT_MAX_BODY
    connections: int = 1024
    pending_connections: int = 256
    pending_per_address: int = 128
    queued_bytes: int = 16 << 20
    connection_inflight_bytes: int = 16 << 20
    inflight_bytes: int = 256 << 20
    heartbeat_ms: int = 5_000
    silence_ms: int = 15_000
    stall_ms: int = 30_000
    handshake_ms: int = 10_000

    def __post_init__(self) -> None:
        self._check_int("max_body_bytes", 1, MAX_BODY)
        for name in ("connections", "pending_connections", "pending_per_address"):
            self._check_int(name, 1, 1 << 20)
        self._check_int("queued_bytes", 1, 1 << 40)
        self._check_int("connection_inflight_bytes", 1, 1 << 40)
        self._check_int("inflight_bytes", 1, 1 << 50)
        for name in ("heartbeat_ms", "silence_ms", "stall_ms", "handshake_ms"):
            self._check_int(name, 1, _DAY_MS)
        if self.silence_ms < 2 * self.heartbeat_ms:
            raise ConfigError(
                f"silence_ms: expected at least two heartbeats of {self.heartbeat_ms}, found {self.silence_ms}"
            )


def check_connecting(tls: ssl.SSLContext | None, limits: Limits | None) -> None:
    """Check the arguments of a client. Raises WrongTypeError if one has another type."""
    check_tls("tls", tls)
    if limits is not None:
        check_type("limits", limits, Limits, "Limits")


def check_tls(what: str, tls: ssl.SSLContext | None) -> None:
    """Check a TLS context. Raises WrongTypeError if it is none. what: name of the argument."""
    if tls is not None:
        check_type(what, tls, ssl.SSLContext, "an ssl.SSLContext")
