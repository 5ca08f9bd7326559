"""The hello without sockets: bytes, order, every way in which two sides do not fit."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog import _native
from pyreplog.errors import (
    AuthenticationError,
    HandshakeError,
    IncarnationError,
    InvalidArgumentError,
    ProtocolVersionError,
    WrongClusterError,
    WrongServiceError,
)
from pyreplog.net import hello
from pyreplog.net.handshake import (
    ClientHandshake,
    NodeIdentity,
    RefusedByPeerError,
    Secret,
    ServerHandshake,
    parse_secret,
    refusal,
)
from pyreplog.net.hello import Auth, ClientHello, HelloKind, Proof, Refusal, ServerHello, Welcome
from pyreplog.net.limits import Limits
from tests.net.peers import NODE

SECRET = Secret(b"a secret of sixteen bytes or more")
OTHER_SECRET = Secret(b"another secret, as long as that")
LIMITS = Limits(max_body_bytes=1000, silence_ms=12_000)
ME = NodeIdentity(node="me", incarnation=b"m" * 16)

names = st.text(max_size=60)
ids = st.binary(min_size=16, max_size=16)
nonces = st.binary(min_size=32, max_size=32)
sizes = st.integers(1, 2**31 - 1)
versions = st.integers(0, 65535)
messages = st.one_of(
    st.builds(
        ServerHello, st.sampled_from(Auth), ids, nonces, sizes, sizes, sizes, names, names, names, versions, versions
    ),
    st.builds(ClientHello, ids, ids, nonces, sizes, sizes, names, names, names, versions, versions),
    st.builds(Proof, st.sampled_from([HelloKind.SERVER_PROOF, HelloKind.CLIENT_PROOF]), nonces),
    st.builds(Welcome, versions),
)


def server(identity: NodeIdentity = NODE, secret: Secret | None = None, **more: bool) -> ServerHandshake:
    return ServerHandshake(identity, LIMITS, b"s" * 32, secret=secret, **more)


def client(expected: NodeIdentity = NODE, secret: Secret | None = None, nonce: bytes = b"c" * 32, **more: bool):
    return ClientHandshake(ME, expected, LIMITS, nonce, secret=secret, **more)


def greet(server_handshake: ServerHandshake, other: ClientHandshake) -> list[bytes]:
    """Carry bodies between them until both are silent; the client's, in order."""
    said: list[bytes] = []
    to_client = server_handshake.begin()
    while to_client:
        to_server = [body for message in to_client for body in other.receive(message)]
        said += to_server
        to_client = [body for message in to_server for body in server_handshake.receive(message)]
    return said


@pytest.mark.parametrize("secret", [None, SECRET])
def test_both_sides_know_each_other_afterwards(secret: Secret | None) -> None:
    first, other = server(secret=secret), client(secret=secret)
    greet(first, other)
    assert first.peer is not None and other.peer is not None
    assert other.peer.identity == NODE
    assert first.peer.identity == NodeIdentity(node="me", incarnation=b"m" * 16, cluster="cluster", service="echo")
    assert (first.peer.max_body_bytes, first.peer.silence_s, first.peer.version) == (1000, 12.0, hello.VERSION)
    assert (first.peer.inflight_bytes, other.peer.inflight_bytes) == (None, LIMITS.connection_inflight_bytes)


def test_a_client_may_expect_nothing() -> None:
    first, other = server(), client(NodeIdentity())
    greet(first, other)
    assert other.peer is not None and other.peer.identity == NODE


WRONG = [
    (dataclasses.replace(NODE, cluster="other"), WrongClusterError, "cluster"),
    (dataclasses.replace(NODE, service="other"), WrongServiceError, "service"),
    (dataclasses.replace(NODE, incarnation=b"j" * 16), IncarnationError, "incarnation"),
    (dataclasses.replace(NODE, node="n2"), IncarnationError, "n2"),
]


@pytest.mark.parametrize(("expected", "error", "words"), WRONG)
def test_a_client_refuses_a_server_it_does_not_expect(expected, error, words) -> None:
    with pytest.raises(error, match=words) as refused:
        client(expected).receive(server().begin()[0])
    with pytest.raises(RefusedByPeerError) as told:
        server().receive(refusal(refused.value)[0])
    assert type(told.value.error) is error


@pytest.mark.parametrize(("expected", "error", "words"), WRONG[:3])
def test_a_server_refuses_a_client_that_expects_another(expected, error, words) -> None:
    """The client's own check is left out: it takes any server and then says what it expects."""
    other = client(expected)
    other._expected = NodeIdentity()
    hello_of_it = dataclasses.replace(
        other._hello, expected_incarnation=expected.incarnation, cluster=expected.cluster, service=expected.service
    )
    with pytest.raises(error, match=words) as refused:
        server().receive(hello_of_it.encode())
    with pytest.raises(RefusedByPeerError) as told:
        other.receive(refusal(refused.value)[0])
    assert type(told.value.error) is error and refusal(told.value) == []


