"""Limits: how much a peer may demand, and how long to wait for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from pyreplog._native.net.frame import DEFAULT_MAX_BODY, MAX_BODY
from pyreplog.arguments import check_type
from pyreplog.config import Settings
from pyreplog.errors import ConfigError

_DAY_S = 86_400.0


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
            `stall_s` above it, the connection is closed. A client whose hello is not complete refuses requests above
            it.
        connection_inflight_bytes: bytes of requests that a server has read from one connection and whose replies have
            not left. Above it, the server does not read from that connection.
        inflight_bytes: the same for all connections of a server.
        heartbeat_s: seconds without sending after which a heartbeat is sent.
        silence_s: seconds without receiving after which the connection is closed; at least two heartbeats.
        stall_s: seconds for which the queue may be above `queued_bytes`.
        handshake_s: seconds for connecting, hello included.

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
    heartbeat_s: float = 5.0
    silence_s: float = 15.0
    stall_s: float = 30.0
    handshake_s: float = 10.0

    def __post_init__(self) -> None:
        self._check_int("max_body_bytes", 1, MAX_BODY)
        for name in ("connections", "pending_connections", "pending_per_address"):
            self._check_int(name, 1, 1 << 20)
        self._check_int("queued_bytes", 1, 1 << 40)
        self._check_int("connection_inflight_bytes", 1, 1 << 40)
        self._check_int("inflight_bytes", 1, 1 << 50)
        for name in ("heartbeat_s", "silence_s", "stall_s", "handshake_s"):
            self._check_seconds(name)
        if self.silence_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"silence_s: expected at least two heartbeats of {self.heartbeat_s:g} s, found {self.silence_s:g}"
            )

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name}: expected a number of seconds, found {value!r}")
        if not 0.001 <= value <= _DAY_S:
            raise ConfigError(f"{name}: expected 0.001 to {_DAY_S:g} seconds, found {value}")


def check_connecting(tls: ssl.SSLContext | None, limits: Limits | None) -> None:
    """Check the arguments of a client. Raises WrongTypeError."""
    check_tls("tls", tls)
    if limits is not None:
        check_type("limits", limits, Limits, "Limits")


def check_tls(what: str, tls: ssl.SSLContext | None) -> None:
    """Check a TLS context. what: name of the argument. Raises WrongTypeError."""
    if tls is not None:
        check_type(what, tls, ssl.SSLContext, "an ssl.SSLContext")
