"""What two sides know beyond their versions, and requests that one of them does not know."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import ReplyStatus, Request, RequestKind, decode_reply, encode_request
from pyreplog.errors import HandshakeError, InvalidArgumentError, UnsupportedRequestError
from pyreplog.ha.node_context import SERVICE
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import AskStatus, RefusalCode, Refuse, StatusReply
from pyreplog.metadata.memory import MemoryStore
from pyreplog.net import hello
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import ClientHandshake, NodeIdentity, Secret, ServerHandshake
from pyreplog.net.hello import ClientHello, Welcome
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import parse_address
from pyreplog.topic.model.wire.protocol import CHECKED, ERROR, OK, Call, decode_fault
from pyreplog.topic.model.wire.protocol import encode_request as encode_topic_request
from tests.bookie.asking import ANY_SPACE, Facts
from tests.ha.nodes import Lab
from tests.net.peers import RawClient, ask
from tests.topic.remoting import serve_cluster

LIMITS = Limits()


def greeted(
    server: frozenset[str], client: frozenset[str], *, secret: Secret | None = None, server_version: int = 2
) -> tuple[ServerHandshake, ClientHandshake]:
    server_handshake = ServerHandshake(
        NodeIdentity(features=server, version=server_version), LIMITS, b"s" * 32, secret=secret
    )
    other = ClientHandshake(NodeIdentity(features=client), NodeIdentity(), LIMITS, b"c" * 32, secret=secret)
    to_client = server_handshake.begin()
    while to_client:
        to_server = [body for message in to_client for body in other.receive(message)]
        to_client = [body for message in to_server for body in server_handshake.receive(message)]
    return server_handshake, other


@pytest.mark.parametrize("secret", [None, Secret(b"a secret of sixteen bytes or more")], ids=["plain", "secret"])
def test_both_sides_learn_what_both_know(secret: Secret | None) -> None:
    first, other = greeted(frozenset({"a", "b", "c-1"}), frozenset({"b", "c-1", "d"}), secret=secret)
    assert first.peer is not None and other.peer is not None
    assert first.peer.features == other.peer.features == {"b", "c-1"}


def test_no_features_are_agreed_with_a_server_of_an_older_version() -> None:
    first, other = greeted(frozenset({"a"}), frozenset({"a"}), server_version=1)
    assert first.peer is not None and other.peer is not None
    assert first.peer.features == other.peer.features == frozenset()


def test_a_server_cannot_choose_a_feature_that_was_not_offered() -> None:
    server = ServerHandshake(NodeIdentity(), LIMITS, b"s" * 32)
    client = ClientHandshake(NodeIdentity(features=frozenset({"a"})), NodeIdentity(), LIMITS, b"c" * 32)
    server.receive(client.receive(server.begin()[0])[0])
    with pytest.raises(HandshakeError, match="not offered"):
        client.receive(Welcome(2, frozenset({"a", "b"})).encode())


def test_bytes_behind_the_last_field_are_skipped() -> None:
    """A later version may append fields to every body."""
    first, other = greeted(frozenset({"a"}), frozenset({"a"}))
    server = ServerHandshake(NodeIdentity(features=frozenset({"a"})), LIMITS, b"s" * 32)
    client = ClientHandshake(NodeIdentity(features=frozenset({"a"})), NodeIdentity(), LIMITS, b"c" * 32)
    (said,) = client.receive(server.begin()[0] + b"of tomorrow")
    (welcome,) = server.receive(said + b"of tomorrow")
    assert client.receive(welcome + b"of tomorrow") == []
    assert (server.peer, client.peer) == (first.peer, other.peer)
    proof = hello.Proof(hello.HelloKind.CLIENT_PROOF, b"m" * 32)
    assert hello.decode_hello(proof.encode() + b"more") == proof
    refusal = hello.decode_hello(hello.Refusal(HandshakeError("why")).encode() + b"more")
    assert isinstance(refusal, hello.Refusal) and str(refusal.error) == "why"


def test_features_of_a_hello_are_bounded() -> None:
    many = [f"feature-{number}" for number in range(hello.FEATURES_MAX)]
    longest = NodeIdentity(
        node="n" * 255, cluster="c" * 255, service="s" * 255, features=frozenset(f"{n:032d}" for n in range(32))
    )
    body = ClientHandshake(longest, longest, LIMITS, b"c" * 32).receive(
        ServerHandshake(longest, LIMITS, b"s" * 32).begin()[0]
    )[0]
    assert len(body) < hello.BODY_MAX
    assert NodeIdentity(features=frozenset(many)).features == frozenset(many)
    for wrong in ([*many, "one-more"], ["A"], [""], ["x" * 33], ["ä"]):
        with pytest.raises(InvalidArgumentError, match="features"):
            NodeIdentity(features=frozenset(wrong))


def test_features_of_others_are_bounded_and_strange_names_are_skipped() -> None:
    plain = ClientHello(bytes(16), bytes(16), b"c" * 32, 1, 1, "", "", "")
    names = b"\x03\x01a\x02B!\x01b"
    actual_hello = hello.decode_hello(plain.encode() + names)
    assert actual_hello == dataclasses.replace(plain, features=frozenset({"a", "b"}))
    for wrong in (b"\x21" + b"\x01a" * 33, b"\x02\x01a", b"\x01\x05abc", b"\x01\x01\xff"):
        with pytest.raises(HandshakeError):
            hello.decode_hello(plain.encode() + wrong)


# ---- requests that are not known ------------------------------------------------------------------------------------


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[BookieNode]:
    config = BookieConfig.of({"segment_bytes": 1 << 20, **ANY_SPACE})
    with MemoryStore() as store:
        node = BookieNode(tmp_path / "b", "b", store, config, ledgers=Facts())
        yield node
        node.close()


def test_a_bookie_refuses_what_it_does_not_know_and_goes_on(bookie: BookieNode) -> None:
    host, _, port = bookie.address.rpartition(":")
    with Reactor() as reactor:
        channel = Channel(reactor, (host, int(port)))
        try:
            known = encode_request(Request(RequestKind.LAST, 7))
            for body in (
                b"\x63" + known[1:],
                b"\xff" * 48,
                b"\x00" + known[1:],
                b"\x63" + known[1:] + b"x" * 500,
                known[:1] + b"\x80" + known[2:],
            ):
                answer = ask(reactor, channel, body)
                assert isinstance(answer, memoryview)
                reply = decode_reply(answer)
                assert reply.status == ReplyStatus.UNSUPPORTED and b"upgrade the bookie" in bytes(reply.body)
                answer = ask(reactor, channel, known)
                assert isinstance(answer, memoryview)
                assert decode_reply(answer).status == ReplyStatus.OK
        finally:
            channel.close()


def test_a_topic_server_refuses_what_it_does_not_know_and_goes_on(tmp_path: Path) -> None:
    call = b"".join(bytes(part) for part in encode_topic_request(Call("", "topics", "{}")))
    checked = bytes((0x63 | CHECKED,)) + b"anything"
    checked += crc32c(checked).to_bytes(4, "big")
    with serve_cluster(tmp_path) as service, RawClient(service.server.server) as client:
        for number, body in enumerate((b"\x63anything", b"\x63", checked)):
            answer = client.request(2 * number, body)
            if body is checked:
                assert crc32c(answer[:-4]).to_bytes(4, "big") == answer[-4:]
                answer = answer[:-4]
            assert answer[0] == ERROR
            error, _ = decode_fault(WireReader("reply", memoryview(answer), 1))
            assert type(error) is UnsupportedRequestError and "upgrade the server" in str(error)
            assert client.request(2 * number + 1, call)[0] == OK
        client.send(99, checked[:-1] + b"!")  # damaged on its way: nobody knows what it was
        with pytest.raises((EOFError, ConnectionResetError)):
            client.reply()


def test_a_node_refuses_what_it_does_not_know_and_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack, Reactor() as reactor:
        node = Lab(tmp_path, stack).master("a")
        channel = Channel(reactor, parse_address(node.address), expected=NodeIdentity(service=SERVICE))
        stack.callback(channel.close)
        for _ in range(2):
            answer = ask(reactor, channel, b"\x63of tomorrow")
            assert isinstance(answer, memoryview)
            refusal = messages.decode(answer)
            assert isinstance(refusal, Refuse) and refusal.code == RefusalCode.VERSION and "upgrade" in refusal.text
            answer = ask(reactor, channel, bytes(messages.encode(AskStatus())))
            assert isinstance(answer, memoryview) and isinstance(messages.decode(answer), StatusReply)
