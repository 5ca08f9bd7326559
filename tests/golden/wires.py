"""Writes tests/golden/wire-v<version>.json: what a build says on its wires, byte for byte, in hexadecimal; and
features-wire.json, with requests that came later as features of the hello.

As make.py: once for a new version of the hello, or for a new floor of compatibility (docs/compatibility.md). Old files
are never changed: test_wires.py lets the builds that they were recorded from talk to the present one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyreplog.bookie.holdings import Holdings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request, RequestKind, encode_reply, encode_request
from pyreplog.ha.protocol import messages
from pyreplog.net import hello
from pyreplog.net.handshake import ClientHandshake, NodeIdentity, Secret, ServerHandshake
from pyreplog.net.limits import Limits
from pyreplog.topic.model.wire import protocol

SECRET = b"a secret of the golden hello"
SERVER_NONCE, CLIENT_NONCE = b"s" * 32, b"c" * 32
LIMITS = Limits(max_body_bytes=1 << 20, silence_ms=12_000)
SERVICES = {"bookie": hello.VERSION, "topics": protocol.VERSION, "replication": hello.VERSION}


def identities(service: str) -> tuple[NodeIdentity, NodeIdentity]:
    """A server's, and what a client says of itself."""
    extended: dict[str, Any] = {"extended_from": protocol.EXTENDED_FROM} if service == "topics" else {}
    version = SERVICES[service]
    server = NodeIdentity(node="n1", incarnation=b"i" * 16, cluster="c", service=service, version=version, **extended)
    return server, NodeIdentity(node="me", incarnation=b"m" * 16, version=version, **extended)


def record_hello(service: str, secret: Secret | None) -> list[list[str]]:
    """[side, body] in the order in which they are said."""
    server_identity, client_identity = identities(service)
    server = ServerHandshake(server_identity, LIMITS, SERVER_NONCE, secret=secret)
    client = ClientHandshake(client_identity, server_identity, LIMITS, CLIENT_NONCE, secret=secret)
    said: list[list[str]] = []
    to_client = server.begin()
    while to_client:
        said += [["server", body.hex()] for body in to_client]
        to_server = [body for message in to_client for body in client.receive(message)]
        said += [["client", body.hex()] for body in to_server]
        to_client = [body for message in to_server for body in server.receive(message)]
    return said


def bookie_requests() -> list[bytes]:
    key = b"k" * 16
    return [
        encode_request(Request(RequestKind.ADD, 7, 3, 4, key, 5)),
        encode_request(Request(RequestKind.READ, 7, 3, 9, key, 2, 1 << 20, 3, 2)),
        encode_request(Request(RequestKind.LAST, 7, key=key, flags=2)),
        encode_request(Request(RequestKind.SET_LAC, 7, 0, 9, key, 1)),
        encode_request(Request(RequestKind.WAIT_LAC, 7, 0, 9, limit=500)),
        encode_request(Request(RequestKind.STATUS)),
    ]


def feature_requests() -> list[Request]:
    """Of bookies, what is a feature and not in every bookie of the version."""
    key = b"k" * 16
    return [
        Request(RequestKind.ADD, 7, 3, 4, key, Flag.COPY),
        Request(RequestKind.HOLDINGS, 7, 3, 900, limit=1 << 20),
        Request(RequestKind.HOLDINGS, 7, 3, 900, limit=0, step=5, run=2),
    ]


def feature_replies() -> list[Holdings]:
    """Bodies of replies to the last two."""
    return [Holdings(6, 1 << 63, (range(3, 7), range(10, 12))), Holdings(3, 5, (range(4, 9), range(18, 19)))]


def bookie_replies() -> list[bytes]:
    return [encode_reply(Reply(status, 7, 3, 4, 9, b"why")) + b"why" for status in list(ReplyStatus)[:9]]


def main() -> None:
    from tests.ha.test_protocol import SAMPLES
    from tests.topic.test_remote_protocol import REQUESTS, body_of

    whole = {
        "hello": {name: record_hello(name, None) for name in SERVICES},
        "hello with a secret": {name: record_hello(name, Secret(SECRET)) for name in SERVICES},
        "bookie requests": [body.hex() for body in bookie_requests()],
        "bookie replies": [body.hex() for body in bookie_replies()],
        "topic requests": [body_of(request).hex() for request in REQUESTS],
        "replication": [bytes(messages.encode(sample)).hex() for sample in SAMPLES],
    }
    path = Path(__file__).with_name(f"wire-v{hello.VERSION}.json")
    path.write_text(json.dumps(whole, indent=1) + "\n")
    features = {
        "bookie requests": [encode_request(request).hex() for request in feature_requests()],
        "holdings": [holdings.encode().hex() for holdings in feature_replies()],
    }
    Path(__file__).with_name("features-wire.json").write_text(json.dumps(features, indent=1) + "\n")


if __name__ == "__main__":
    main()
