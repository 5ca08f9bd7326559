"""Both sides of the hello, as state machines without I/O: bodies in, bodies out.

    server                                client
    ServerHello (identity, nonce)     ->  checks the identity before it says anything
                                      <-  ClientHello (identity, expectations, nonce)
    ServerProof (shared secret only)  ->  checks it: a wrong server learns nothing from the client
                                      <-  ClientProof (shared secret only)
    Welcome                           ->

A proof is the HMAC-SHA256 of the role and both complete hellos: nonces, identities, versions and limits. So a proof is
valid only for this connection, this pair of nodes and this role, and no part of a hello can be changed on the way.
After the hello only TLS protects a connection.

Features are names of requests, flags and fields that a side supports beyond its version. The client sends its own, the
server answers with those that both support, and neither uses any other. Older builds refuse bytes after the last field.
So a client sends its features only to a server whose version is high enough, and a server answers only then.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import NoReturn

from pyreplog.errors import (
    AuthenticationError,
    HandshakeError,
    IncarnationError,
    InvalidArgumentError,
    ProtocolVersionError,
    WrongClusterError,
    WrongServiceError,
    WrongTypeError,
)
from pyreplog.net import hello
from pyreplog.net.hello import Auth, ClientHello, HelloKind, Proof, Refusal, ServerHello, Welcome
from pyreplog.net.limits import Limits

_SECRET_MIN = 16


class Secret:
    """A shared secret: 16 random bytes or more, because anyone who sees a proof can try guesses on it.

    A server proves that it knows the first key; a client accepts a proof by any of its keys, and answers with the same.
    `replace` changes the keys for later connections. Any thread may use it. A secret is never shown, logged or pickled.

    Args:
        key: the secret.
        others: keys that are valid as well, while the secret is changed.
    """

    __slots__ = ("_keys",)

    def __init__(self, key: bytes, *others: bytes) -> None:
        self._keys: tuple[bytes, ...] = ()
        self.replace(key, *others)

    @classmethod
    def of(cls, secret: bytes | Secret | None) -> Secret | None:
        """Return a Secret for bytes; return a Secret unchanged, so that its owner may replace it.

        Raises as `replace`.
        """
        return secret if secret is None or isinstance(secret, Secret) else cls(secret)

    def replace(self, key: bytes, *others: bytes) -> None:
        """Change the keys.

        Args:
            key: the secret.
            others: keys that are valid as well.

        Raises:
            WrongTypeError: a key is not bytes.
            InvalidArgumentError: a key is too short. Nothing was changed.
        """
        for candidate in (key, *others):
            if not isinstance(candidate, bytes | bytearray | memoryview):
                raise WrongTypeError(f"secret: expected bytes, found {type(candidate).__name__}")
            if len(candidate) < _SECRET_MIN:
                raise InvalidArgumentError(f"secret: expected {_SECRET_MIN} bytes or more, found {len(candidate)}")
        self._keys = tuple(map(bytes, (key, *others)))

    def take(self, other: Secret) -> None:
        """Use the keys of another secret."""
        self._keys = other._keys

    def proof(self, kind: HelloKind, server: bytes, client: bytes) -> Proof:
        """Return the proof of the side that sends `kind`, bound to both encoded hellos."""
        return _proof(self._keys[0], kind, server, client)

    def check(self, proof: Proof, server: bytes, client: bytes) -> Secret:
        """Return the key that the other side has proved to know. Raises AuthenticationError if it knows none."""
        known = [
            key for key in self._keys if hmac.compare_digest(_proof(key, proof.kind, server, client).mac, proof.mac)
        ]
        if not known:
            side = "server" if proof.kind is HelloKind.SERVER_PROOF else "client"
            raise AuthenticationError(f"the {side} does not know the shared secret")
        return Secret(known[0])

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled or copied")


def parse_secret(content: bytes) -> Secret:
    """Return the secret in a file: its first line; further lines are valid keys as well. Binary content is one key.

    Raises InvalidArgumentError if a key is too short.
    """
    content = content.rstrip(b"\r\n")
    is_text = all(32 <= byte < 127 or byte in b"\r\n\t" for byte in content)
    lines = [line for line in content.splitlines() if line] if is_text else []
    return Secret(*(lines or [content]))


def _proof(key: bytes, kind: HelloKind, server: bytes, client: bytes) -> Proof:
    parts = (kind.to_bytes(1, "big"), len(server).to_bytes(4, "big"), server, client)
    return Proof(kind, hmac.digest(key, b"".join(parts), "sha256"))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeIdentity:
    """The identity of a node.

    Attributes:
        incarnation: 16 random bytes, stored with its data; zeros if it stores none.
        version: the highest version of its service's protocol that it speaks.
        features: features that it supports beyond that version.
        extended_from: protocol version from which a server accepts a hello with features.
    """

    node: str = ""
    incarnation: bytes = hello.ANY_INCARNATION
    cluster: str = ""
    service: str = ""
    version: int = hello.VERSION
    features: frozenset[str] = frozenset()
    extended_from: int = 2

    def __post_init__(self) -> None:
        if len(self.incarnation) != hello.INCARNATION_BYTES:
            raise InvalidArgumentError(f"incarnation: expected 16 bytes, found {len(self.incarnation)}")
        for field in ("node", "cluster", "service"):
            hello.name_bytes(getattr(self, field), field)
        hello.check_features(self.features)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, as its hello describes it, with the limits that it demands of this side.

    Attributes:
        inflight_bytes: bytes of requests that it reads before their replies are sent; None: it is a client.
        features: features that both sides support.
    """

    identity: NodeIdentity
    version: int
    max_body_bytes: int
    silence_s: float
    inflight_bytes: int | None
    features: frozenset[str] = frozenset()