@pytest.mark.parametrize(
    ("low", "high", "fits"), [(1, 1, True), (1, 9, True), (2, 9, True), (3, 9, False), (0, 0, False)]
)
def test_sides_agree_on_a_version_or_refuse(low: int, high: int, fits: bool) -> None:
    first, other = server(), client()
    first._hello = dataclasses.replace(first._hello, min_version=low, version=high)
    if fits:
        greet(first, other)
        assert other.peer is not None and other.peer.version == min(high, hello.VERSION)
        return
    with pytest.raises(ProtocolVersionError, match=f"{low} to {high}"):
        other.receive(first.begin()[0])
    first, other = server(), client()
    with pytest.raises(ProtocolVersionError):
        first.receive(dataclasses.replace(other._hello, min_version=low, version=high).encode())


def test_a_server_cannot_choose_a_version_that_was_not_offered() -> None:
    first, other = server(), client()
    first.receive(other.receive(first.begin()[0])[0])
    with pytest.raises(ProtocolVersionError, match="version 3"):
        other.receive(Welcome(3).encode())


@pytest.mark.parametrize(
    ("server_secret", "client_secret"), [(SECRET, OTHER_SECRET), (SECRET, None), (None, SECRET)], ids=str
)
def test_a_wrong_server_learns_nothing(server_secret: Secret | None, client_secret: Secret | None) -> None:
    first, other = server(secret=server_secret), client(secret=client_secret)
    with pytest.raises(AuthenticationError) as refused:
        greet(first, other)
    assert other.peer is None and first.peer is None
    assert not any(isinstance(hello.decode_hello(body), Proof) for body in refusal(refused.value))


def test_a_wrong_client_is_refused() -> None:
    new_server, wrong = server(secret=SECRET), client(secret=OTHER_SECRET)
    said = wrong.receive(new_server.begin()[0])
    new_server.receive(said[0])
    proof = OTHER_SECRET.proof(HelloKind.CLIENT_PROOF, new_server.begin()[0], said[0])
    with pytest.raises(AuthenticationError, match="client"):
        new_server.receive(proof.encode())
    assert new_server.peer is None


def test_credentials_fit_one_connection_only() -> None:
    """A recorded client's hello and proof, said again to the same server in another connection."""
    recorded = greet(server(secret=SECRET), client(secret=SECRET))
    again = ServerHandshake(NODE, LIMITS, b"t" * 32, secret=SECRET)
    again.receive(recorded[0])
    with pytest.raises(AuthenticationError):
        again.receive(recorded[1])


def test_a_servers_proof_is_not_a_clients() -> None:
    first, other = server(secret=SECRET), client(secret=SECRET)
    proof = first.receive(other.receive(first.begin()[0])[0])[0]
    with pytest.raises(HandshakeError, match="expected another message"):
        first.receive(proof)
    mirrored = dataclasses.replace(hello.decode_hello(proof), kind=HelloKind.CLIENT_PROOF)  # type: ignore[type-var]
    with pytest.raises(AuthenticationError):
        first.receive(mirrored.encode())  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [{"max_body_bytes": 9}, {"silence_ms": 9}, {"node": "x"}, {"min_version": 0}])
def test_modified_hello_raises_authentication_error(change: dict[str, object]) -> None:
    first, other = server(secret=SECRET), client(secret=SECRET)
    changed = dataclasses.replace(first._hello, **change).encode()
    other._expected = NodeIdentity()
    with pytest.raises(AuthenticationError, match="server"):
        other.receive(first.receive(other.receive(changed)[0])[0])


def test_certificates_instead_of_a_secret() -> None:
    first, other = server(mutual_tls=True), client(tls=True)
    greet(first, other)
    assert first.peer is not None
    with pytest.raises(AuthenticationError, match="TLS"):
        greet(server(mutual_tls=True), client())


@pytest.mark.parametrize("kind", HelloKind)
def test_handshake_messages_out_of_turn_are_refused(kind: HelloKind) -> None:
    samples = {
        HelloKind.SERVER: server()._hello.encode(),
        HelloKind.CLIENT: client()._hello.encode(),
        HelloKind.SERVER_PROOF: Proof(HelloKind.SERVER_PROOF, b"m" * 32).encode(),
        HelloKind.CLIENT_PROOF: Proof(HelloKind.CLIENT_PROOF, b"m" * 32).encode(),
        HelloKind.WELCOME: Welcome(1).encode(),
        HelloKind.REFUSAL: Refusal(IncarnationError("no")).encode(),
    }
    for side, first in ((server(secret=SECRET), HelloKind.CLIENT), (client(secret=SECRET), HelloKind.SERVER)):
        if kind is first:
            continue
        with pytest.raises(HandshakeError):
            side.receive(samples[kind])
        assert side.peer is None
    new_server = server()
    new_server.receive(samples[HelloKind.CLIENT])
    with pytest.raises(HandshakeError):
        new_server.receive(samples[HelloKind.CLIENT])


