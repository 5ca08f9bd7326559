"""Clients send requests that are too many or impossible: a topic server goes on to serve other clients."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.errors import NotConnectedError
from pyreplog.origins.origin import Origin, OriginEntry
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.model.wire.protocol import (
    AcknowledgeRange,
    Call,
    Fetch,
    Flow,
    OpenOrigin,
    Request,
    Seek,
    Subscribe,
    encode_request,
)
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server import admin_calls
from tests.net.peers import RawClient
from tests.topic.remoting import PLAIN, receive, serve_cluster
from tests.waiting import PATIENCE_S, until


@contextmanager
def black_holes(count: int) -> Iterator[list[str]]:
    """Yield addresses of servers that accept connections and never answer, as a stopped process does."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


EXTREMES = [-(1 << 63), -1, 0, 1, 2, (1 << 31) - 1, (1 << 32) - 1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1]
SUBSCRIBE = Subscribe(1, 0, False, "earliest", "t", "s", "c", "")


def name(text: str) -> bytes:
    return struct.pack(">B", len(text)) + text.encode()


def called(call: str, arguments: object) -> bytes:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return b"\x10" + name("t") + name(call) + struct.pack(">I", len(text)) + text.encode()


def hostile() -> Iterator[bytes]:
    """Yield requests with extreme numbers or malformed texts, as bytes, since no encoder would produce them."""
    for first, other in itertools.product(EXTREMES, EXTREMES):
        yield struct.pack(">BIIqq", 9, 1, 0, first, other)  # ACKNOWLEDGE_RANGE
        yield struct.pack(">BqqI", 15, first, other, 1) + name("t")  # READ
        yield struct.pack(">BIqIq", 11, 1, first, 1, other)  # NACK
    for first in EXTREMES:
        low = first % (1 << 32)
        yield struct.pack(">BII", 6, 1, low)  # FLOW
        yield struct.pack(">BIIIq", 8, 1, 0, 1, first)  # ACKNOWLEDGE
        yield struct.pack(">BIIIq", 8, 1, 0, low, 0)
        yield struct.pack(">BIIq", 10, 1, 0, first)  # ACKNOWLEDGE_CUMULATIVE
        yield struct.pack(">BIIq", 10, 1, low, 0)
        yield struct.pack(">BI", 7, low)  # FETCH of a consumer that does not exist
        for kind in range(5):
            yield struct.pack(">BIBq", 13, 1, kind, first)  # SEEK
        for start in (first, {"time_us": first}):
            yield called("position", {"start": start})
            yield called("seek", {"subscription": "s", "start": start})
        yield called("skip", {"subscription": "s", "messages": first})
        yield called("skip_to", {"subscription": "s", "offset": first, "token": None})
        yield called("configure", {"settings": {"retention_ms": first}})
        yield called("create_subscription", {"subscription": "x", "start": first, "properties": {}, "settings": {}})
    for text in (
        "NaN",
        "[",
        "null",
        "[" * 100_000,
        '{"start": NaN}',
        '{"start": true}',
        '{"start": {"time_us": 1e300}}',
    ):
        yield called("position", text)
    for one, other in itertools.product(EXTREMES, EXTREMES):
        yield struct.pack(">BIqBI16s", 20, 1, one, 1, other % (1 << 32), bytes(16)) + name("t") + name("x") + bytes(4)
        yield struct.pack(">BIBIIIqqB", 21, 1, 0, 1, 3, other % (1 << 32), one, other, 0) + b"abc"
        yield struct.pack(">BIBqqBI", 21, 1, 1, one, other, 3, 0)
    for kind in range(22):
        yield bytes((kind,))


def encoded(request: Request) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request))


