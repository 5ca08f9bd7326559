"""TLS: the same service behind it, certificates of both sides, and what does not fit."""

from __future__ import annotations

import datetime
import ipaddress
import random
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import pyreplog.net.server as servers
from pyreplog._native.net.frame import encode
from pyreplog.errors import AuthenticationError, DisconnectedError, NotConnectedError, PeerError, TlsMismatchError
from pyreplog.net import hello, pending_connection
from pyreplog.net.handshake import Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from tests.net.peers import TIMEOUT_S, Recorder, ask, call, wait

DAY = datetime.timedelta(days=1)


class Authority:
    """A throw-away certificate authority."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._subject, self._key, authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool, age: datetime.timedelta = 0 * DAY
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC) - age
        builder = x509.CertificateBuilder(self._subject, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
        builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)  # CPython 3.13 demands what RFC 5280 does
        usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
        builder = builder.add_extension(usage, critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(own, critical=False)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return builder.add_extension(address, critical=False).sign(self._key, hashes.SHA256())

    def issue(self, name: str, age: datetime.timedelta = 0 * DAY) -> Path:
        """A file with a key and its certificate, which was issued some time ago, and is valid for a day."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, authority=False, age=age)
        file = self._folder / f"{self._name}-{name}.pem"
        plain = serialization.NoEncryption()
        file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return file


class Certificates:
    """Contexts made of two authorities, of which only the first is trusted by anybody."""

    def __init__(self, folder: Path) -> None:
        self.trusted, self.stranger = Authority(folder, "trusted"), Authority(folder, "stranger")

    def server(self, *, mutual: bool = False, authority: Authority | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.trusted.file))
        context.load_cert_chain((authority or self.trusted).issue("server"))
        context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
        return context

    def client(self, authority: Authority | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.trusted.file))
        if authority is not None:
            context.load_cert_chain(authority.issue("client"))
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("mutual", [False, True])
def test_a_server_answers_requests_behind_tls(
    mutual: bool, certificates: Certificates, reactor: Reactor, serve: Any, connect: Any
) -> None:
    server = serve(Recorder(), tls=certificates.server(mutual=mutual))
    channel = connect(server, tls=certificates.client(certificates.trusted if mutual else None))
    assert call(reactor, channel, b"hello") == b"hello"
    large = random.Random(2).randbytes(3_900_000)
    assert call(reactor, channel, large) == large
    replies: list[Any] = []
    bodies = [large[i : i + i % 40_000 + 1] for i in range(0, 3_000_000, 7919)]
    for body in bodies:
        channel.request(body[:20], body[20:], on_reply=lambda r: replies.append(bytes(r)), timeout=TIMEOUT_S)
    wait(reactor, lambda: len(replies) == len(bodies))
    assert replies == bodies


def test_a_secret_is_checked_behind_tls(certificates: Certificates, reactor: Reactor, serve: Any, connect: Any) -> None:
    secret = Secret(b"a secret of sixteen bytes or more")
    server = serve(Recorder(), tls=certificates.server(), secret=secret)
    assert call(reactor, connect(server, tls=certificates.client(), secret=secret), b"x") == b"x"
    assert type(ask(reactor, connect(server, tls=certificates.client()), b"x")) is NotConnectedError


def test_a_request_in_the_record_of_the_hello(certificates: Certificates, reactor: Reactor, serve: Any) -> None:
    """It is decrypted together with the hello, and nothing more comes that would wake the server."""
    handler = Recorder()
    server = serve(handler, tls=certificates.server())
    with (
        socket.create_connection(server.address, timeout=TIMEOUT_S) as plain,
        certificates.client().wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        greeting = hello.ClientHello(bytes(16), bytes(16), b"n" * 32, 1000, 60_000, "", "", "").encode()
        sock.sendall(encode(-1, greeting) + encode(7, b"early"))
        wait(reactor, lambda: bool(handler.requests))
    assert [(correlation_id, body) for _, correlation_id, body in handler.requests] == [(7, b"early")]


def test_pauses_do_not_lose_what_was_decrypted(
    certificates: Certificates, reactor: Reactor, serve: Any, connect: Any
) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, tls=certificates.server(), limits=Limits(connection_inflight_bytes=200_000))
    channel = connect(server, tls=certificates.client())
    replies: list[Any] = []
    for _ in range(100):
        channel.request(b"q" * 50_000, on_reply=replies.append, timeout=TIMEOUT_S)
    answered = 0
    while answered < 100:
        wait(reactor, lambda: len(handler.requests) > answered)  # noqa: B023
        connection, correlation_id, body = handler.requests[answered]
        connection.reply(correlation_id, body)  # type: ignore[attr-defined]
        answered += 1
    wait(reactor, lambda: len(replies) == 100)


