"""The first frames of a connection, as bytes. The byte tables are in `_native/FORMAT.md`, "Hello".

Every hello body begins with a magic and its kind; all fields are big-endian, and every length is bounded. Bytes after
the last known field are skipped, because a later version may append fields.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from pyreplog._native.net.frame import MAX_BODY
from pyreplog.errors import (
    AuthenticationError,
    HandshakeError,
    IncarnationError,
    InvalidArgumentError,
    ProtocolVersionError,
    TlsMismatchError,
    TooManyConnectionsError,
    WrongClusterError,
    WrongServiceError,
)

MAGIC = b"REPLOGNT"
VERSION = 2
MIN_VERSION = 1
BODY_MAX = 2048
"""Bytes of the largest hello body that is accepted."""

NONCE_BYTES = 32
INCARNATION_BYTES = 16
ANY_INCARNATION = bytes(INCARNATION_BYTES)
FEATURES_MAX = 32
FEATURE_BYTES_MAX = 32
_FEATURE = re.compile(rf"[a-z0-9-]{{1,{FEATURE_BYTES_MAX}}}")
_NAME_MAX = 255
_REASON_MAX = 1024

_START = struct.Struct(">8sB")
_SERVER = struct.Struct(">8sBBHH16s32sIIQ")
_CLIENT = struct.Struct(">8sBHH16s16s32sII")
_PROOF = struct.Struct(">8sB32s")
_WELCOME = struct.Struct(">8sBH")
_REFUSAL = struct.Struct(">8sBBH")


class HelloKind(IntEnum):
    SERVER = 1
    CLIENT = 2
    SERVER_PROOF = 3
    CLIENT_PROOF = 4
    WELCOME = 5
    REFUSAL = 6


class Auth(IntEnum):
    """The kind of authentication between both sides."""

    NONE = 0
    SECRET = 1
    TLS = 2  # the certificates of both sides


REASONS: dict[int, type[HandshakeError]] = {
    0: HandshakeError,
    1: ProtocolVersionError,
    2: WrongServiceError,
    3: IncarnationError,
    4: AuthenticationError,
    5: TooManyConnectionsError,
    6: WrongClusterError,
    7: TlsMismatchError,
}
_CODES = {error: code for code, error in REASONS.items()}


@dataclass(frozen=True, slots=True)
class ServerHello:
    """The first message of a server, which speaks versions from `min_version` to `version`."""

    auth: Auth
    incarnation: bytes
    nonce: bytes
    max_body_bytes: int
    silence_ms: int
    inflight_bytes: int
    service: str
    cluster: str
    node: str
    min_version: int = MIN_VERSION
    version: int = VERSION

    def encode(self) -> bytes:
        return _SERVER.pack(
            MAGIC,
            HelloKind.SERVER,
            self.auth,
            self.min_version,
            self.version,
            self.incarnation,
            self.nonce,
            self.max_body_bytes,
            self.silence_ms,
            self.inflight_bytes,
        ) + _names(self.service, self.cluster, self.node)


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The answer of a client. Empty `service` and `cluster`, and an incarnation of zeros, accept any.

    features: names of features that it supports beyond its version; None: it sends none, as to a server that would
    refuse them.
    """

    expected_incarnation: bytes
    incarnation: bytes
    nonce: bytes
    max_body_bytes: int
    silence_ms: int
    service: str
    cluster: str
    node: str
    min_version: int = MIN_VERSION
    version: int = VERSION
    features: frozenset[str] | None = None

    def encode(self) -> bytes:
        names = _names(self.service, self.cluster, self.node)
        return self._head() + names + _features(self.features)

    def _head(self) -> bytes:
        return _CLIENT.pack(
            MAGIC,
            HelloKind.CLIENT,
            self.min_version,
            self.version,
            self.expected_incarnation,
            self.incarnation,
            self.nonce,
            self.max_body_bytes,
            self.silence_ms,
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """Proves that its sender (`kind`: SERVER_PROOF or CLIENT_PROOF) knows the secret."""

    kind: HelloKind
    mac: bytes

    def encode(self) -> bytes:
        return _PROOF.pack(MAGIC, self.kind, self.mac)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The last message of the server; the frames after it are those of the service, in this version.

    features: those that both sides support; None: the client sent none.
    """

    version: int
    features: frozenset[str] | None = None

    def encode(self) -> bytes:
        return _WELCOME.pack(MAGIC, HelloKind.WELCOME, self.version) + _features(self.features)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last message of a side that closes the connection."""

    error: HandshakeError

    def encode(self) -> bytes:
        reason = str(self.error).encode("utf-8", "replace")[:_REASON_MAX]
        return _REFUSAL.pack(MAGIC, HelloKind.REFUSAL, _CODES.get(type(self.error), 0), len(reason)) + reason


Message: TypeAlias = ServerHello | ClientHello | Proof | Welcome | Refusal


def decode_hello(body: bytes) -> Message:
    """Decode a hello. Raises HandshakeError when it is malformed; its message does not repeat the peer's bytes."""
    if len(body) < _START.size or body[:8] != MAGIC:
        raise HandshakeError(f"expected a hello of pyreplog, found {len(body)} other bytes")
    try:
        return _DECODERS[HelloKind(body[8])](body)
    except (ValueError, struct.error) as error:
        raise HandshakeError(f"a hello of kind {body[8]} and {len(body)} bytes is malformed: {error}") from None


def name_bytes(name: str, what: str) -> bytes:
    """Return the bytes of a service, cluster or node name. Raises InvalidArgumentError if it is too long."""
    encoded = name.encode()
    if len(encoded) > _NAME_MAX:
        raise InvalidArgumentError(f"{what}: expected at most {_NAME_MAX} bytes of UTF-8, found {len(encoded)}")
    return encoded


def _names(*names: str) -> bytes:
    return b"".join(bytes((len(encoded),)) + encoded for encoded in (name_bytes(name, "name") for name in names))


def check_features(features: Collection[str]) -> frozenset[str]:
    """Return the names of features as a set. Raises InvalidArgumentError if there are too many, or one is invalid."""
    if len(features) > FEATURES_MAX or not all(_FEATURE.fullmatch(name) for name in features):
        raise InvalidArgumentError(
            f"features: expected at most {FEATURES_MAX} names of 1 to {FEATURE_BYTES_MAX} of a-z, 0-9 and '-', found "
            f"{sorted(features)!r}"
        )
    return frozenset(features)


def _features(features: frozenset[str] | None) -> bytes:
    return b"" if features is None else bytes((len(features),)) + _names(*sorted(features))


def _read_features(body: bytes, at: int) -> frozenset[str] | None:
    """Return the features; None: the body ends before them.

    Names that are invalid here, as of a later version, are dropped.
    """
    if at == len(body):
        return None
    count = body[at]
    if count > FEATURES_MAX:
        raise ValueError(f"{count} features")
    names, _ = _read_names(body, at + 1, count)
    return frozenset(name for name in names if _FEATURE.fullmatch(name))


def _read_names(body: bytes, at: int, count: int) -> tuple[list[str], int]:
    """Return `count` names, and the offset after them."""
    names = []
    for _ in range(count):
        end = at + 1 + body[at] if at < len(body) else len(body) + 1
        if end > len(body):
            raise ValueError("a name ends after the body")
        names.append(body[at + 1 : end].decode())
        at = end
    return names, at


def _check_limits(max_body_bytes: int, silence_ms: int) -> None:
    if not 1 <= max_body_bytes <= MAX_BODY or silence_ms < 1:
        raise ValueError(f"limits of {max_body_bytes} bytes and {silence_ms} ms")


def _server_hello(body: bytes) -> ServerHello:
    _, _, auth, low, high, incarnation, nonce, max_body, silence_ms, inflight = _SERVER.unpack_from(body)
    _check_limits(max_body, silence_ms)
    (service, cluster, node), _ = _read_names(body, _SERVER.size, 3)
    return ServerHello(
        Auth(auth), incarnation, nonce, max_body, silence_ms, inflight, service, cluster, node, low, high
    )


def _client_hello(body: bytes) -> ClientHello:
    _, _, low, high, expected, incarnation, nonce, max_body, silence_ms = _CLIENT.unpack_from(body)
    _check_limits(max_body, silence_ms)
    (service, cluster, node), at = _read_names(body, _CLIENT.size, 3)
    features = _read_features(body, at)
    return ClientHello(expected, incarnation, nonce, max_body, silence_ms, service, cluster, node, low, high, features)


def _proof(body: bytes) -> Proof:
    _, kind, mac = _PROOF.unpack_from(body)
    return Proof(HelloKind(kind), mac)


def _welcome(body: bytes) -> Welcome:
    _, _, version = _WELCOME.unpack_from(body)
    return Welcome(version, _read_features(body, _WELCOME.size))


def _refusal(body: bytes) -> Refusal:
    _, _, code, length = _REFUSAL.unpack_from(body)
    reason = body[_REFUSAL.size : _REFUSAL.size + length]
    if length != len(reason) or length > _REASON_MAX:
        raise ValueError(f"a reason of {length} bytes has {len(reason)}")
    return Refusal(REASONS.get(code, HandshakeError)(reason.decode("utf-8", "replace")))


_DECODERS: dict[HelloKind, Callable[[bytes], Message]] = {
    HelloKind.SERVER: _server_hello,
    HelloKind.CLIENT: _client_hello,
    HelloKind.SERVER_PROOF: _proof,
    HelloKind.CLIENT_PROOF: _proof,
    HelloKind.WELCOME: _welcome,
    HelloKind.REFUSAL: _refusal,
}