@given(messages)
def test_hello_messages_are_decoded_as_encoded(message: hello.Message) -> None:
    encoded = message.encode()
    assert len(encoded) <= hello.BODY_MAX
    assert hello.decode_hello(encoded) == message
    with pytest.raises(HandshakeError):
        hello.decode_hello(encoded[:-1])


def test_reasons_of_refusals_are_decoded_as_encoded() -> None:
    for error in hello.REASONS.values():
        decoded = hello.decode_hello(Refusal(error("why " * 1000)).encode())
        assert isinstance(decoded, Refusal) and type(decoded.error) is error and str(decoded.error).startswith("why")


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda k, b: hello.MAGIC + bytes((k,)) + b, st.integers(0, 9), st.binary(max_size=300)),
    )
)
def test_arbitrary_bytes_of_a_hello_are_refused(body: bytes) -> None:
    for side in (server(), server(secret=SECRET), client(), client(secret=SECRET)):
        try:
            side.receive(body)
        except HandshakeError:
            continue


@given(messages, st.data())
def test_flipped_bytes_of_a_hello_are_decoded_or_refused(message: hello.Message, data: st.DataObject) -> None:
    body = bytearray(message.encode())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        hello.decode_hello(bytes(body))
    except HandshakeError as error:
        assert str(error)


def test_secrets_are_not_shown() -> None:
    assert "bytes" not in repr(SECRET) and repr(SECRET) == "<Secret>"
    for copier in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="Secret"):
            copier(SECRET)
    with pytest.raises(InvalidArgumentError, match="16 bytes") as refused:
        Secret(b"short")
    assert "short" not in str(refused.value)


def test_identities_of_a_hello_are_bounded() -> None:
    for wrong in ({"node": "x" * 256}, {"cluster": "\u00e9" * 128}, {"incarnation": b"short"}):
        with pytest.raises(InvalidArgumentError):
            NodeIdentity(**wrong)  # type: ignore[arg-type]
    longest = NodeIdentity(node="n" * 255, cluster="c" * 255, service="s" * 255)
    first, other = server(longest), client(longest)
    greet(first, other)
    assert other.peer is not None and other.peer.identity == longest


def test_hello_layouts_match_format_md() -> None:
    text = Path(_native.__file__).with_name("FORMAT.md").read_text().split("## Hello")[1]
    sizes = {match[1]: struct.calcsize(match[1]) for match in re.finditer(r"`(>[0-9a-zA-Z]+)`", text)}
    for layout in (hello._SERVER, hello._CLIENT, hello._PROOF, hello._WELCOME, hello._REFUSAL):
        assert layout.format in sizes
    assert f"| {hello._SERVER.size} | | names" in text and f"| {hello._CLIENT.size} | | names" in text
    assert f"at most {hello.BODY_MAX} bytes" in text and hello.MAGIC.decode() in text


@pytest.mark.parametrize(
    ("server_keys", "client_keys", "fits"),
    [
        ("a", "ab", True),
        ("ba", "ab", True),
        ("b", "ab", True),
        ("ba", "b", True),
        ("ba", "a", False),
        ("a", "b", False),
    ],
)
def test_two_secrets_hold_while_one_is_changed(server_keys: str, client_keys: str, fits: bool) -> None:
    """A client that knows both gets in, whichever of them the server shows."""
    keys = {name: name.encode() * 16 for name in "ab"}
    new_server = server(secret=Secret(*(keys[name] for name in server_keys)))
    other = client(secret=Secret(*(keys[name] for name in client_keys)))
    if fits:
        greet(new_server, other)
        assert new_server.peer is not None and other.peer is not None
    else:
        with pytest.raises(AuthenticationError, match="server does not know"):
            greet(new_server, other)


def test_a_secret_that_is_replaced_holds_for_greetings_to_come() -> None:
    known = Secret(b"a" * 16)
    with pytest.raises(InvalidArgumentError):
        known.replace(b"b" * 16, b"short")
    greet(server(secret=known), client(secret=Secret(b"a" * 16)))
    known.replace(b"b" * 16)
    greet(server(secret=known), client(secret=Secret(b"b" * 16)))
    assert Secret.of(known) is known


def test_secrets_of_a_file() -> None:
    old, new = b"o" * 16, b"n" * 16
    secret = parse_secret(new + b"\r\n" + old + b"\n\n")
    for key in (old, new):
        greet(server(secret=Secret(key)), client(secret=secret))
    noise = b"\xff\n" + bytes(range(16))
    greet(server(secret=Secret(noise)), client(secret=parse_secret(noise)))