def test_one_client_does_not_starve_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of the client block; those that have not begun when it leaves are dropped."""
    begun, may_end = [], threading.Event()

    def block(_: Any) -> str:
        begun.append(1)
        assert may_end.wait(PATIENCE_S)
        return "[]"

    monkeypatch.setitem(admin_calls._CLIENT_CALLS, "topics", block)
    with serve_cluster(tmp_path) as service:
        try:
            with RawClient(service.server.server) as greedy:
                for number in range(500):
                    greedy.send(number, encoded(Call("", "topics", "{}")))
                until(lambda: begun)
                service.client().topic("honest", **PLAIN).publish(b"one")
            service.client().topic("honest").publish(b"two")
            until(lambda: service.server.service.calls[1] == 0)
        finally:
            may_end.set()
        assert service.client().topics() == [] and len(begun) < 20


def test_servers_that_say_nothing_hold_a_call_for_its_time_only() -> None:
    """This holds for any number of such servers, also when they are known to be silent."""
    with black_holes(4) as addresses, connect(f"pyreplog://{','.join(addresses)}", timeout=2.0) as client:
        for call in (lambda: client.topic("t"), client.topics):
            began = time.monotonic()
            with pytest.raises(NotConnectedError):
                call()
            assert time.monotonic() - began < 7.0  # it would be 8 s if each server took the whole time-out


def test_servers_that_say_nothing_leave_time_for_the_one_that_answers(tmp_path: Path) -> None:
    with serve_cluster(tmp_path) as service, black_holes(2) as addresses:
        client = service.client(",".join([*addresses, service.server.address]), timeout=6.0)
        client.topic("t", **PLAIN).publish(b"value")


def test_any_numbers_are_answered_or_end_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other clients are served, and no step of the server fails."""
    with serve_cluster(tmp_path) as service:
        topic = service.client().topic("t", **PLAIN)
        for number in range(5):
            topic.publish(b"%d" % number)
        peer = None
        for number, body in enumerate(hostile(), 3):
            if peer is None:
                peer = RawClient(service.server.server)
                assert peer.request(0, encoded(SUBSCRIBE))[0] == 0
                assert peer.request(1, encoded(Flow(1, 10)))[0] == 0
                peer.request(2, encoded(Fetch(1)))
            try:
                peer.send(number, body)
                assert peer.reply()[0] == number
            except (EOFError, ConnectionError):
                peer.sock.close()
                peer = None
        if peer is not None:
            peer.sock.close()
        assert topic.publish(b"end") == 5
        with topic.subscribe("other", start="earliest") as consumer:
            assert receive(consumer, 6)[-1] == b"end"
    assert "raised" not in caplog.text and "failed" not in caplog.text


def test_an_empty_range_of_acknowledgements_is_accepted(tmp_path: Path) -> None:
    """This holds as well when all messages are known and acknowledged."""
    with serve_cluster(tmp_path) as service:
        topic = service.client().topic("t", **PLAIN)
        for number in range(5):
            topic.publish(b"%d" % number)
        durable = encoded(SUBSCRIBE._replace(durable=True))
        with RawClient(service.server.server) as peer:
            assert peer.request(0, durable)[0] == 0
            assert peer.request(1, encoded(Seek(1, "latest")))[0] == 0
        with RawClient(service.server.server) as peer:
            assert peer.request(0, durable)[0] == 0
            for number, start in enumerate((0, 2, 5), 1):
                assert peer.request(number, encoded(AcknowledgeRange(1, 0, start, start)))[0] == 0


def replicated(first: int, end: int, messages: int, value: bytes, gap: tuple[int, int] | None) -> bytes:
    """Return a REPLICATE of one entry, with a gap before it and one after it."""
    gaps = b"" if gap is None else struct.pack(">qqB", *gap, 2)
    behind = struct.pack(">BqqB", 1, first, end, 3) if end else b"\0"
    entry = struct.pack(">IIIqqB", 1, len(value), messages % (1 << 32), first, 0, len(gaps) // 17)
    return struct.pack(">BI", 21, 1) + behind + entry + gaps + value


def test_entries_of_an_origin_that_cannot_be_are_not_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each request is answered or ends the connection; the stored entries of the origin stay, and replication goes on."""
    good = encode_messages([b"one", b"two"])
    with serve_cluster(tmp_path) as there:
        topic = there.client().topic("t", ensemble=1, durability="synced", retention_bytes=None)
        owned = there.cluster.topic("t")
        assert isinstance(owned, Topic)
        origin, session = Origin(bytes(16), "x"), 0
        bodies = [
            replicated(first, end, messages, value, gap)
            for first, end in itertools.product((-1, 0, 2, (1 << 62) - 1, 1 << 62), (0, 1, (1 << 62) - 1))
            for messages in (0, 1, 3, 1 << 31)
            for value in (b"", b"x" * 50, good, good[:-1], good + b"!")
            for gap in (None, (0, 2), (2, 1), (-1, 1))
        ]
        peer = None
        for number, body in enumerate(bodies, 2):
            if peer is None:
                peer, session = RawClient(there.server.server), session + 1
                assert peer.request(1, encoded(OpenOrigin(1, session, False, 0, origin.cluster, "t", "x", "")))[0] == 0
            try:
                peer.send(number, body)
                assert peer.reply()[0] == number
            except (EOFError, ConnectionError):
                peer.sock.close()
                peer = None
        if peer is not None:
            peer.sock.close()
        stored = owned.origins.open(origin, session + 1).result(PATIENCE_S).stored
        assert topic.publish(b"end") == 0 == stored
        entry = OriginEntry(good, 2, 0, 0)
        assert owned.origins.replicate(origin, session + 1, [entry]).result(PATIENCE_S) == 2
    assert "raised" not in caplog.text and "failed" not in caplog.text