def test_the_bytes_of_replies_that_leave_late_come_back(
    certificates: Certificates, reactor: Reactor, serve: Any, connect: Any
) -> None:
    """The replies are more than a socket takes; each that has left gives room for requests again."""
    handler, replies = Recorder(answer=None), list[Any]()
    server = serve(handler, tls=certificates.server())
    channel = connect(server, tls=certificates.client())
    for _ in range(8):
        channel.request(b"q" * 1000, on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: len(handler.requests) == 8)

    def answer() -> None:
        for connection, correlation_id, _ in handler.requests:
            connection.reply(correlation_id, bytes(3_900_000))  # type: ignore[attr-defined]
        late.append(server.inflight_bytes)

    late: list[int] = []
    reactor.call_soon(answer)
    wait(reactor, lambda: len(replies) == 8)
    assert late[0] > 1000, "replies have not left"
    wait(reactor, lambda: server.inflight_bytes == 0)


def test_a_drain_lets_clients_go(
    certificates: Certificates, reactor: Reactor, serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end it, and have every reply by then."""
    monkeypatch.setattr(servers, "_PARTING_S", TIMEOUT_S)
    handler, drained, replies = Recorder(answer=None), list[bool](), list[Any]()
    server = serve(handler, tls=certificates.server())
    channel = connect(server, tls=certificates.client())
    channel.request(b"asked", on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: bool(handler.requests))
    connection: Any = handler.connections[0]
    thread = threading.Thread(target=lambda: drained.append(server.drain(TIMEOUT_S)))
    thread.start()
    wait(reactor, lambda: server._listener.closed)
    channel.request(b"too late", on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: connection.unread_bytes > 0)
    body = bytes(3_000_000)
    assert connection.reply(handler.requests[0][1], body)
    wait(reactor, lambda: len(replies) == 2)
    assert replies[0] == body and type(replies[1]) is DisconnectedError
    thread.join(TIMEOUT_S)
    assert drained == [True]


@pytest.mark.parametrize(
    ("server", "client", "error"),
    [
        ({"authority": "stranger"}, None, AuthenticationError),
        ({"mutual": True}, "stranger", AuthenticationError),
        ({"mutual": True}, None, AuthenticationError),
    ],
    ids=["unknown server", "unknown client", "client without a certificate"],
)
def test_wrong_certificates_end_the_connection_on_both_sides(
    server: dict[str, Any],
    client: str | None,
    error: type[PeerError],
    certificates: Certificates,
    reactor: Reactor,
    serve: Any,
    connect: Any,
) -> None:
    handler = Recorder()
    authority = getattr(certificates, server.pop("authority", "trusted"))
    serving = serve(handler, tls=certificates.server(authority=authority, **server))
    channel = connect(serving, tls=certificates.client(None if client is None else getattr(certificates, client)))
    outcome = ask(reactor, channel, b"x")
    assert type(outcome) is NotConnectedError and type(outcome.__cause__) is error
    wait(reactor, lambda: serving.refused > 0)
    assert not handler.connections


def test_tls_mismatch_is_reported_on_both_sides(
    certificates: Certificates, reactor: Reactor, serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before anything times out both sides say what is wrong."""
    caplog.set_level("INFO")
    limits = Limits(handshake_ms=round(TIMEOUT_S * 1000))
    secured, plain = serve(Recorder(), tls=certificates.server(), limits=limits), serve(Recorder(), limits=limits)
    cases = [(secured, {}, "the server speaks TLS"), (plain, {"tls": certificates.client()}, "the client speaks TLS")]
    for server, settings, words in cases:
        channel = connect(server, limits=limits, **settings)
        outcome = ask(reactor, channel, b"x")
        assert type(outcome) is NotConnectedError and type(outcome.__cause__) is TlsMismatchError
        assert words in str(outcome)
        wait(reactor, lambda: server.refused > 0)  # noqa: B023
        channel.close()
        told = [record.message for record in caplog.records if "a handshake failed" in record.message]
        assert any(words in text for text in told)


def test_plain_client_of_a_slow_server_is_not_refused_as_a_tls_client(
    reactor: Reactor, serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked as if it waited for TLS."""
    monkeypatch.setattr(pending_connection, "FIRST_HEARTBEAT_S", 0.01)
    server = serve(Recorder())
    monkeypatch.setattr(
        server,
        "_begin_handshake",
        lambda *peer: reactor.call_later(0.1, lambda: Server._begin_handshake(server, *peer)),
    )
    channel = connect(server)
    assert call(reactor, channel, b"x") == b"x"
    assert server.refused == 0


def test_arbitrary_bytes_on_a_tls_port(
    seed: int, certificates: Certificates, reactor: Reactor, serve: Any, connect: Any
) -> None:
    server = serve(Recorder(), tls=certificates.server())
    draw = random.Random(seed)
    for _ in range(20):
        with socket.create_connection(server.address, timeout=TIMEOUT_S) as sock:
            sock.sendall(draw.randbytes(draw.randrange(1, 3000)))
    assert call(reactor, connect(server, tls=certificates.client()), b"x") == b"x"
    wait(reactor, lambda: not server.handshakes)
