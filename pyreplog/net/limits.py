"""How much a peer may ask of us, and how long we wait for it."""

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
    """Bounds of connections; both sides tell each other those that concern the other.

    max_body_bytes: of a frame that a peer may send.
    connections: that a server has at once; the surplus is refused.
    pending_connections / pending_per_address: that a server has at once beside these, whose hello is not over; one more
    closes the oldest of them, of the address that has most / of its address (of IPv6: network of 64 bits).
    queued_bytes: that wait to be sent on one connection. Above it the connection reads nothing more; above it for
    `stall_s` seconds, the connection is closed. A client that has not been greeted yet refuses requests beyond it.
    connection_inflight_bytes / inflight_bytes: of requests that a server has read and whose replies have not left, on
    one connection / on all. Above it the server reads nothing more from that connection / from all of them.
    heartbeat_s: seconds without anything sent after which a heartbeat is sent.
    silence_s: seconds without anything received after which the connection is closed; at least two heartbeats.
    handshake_s: seconds for a connection to be made, hello included.

    A server's memory: at most `inflight_bytes`, plus `connections` times the largest frame being received and
    `queued_bytes`.
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
    """What a client is given. WrongTypeError."""
    check_tls("tls", tls)
    if limits is not None:
        check_type("limits", limits, Limits, "Limits")


def check_tls(what: str, tls: ssl.SSLContext | None) -> None:
    """what: the argument's name. WrongTypeError."""
    if tls is not None:
        check_type(what, tls, ssl.SSLContext, "an ssl.SSLContext")