class ServerHandshake:
    """The server's side of the handshake of one connection. `peer` is set when it is complete.

    Args:
        nonce: 32 random bytes.
        secret: the client must know it; None: no authentication by secret.
        mutual_tls: whether the client has shown a certificate.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        limits: Limits,
        nonce: bytes,
        *,
        secret: Secret | None = None,
        mutual_tls: bool = False,
    ) -> None:
        self.peer: Peer | None = None
        self._secret, self._features = secret, identity.features
        auth = Auth.SECRET if secret is not None else Auth.TLS if mutual_tls else Auth.NONE
        self._hello = ServerHello(
            auth,
            identity.incarnation,
            nonce,
            limits.max_body_bytes,
            limits.silence_ms,
            limits.connection_inflight_bytes,
            identity.service,
            identity.cluster,
            identity.node,
            version=identity.version,
        )
        self._client: ClientHello | None = None
        self._client_bytes = b""
        self._version = 0

    def begin(self) -> list[bytes]:
        """Return the bodies to send first."""
        return [self._hello.encode()]

    def receive(self, body: bytes) -> list[bytes]:
        """Return the bodies to send in reply.

        Raises HandshakeError if the client is refused: then send `refusal(error)`, and close.
        """
        message = hello.decode_hello(body)
        if isinstance(message, Refusal):
            raise RefusedByPeerError(message.error)
        if isinstance(message, ClientHello) and self._client is None:
            return self._receive_hello(message, body)
        if isinstance(message, Proof) and message.kind is HelloKind.CLIENT_PROOF and self._client and self._secret:
            self._secret.check(message, self._hello.encode(), self._client_bytes)
            return self._welcome(self._client)
        raise HandshakeError(f"expected another message of the handshake, found a {type(message).__name__}")

    def _receive_hello(self, client: ClientHello, body: bytes) -> list[bytes]:
        server = self._hello
        self._version = _common_version(server, client)
        _check_names(client, server)
        if client.expected_incarnation not in (hello.ANY_INCARNATION, server.incarnation):
            raise IncarnationError(
                f"the client expects incarnation {client.expected_incarnation.hex()} of node {server.node!r}, "
                f"this is {server.incarnation.hex()}"
            )
        self._client, self._client_bytes = client, body
        if self._secret is None:
            return self._welcome(client)
        return [self._secret.proof(HelloKind.SERVER_PROOF, server.encode(), body).encode()]

    def _welcome(self, client: ClientHello) -> list[bytes]:
        identity = NodeIdentity(
            node=client.node, incarnation=client.incarnation, cluster=client.cluster, service=client.service
        )
        features = None if client.features is None else client.features & self._features
        self.peer = Peer(
            identity, self._version, client.max_body_bytes, client.silence_ms / 1000, None, features or frozenset()
        )
        return [Welcome(self._version, features).encode()]


class ClientHandshake:
    """The client's side of the handshake of one connection. `peer` is set when it is complete.

    Args:
        expected: identity that the server must have; empty names and an incarnation of zeros accept any.
        tls: the connection uses TLS.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        expected: NodeIdentity,
        limits: Limits,
        nonce: bytes,
        *,
        secret: Secret | None = None,
        tls: bool = False,
    ) -> None:
        self.peer: Peer | None = None
        self._expected, self._secret, self._tls = expected, secret, tls
        self._features, self._extended_from = identity.features, identity.extended_from
        self._hello = ClientHello(
            expected.incarnation,
            identity.incarnation,
            nonce,
            limits.max_body_bytes,
            limits.silence_ms,
            expected.service,
            expected.cluster,
            identity.node,
            version=identity.version,
        )
        self._server: ServerHello | None = None
        self._server_bytes = b""
        self._proven = secret is None

    def begin(self) -> list[bytes]:
        return []

    def receive(self, body: bytes) -> list[bytes]:
        """Return the bodies to send in reply.

        Raises HandshakeError if the server is refused, or refuses: then send `refusal(error)`, and close.
        """
        message = hello.decode_hello(body)
        if isinstance(message, Refusal):
            raise RefusedByPeerError(message.error)
        if isinstance(message, ServerHello) and self._server is None:
            return self._receive_hello(message, body)
        if isinstance(message, Proof) and message.kind is HelloKind.SERVER_PROOF and self._server and not self._proven:
            return self._receive_proof(message)
        if isinstance(message, Welcome) and self._server is not None and self._proven:
            return self._receive_welcome(message, self._server)
        raise HandshakeError(f"expected another message of the handshake, found a {type(message).__name__}")

    def _receive_hello(self, server: ServerHello, body: bytes) -> list[bytes]:
        _common_version(server, self._hello)
        _check_names(self._hello, server)
        expected = self._expected
        if (expected.node and expected.node != server.node) or (
            expected.incarnation not in (hello.ANY_INCARNATION, server.incarnation)
        ):
            raise IncarnationError(
                f"expected node {expected.node!r} in incarnation {expected.incarnation.hex()}, "
                f"found {server.node!r} in {server.incarnation.hex()}"
            )
        self._check_auth(server.auth)
        self._server, self._server_bytes = server, body
        if server.version >= self._extended_from:
            self._hello = replace(self._hello, features=self._features)
        return [self._hello.encode()]

    def _check_auth(self, auth: Auth) -> None:
        """Raise AuthenticationError if the server offers weaker authentication than this client is configured for."""
        if self._secret is not None:
            expected = Auth.SECRET
        elif auth is Auth.TLS and self._tls:
            return
        else:
            expected = Auth.NONE
        if auth is not expected:
            raise AuthenticationError(f"this client authenticates by {expected.name}, the server by {auth.name}")

    def _receive_proof(self, proof: Proof) -> list[bytes]:
        assert self._secret is not None
        client = self._hello.encode()
        shared = self._secret.check(proof, self._server_bytes, client)
        self._proven = True
        return [shared.proof(HelloKind.CLIENT_PROOF, self._server_bytes, client).encode()]

    def _receive_welcome(self, welcome: Welcome, server: ServerHello) -> list[bytes]:
        if welcome.version != _common_version(server, self._hello):
            raise ProtocolVersionError(f"the server chose version {welcome.version}, which was not offered")
        features = welcome.features or frozenset()
        if not features <= (self._hello.features or frozenset()):
            raise HandshakeError(f"the server chose {len(features)} features, of which some were not offered")
        identity = NodeIdentity(
            node=server.node, incarnation=server.incarnation, cluster=server.cluster, service=server.service
        )
        silence_s = server.silence_ms / 1000
        self.peer = Peer(identity, welcome.version, server.max_body_bytes, silence_s, server.inflight_bytes, features)
        return []


class RefusedByPeerError(HandshakeError):
    """The peer has refused the connection, for the reason in `error`; no refusal is sent back."""

    def __init__(self, error: HandshakeError) -> None:
        self.error = type(error)(f"the peer refuses: {error}")
        super().__init__(str(self.error))


def refusal(error: HandshakeError) -> list[bytes]:
    """Return the bodies to send before closing because of `error`."""
    return [] if isinstance(error, RefusedByPeerError) else [Refusal(error).encode()]


def _common_version(server: ServerHello, client: ClientHello) -> int:
    version = min(server.version, client.version)
    if version < max(server.min_version, client.min_version):
        raise ProtocolVersionError(
            f"the server speaks versions {server.min_version} to {server.version}, "
            f"the client {client.min_version} to {client.version}"
        )
    return version


def _check_names(client: ClientHello, server: ServerHello) -> None:
    if client.service and client.service != server.service:
        raise WrongServiceError(f"the client expects service {client.service!r}, the server is {server.service!r}")
    if client.cluster and client.cluster != server.cluster:
        raise WrongClusterError(f"the client expects cluster {client.cluster!r}, the server is of {server.cluster!r}")
