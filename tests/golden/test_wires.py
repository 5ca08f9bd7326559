"""Builds that were recorded, as clients and as servers, talk to the present one; what they ask is understood."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import Reply, decode_reply, decode_request, encode_reply, encode_request
from pyreplog.ha.protocol import messages
from pyreplog.net import hello
from pyreplog.net.handshake import ClientHandshake, Secret, ServerHandshake
from pyreplog.net.hello import HelloKind
from pyreplog.topic.model.wire import protocol
from tests.golden.wires import (
    CLIENT_NONCE,
    LIMITS,
    SECRET,
    SERVER_NONCE,
    SERVICES,
    feature_replies,
    feature_requests,
    identities,
)

RECORDED: dict[int, dict[str, Any]] = {
    int(path.stem.removeprefix("wire-v")): json.loads(path.read_text())
    for path in sorted(Path(__file__).parent.glob("wire-v*.json"))
}
SECRETS = pytest.mark.parametrize("secret", [None, Secret(SECRET)], ids=["plain", "secret"])
SERVICE = pytest.mark.parametrize("service", SERVICES)
VERSION = pytest.mark.parametrize("version", RECORDED)


def test_recorded_wires_of_the_present_version_exist() -> None:
    assert {1, 2, hello.VERSION} <= RECORDED.keys()


def recorded_messages(version: int, service: str, secret: Secret | None, side: str) -> list[bytes]:
    exchange = RECORDED[version]["hello" if secret is None else "hello with a secret"][service]
    return [bytes.fromhex(body) for who, body in exchange if who == side]


def strict(body: bytes) -> None:
    """As a build of hello version 1 reads it: nothing may follow the last field."""
    forms = {
        1: (">8sBBHH16s32sIIQ", 3),
        2: (">8sBHH16s16s32sII", 3),
        3: (">8sB32s", 0),
        4: (">8sB32s", 0),
        5: (">8sBH", 0),
    }
    form, names = forms[body[8]]
    at = struct.calcsize(form)
    for _ in range(names):
        at += 1 + body[at]
    assert at == len(body)


@VERSION
@SERVICE
@SECRETS
def test_a_recorded_client_is_served(version: int, service: str, secret: Secret | None) -> None:
    server = ServerHandshake(identities(service)[0], LIMITS, SERVER_NONCE, secret=secret)
    (first,) = server.begin()
    client_hello = recorded_messages(version, service, secret, "client")[0]
    answers = server.receive(client_hello)
    if secret is not None:
        secret.check(hello.decode_hello(answers[0]), first, client_hello)  # type: ignore[arg-type]
        strict(answers[0])
        answers = server.receive(secret.proof(HelloKind.CLIENT_PROOF, first, client_hello).encode())
    peer = server.peer
    assert peer is not None and peer.features == frozenset()
    assert peer.version == hello.decode_hello(client_hello).version  # type: ignore[union-attr]
    if version == 1:
        strict(first)
        strict(answers[0])


@VERSION
@SERVICE
@SECRETS
def test_a_recorded_server_is_used(version: int, service: str, secret: Secret | None) -> None:
    server, mine = identities(service)
    client = ClientHandshake(mine, server, LIMITS, CLIENT_NONCE, secret=secret)
    first, *others = recorded_messages(version, service, secret, "server")
    (client_hello,) = client.receive(first)
    if version == 1:
        strict(client_hello)
    if secret is not None:
        client.receive(secret.proof(HelloKind.SERVER_PROOF, first, client_hello).encode())
    client.receive(others[-1])
    peer = client.peer
    assert peer is not None and peer.version == hello.decode_hello(first).version  # type: ignore[union-attr]
    assert peer.identity.node == "n1" and peer.features == frozenset()


@SERVICE
@SECRETS
def test_present_build_sends_the_recorded_hello(service: str, secret: Secret | None) -> None:
    from tests.golden.wires import record_hello

    exchange = RECORDED[hello.VERSION]["hello" if secret is None else "hello with a secret"][service]
    assert record_hello(service, secret) == exchange


@VERSION
def test_recorded_messages_are_understood(version: int) -> None:
    recorded = {
        name: [bytes.fromhex(body) for body in bodies]
        for name, bodies in RECORDED[version].items()
        if isinstance(bodies, list)
    }
    for body in recorded["bookie requests"]:
        assert encode_request(decode_request(memoryview(body))) == body
    for body in recorded["bookie replies"]:
        reply = decode_reply(memoryview(body))
        assert encode_reply(reply) + bytes(reply.body) == body
    for body in recorded["topic requests"]:
        request = protocol.decode_request(memoryview(body))
        assert b"".join(bytes(part) for part in protocol.encode_request(request)) == body
    for body in recorded["replication"]:
        assert bytes(messages.encode(messages.decode(body))) == body
    assert all(len(bodies) >= 6 for bodies in recorded.values())


def test_recorded_messages_of_features_are_understood() -> None:
    recorded = json.loads(Path(__file__).with_name("features-wire.json").read_text())
    requests = [decode_request(memoryview(bytes.fromhex(body))) for body in recorded["bookie requests"]]
    assert requests == feature_requests()
    assert [encode_request(request).hex() for request in requests] == recorded["bookie requests"]
    for request, body, holdings in zip(requests[-2:], recorded["holdings"], feature_replies(), strict=True):
        reply = Reply(0, request.ledger, request.first, request.last, body=bytes.fromhex(body))
        assert Holdings.decode(request, reply) == holdings
        assert holdings.encode() == reply.body
