"""A server against clients of every kind: cut streams, garbage, floods, silence, slowness."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import socket
import struct
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.net.frame import encode, encode_header
from pyreplog.clock import ManualClock
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    DisconnectedError,
    FrameError,
    InvalidArgumentError,
    NotConnectedError,
    PeerError,
    PeerTimeoutError,
    SlowPeerError,
    TooManyConnectionsError,
)
from pyreplog.net import hello
from pyreplog.net.channel import Channel
from pyreplog.net.connection import INFLIGHT_FULL, QUEUE_FULL, Connection
from pyreplog.net.handshake import Peer, RefusedByPeerError, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.server_connection import REQUEST_BYTES, ServerConnection
from pyreplog.net.sockets import unacknowledged_s
from tests.net.peers import NODE, TIMEOUT_S, RawClient, Recorder, ask, call, forgotten, wait
from tests.ports import free_ports

SECRET = Secret(b"a secret of sixteen bytes or more")


def is_stuck(connection: Connection) -> bool:
    """It does not read before something of its queue has left, and the kernel takes nothing of that."""
    looking = select.poll()
    looking.register(connection._stream.fileno(), select.POLLOUT)
    return bool(connection.reasons & QUEUE_FULL) and not looking.poll(0)


def is_full(connection: Connection) -> bool:
    """It does not read before a request is answered."""
    return bool(connection.reasons & INFLIGHT_FULL)


def tick(reactor: Reactor, clock: ManualClock, seconds: float, step: float = 0.05) -> None:
    """Time passes, and is noticed."""
    for _ in range(round(seconds / step)):
        clock.advance(int(step * 1e6))
        rounds: list[None] = []
        reactor.call_later(0.0, lambda: rounds.append(None))  # noqa: B023  # not every round looks at timers
        wait(reactor, lambda: bool(rounds))  # noqa: B023
        reactor.call_soon(lambda: rounds.append(None))  # noqa: B023
        wait(reactor, lambda: len(rounds) == 2)  # noqa: B023


def test_a_server_answers_requests_of_any_size(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder()
    server = serve(handler, identity=NODE, secret=SECRET)
    channel = connect(server, expected=NODE, secret=SECRET)
    assert call(reactor, channel, b"hello") == b"hello"
    assert channel.peer is not None and channel.peer.identity == NODE and channel.connected
    assert handler.connections[0].peer.identity.cluster == "cluster"
    large = random.Random(1).randbytes(4_000_000)
    assert call(reactor, channel, large) == large
    wait(reactor, lambda: server.inflight_bytes == 0)


def test_replies_of_parts_from_another_thread(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    channel = connect(serve(handler))
    replies: list[Any] = []
    for i in range(3):
        channel.request(b"%d" % i, on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: len(handler.requests) == 3)

    def answer() -> None:
        for connection, correlation_id, body in reversed(handler.requests):
            assert isinstance(connection, ServerConnection)
            connection.reply(correlation_id, body, bytearray(b"-"), memoryview(body))

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    wait(reactor, lambda: len(replies) == 3)
    assert [bytes(reply) for reply in replies] == [b"2-2", b"1-1", b"0-0"]


@pytest.mark.parametrize("cut", [1, 5, 13, 100])
def test_a_stream_cut_anywhere_ends_its_connection_only(cut: int, reactor: Reactor, serve: Any) -> None:
    with RawClient(serve(Recorder())) as client:
        stream = b"".join(encode(i, b"%d" % i * 7) + encode(0, b"") for i in range(1, 20))
        for at in range(0, len(stream), cut):
            client.sock.sendall(stream[at : at + cut])
        replies = [client.reply() for _ in range(19)]
        assert replies == [(i, b"%d" % i * 7) for i in range(1, 20)]


def test_a_hello_cut_anywhere_and_requests_right_behind_it(reactor: Reactor, serve: Any) -> None:
    server = serve(Recorder())
    with RawClient(server) as model:
        pass
    del model
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as sock:
        greeting = hello.ClientHello(bytes(16), bytes(16), b"n" * 32, 1000, 60_000, "", "", "").encode()
        for byte in encode(-1, greeting) + encode(7, b"early"):
            sock.sendall(bytes((byte,)))
        received = b""
        while encode(7, b"early") not in received:
            received += sock.recv(1000)


# ---- what is no peer -------------------------------------------------------------------------------------------


def survives(reactor: Reactor, server: Server, channel: Any) -> None:
    assert call(reactor, channel, b"still here") == b"still here"
    assert server.inflight_bytes <= 10 + REQUEST_BYTES


GARBAGE = st.one_of(
    st.binary(max_size=2000),
    st.builds(encode, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300)),
    st.builds(lambda body: encode(-1, hello.MAGIC + body), st.binary(max_size=300)),
    st.builds(lambda o, s: struct.pack(">qI", o, s), st.integers(-2, 2), st.integers(0, 2**32 - 1)),
)


@pytest.fixture(scope="module")
def victim() -> Any:
    with Reactor() as reactor:
        reactor.start()
        with Server(reactor, Recorder(), limits=Limits(max_body_bytes=5000)) as server:
            yield reactor, server


@settings(max_examples=60, deadline=None)
@given(GARBAGE, st.booleans())
def test_arbitrary_bytes_on_the_port(victim: Any, garbage: bytes, greeted: bool) -> None:
    _, server = victim
    if greeted:
        with RawClient(server) as client:
            with contextlib.suppress(OSError):
                client.sock.sendall(garbage)
                client.sock.shutdown(socket.SHUT_WR)
            assert client.ended()
    else:
        # The server may have closed it already.
        with socket.create_connection(server.address, timeout=TIMEOUT_S) as sock, contextlib.suppress(OSError):
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                continue
    with RawClient(server) as other:
        assert other.request(1, b"still here") == b"still here"


def test_a_flood_of_garbage_while_others_are_served(seed: int, reactor: Reactor, serve: Any, connect: Any) -> None:
    server = serve(Recorder(), limits=Limits(max_body_bytes=100_000))
    channel = connect(server)
    draw = random.Random(seed)
    for _ in range(60):
        with socket.create_connection(server.address, timeout=TIMEOUT_S) as sock:
            try:
                sock.sendall(draw.randbytes(draw.randrange(1, 5000)))
            except ConnectionError:
                continue
        survives(reactor, server, channel)
    wait(reactor, lambda: len(server.connections) == 1 and not server.handshakes and server.refused >= 60)
    assert server.refused == 60


LIES = {
    "a body over the limit": (encode_header(1, 5001), FrameError, "5000"),
    "a negative size": (struct.pack(">qi", 1, -1), FrameError, "5000"),
    "a correlation id twice": (encode(1, b"a") + encode(2, b"b") + encode(1, b"c"), FrameError, "not in use"),
    "a negative correlation id": (encode(-2, b"a"), FrameError, "from 0"),
    "an end inside a frame": (encode(1, b"four")[:-1], DisconnectedError, "15 bytes into a frame"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_close_their_connection_only(lie: str, reactor: Reactor, serve: Any, connect: Any) -> None:
    stream, error, words = LIES[lie]
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(max_body_bytes=5000))
    channel = connect(server)
    wait(reactor, lambda: channel.connected)
    with RawClient(server) as client:
        with contextlib.suppress(OSError):
            client.sock.sendall(stream)
            client.sock.shutdown(socket.SHUT_WR)
        assert client.ended()
    wait(reactor, lambda: bool(handler.ends))
    assert type(handler.ends[0]) is error and words in str(handler.ends[0])
    wait(reactor, lambda: server.inflight_bytes == 0)
    handler.answer = bytes
    survives(reactor, server, channel)


def test_a_handler_that_raises_closes_one_connection(
    reactor: Reactor, serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(body: bytes) -> bytes:
        if body == b"bad":
            raise ZeroDivisionError
        return body

    handler = Recorder(answer)
    server = serve(handler)
    good, bad = connect(server), connect(server)
    assert call(reactor, good, b"x") == b"x"
    assert isinstance(ask(reactor, bad, b"bad"), DisconnectedError)
    assert type(handler.ends[0]) is PeerError and "ZeroDivisionError" in caplog.text
    assert call(reactor, good, b"y") == b"y"


def test_connections_beyond_the_limit_are_refused(reactor: Reactor, serve: Any, connect: Any) -> None:
    server = serve(Recorder(), limits=Limits(connections=2))
    first = connect(server)
    assert call(reactor, first, b"x") == b"x"
    with RawClient(server):
        with pytest.raises(RefusedByPeerError) as refused:
            RawClient(server)
        assert type(refused.value.error) is TooManyConnectionsError
        third = connect(server)
        assert isinstance(ask(reactor, third, b"x"), NotConnectedError)
        assert type(third.error) is TooManyConnectionsError
    wait(reactor, lambda: third.connected)
    assert call(reactor, third, b"x") == b"x"


def test_reset_of_a_refused_connection_does_not_disturb_the_server(reactor: Reactor, serve: Any, connect: Any) -> None:
    server = serve(Recorder(), limits=Limits(connections=1))
    with RawClient(server):
        gone = socket.create_connection(server.address)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()  # a reset
        wait(reactor, lambda: server.refused == 1)
    wait(reactor, lambda: not server.connections)
    assert call(reactor, connect(server), b"x") == b"x"


def test_without_descriptors_connections_wait_and_the_server_rests(
    reactor: Reactor, serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(Recorder())
    assert call(reactor, connect(server), b"before") == b"before"
    with socket.socket() as client:
        client.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(client.fileno())  # the lowest number that is free
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            client.connect_ex(server.address)
            wait(reactor, lambda: "no connection can be accepted" in caplog.text)
            assert reactor.drive(lambda: caplog.text.count("no connection can be accepted") > 1, 0.2) is False
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert call(reactor, connect(server), b"behind") == b"behind"


def silent(server: Server, count: int, address: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that say nothing."""
    return [
        socket.create_connection(server.address, timeout=TIMEOUT_S, source_address=(address, 0)) for _ in range(count)
    ]


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_silent_connections_make_room_for_clients_that_say_hello(
    secret: Secret | None, reactor: Reactor, serve: Any, connect: Any
) -> None:
    """Many more than there may be: the oldest of them make room, and who says hello is served at once."""
    limits = Limits(connections=5, pending_connections=10, pending_per_address=10, handshake_ms=1_000_000)
    server = serve(Recorder(), secret=secret, limits=limits)
    with contextlib.ExitStack() as stack:
        first = connect(server, secret=secret)
        assert call(reactor, first, b"x") == b"x"
        mute = [stack.enter_context(sock) for sock in silent(server, 60)]
        assert call(reactor, connect(server, secret=secret), b"x") == b"x"
        wait(reactor, lambda: server.handshakes == 60 - server.refused)
        assert server.refused >= 50 and len(server.connections) == 2
        for sock in mute[:50]:
            while sock.recv(1000):
                continue
        assert call(reactor, first, b"y") == b"y"


def test_silent_sockets_of_one_address_take_no_room_of_another(reactor: Reactor, serve: Any) -> None:
    """A slow peer says hello late, and still can, whatever comes from elsewhere."""
    limits = Limits(pending_connections=20, pending_per_address=15, handshake_ms=1_000_000)
    server = serve(Recorder(), limits=limits)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(sock) for sock in silent(server, 5, "127.0.0.2")]
        for _ in range(3):
            for sock in silent(server, 20):
                stack.enter_context(sock)
            wait(reactor, lambda: server.handshakes == 20)
        for sock in slow:  # none of these was closed
            sock.settimeout(TIMEOUT_S)
            assert sock.recv(1) == b"\xff"
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                while sock.recv(1000):
                    continue


# ---- time ------------------------------------------------------------------------------------------------------

PATIENCE = Limits(heartbeat_ms=1000, silence_ms=4000, stall_ms=3000, handshake_ms=2000, queued_bytes=1000)


def test_silent_peers_are_closed_and_live_ones_are_not(opened: Any) -> None:
    clock, handler = ManualClock(0), Recorder()
    reactor = opened.enter_context(Reactor(clock=clock))
    reactor.start()
    server = opened.enter_context(Server(reactor, handler, limits=PATIENCE))
    with RawClient(server) as silent, RawClient(server) as alive:
        wait(reactor, lambda: len(handler.connections) == 2)
        for i in range(6):
            tick(reactor, clock, 1.0)
            alive.send(0, b"")
            assert alive.request(i + 1, b"x") == b"x"
        assert [type(error) for error in handler.ends] == [PeerTimeoutError]
        assert silent.ended()
        assert len(server.connections) == 1


def test_a_peer_whose_machine_has_gone_is_found_out_also_while_nothing_is_read_from_it(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence says nothing then; that nobody acknowledges the heartbeats does."""
    unheard_s = [0.0]
    monkeypatch.setattr("pyreplog.net.connection.unacknowledged_s", lambda stream: unheard_s[0])
    clock, handler = ManualClock(0), Recorder()
    reactor = opened.enter_context(Reactor(clock=clock))
    reactor.start()
    server = opened.enter_context(Server(reactor, handler, limits=PATIENCE))
    with RawClient(server) as peer:
        wait(reactor, lambda: len(handler.connections) == 1)
        handler.connections[0].pause()
        tick(reactor, clock, 10.0, 0.25)
        assert not handler.ends and unacknowledged_s(handler.connections[0]._stream) < TIMEOUT_S
        unheard_s[0] = PATIENCE.silence_ms / 1000
        tick(reactor, clock, 1.0)
        assert [type(error) for error in handler.ends] == [PeerTimeoutError]
        assert peer.ended()


def test_unacknowledged_s_is_zero_without_unacknowledged_data() -> None:
    """Of data that a listener's backlog has taken; and of none."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        assert unacknowledged_s(sock) == 0.0
        sock.send(b"x")
        assert 0.0 <= unacknowledged_s(sock) < TIMEOUT_S


def test_heartbeats_keep_an_idle_connection(opened: Any) -> None:
    """Both sides on one clock, which passes ten times the silence that either accepts."""
    clock, handler = ManualClock(0), Recorder()
    reactor = opened.enter_context(Reactor(clock=clock))
    reactor.start()
    server = opened.enter_context(Server(reactor, handler, limits=PATIENCE))
    channel = opened.enter_context(Channel(reactor, server.address, limits=PATIENCE))
    wait(reactor, lambda: bool(handler.connections))
    for _ in range(40):
        received = handler.connections[0].received_bytes
        tick(reactor, clock, 1.0, 0.25)
        wait(reactor, lambda: handler.connections[0].received_bytes > received)  # noqa: B023
    assert channel.connected and not handler.ends


def test_a_hello_takes_its_time_only(opened: Any) -> None:
    clock = ManualClock(0)
    reactor = opened.enter_context(Reactor(clock=clock))
    reactor.start()
    server = opened.enter_context(Server(reactor, Recorder(), limits=PATIENCE))
    with socket.create_connection(server.address, timeout=TIMEOUT_S) as sock:
        wait(reactor, lambda: bool(server.handshakes))
        tick(reactor, clock, 2.5)
        wait(reactor, lambda: not server.handshakes and server.refused == 1)
        while sock.recv(1000):
            continue


def test_a_slow_reader_is_closed_and_costs_no_memory(opened: Any) -> None:
    clock = ManualClock(0)
    handler = Recorder(lambda body: b"r" * 100_000)
    reactor = opened.enter_context(Reactor(clock=clock))
    reactor.start()
    server = opened.enter_context(Server(reactor, handler, limits=PATIENCE))
    with RawClient(server) as slow, RawClient(server) as other:
        connection = handler.connections[0]
        sent = slow.flood((encode(i, b"q" * 1000) for i in range(100_000)), lambda: is_stuck(connection))
        assert len(handler.requests) < sent and connection.queued_bytes > 1000
        assert connection.queued_bytes < 64 << 20
        for _ in range(4):
            tick(reactor, clock, 1.0)
            other.send(0, b"")
        wait(reactor, lambda: bool(handler.ends))
        assert type(handler.ends[0]) is SlowPeerError
        assert other.request(1, b"x") == b"r" * 100_000


def test_half_open_and_reset_connections_end(reactor: Reactor, serve: Any) -> None:
    """A client that has closed its side gets no further than that; one that was reset neither."""
    handler = Recorder(answer=None)
    server = serve(handler)
    with RawClient(server) as client:
        client.send(1, b"asked")
        client.sock.shutdown(socket.SHUT_WR)
        wait(reactor, lambda: bool(handler.ends))
        assert type(handler.ends[0]) is DisconnectedError
        connection, correlation_id, _ = handler.requests[0]
        assert connection.reply(correlation_id, b"too late") is False  # type: ignore[attr-defined]
    client = RawClient(server)
    wait(reactor, lambda: len(handler.connections) == 2)
    handler.connections[1].pause()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()
    wait(reactor, lambda: len(handler.ends) == 2 and not server.connections)


# ---- back-pressure and fairness --------------------------------------------------------------------------------


def test_requests_in_flight_are_bounded_on_one_connection(reactor: Reactor, serve: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(connection_inflight_bytes=1 << 20))
    with RawClient(server) as client, RawClient(server) as other:
        body = b"q" * 100_000
        whole = client.flood((encode(i, body) for i in range(1000)), lambda: is_full(handler.connections[0]))
        flying = server.inflight_bytes
        assert 1 << 20 < flying <= (1 << 20) + (1 << 18) + len(body) + 10 * REQUEST_BYTES
        assert len(handler.requests) < whole
        other.send(1, b"other")
        wait(reactor, lambda: handler.requests[-1][2] == b"other")
        for answered in range(whole + 1):  # all but the one that was cut, and the other's
            wait(reactor, lambda: len(handler.requests) > answered)  # noqa: B023
            connection, correlation_id, _ = handler.requests[answered]
            assert connection.reply(correlation_id, b"r") is True  # type: ignore[attr-defined]
        wait(reactor, lambda: server.inflight_bytes == 0)


def test_small_requests_are_bounded_too(reactor: Reactor, serve: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(connection_inflight_bytes=100_000))
    with RawClient(server) as client:
        wait(reactor, lambda: bool(handler.connections))
        thousands = (b"".join(encode(k * 1000 + i, b"q") for i in range(1000)) for k in range(1000))
        client.flood(thousands, lambda: is_full(handler.connections[0]))
        assert len(handler.requests) < 100_000 // 200 + (1 << 18) // 13 + 2


def test_requests_in_flight_are_bounded_in_all(reactor: Reactor, serve: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(inflight_bytes=10_000))
    with RawClient(server) as raw_client, RawClient(server) as two:
        wait(reactor, lambda: len(handler.connections) == 2)
        raw_client.send(1, b"q" * 20_000)
        wait(reactor, lambda: len(handler.requests) == 1)
        two.send(1, b"waits")
        assert reactor.drive(lambda: len(handler.requests) > 1, 0.05) is False
        connection, correlation_id, _ = handler.requests[0]
        connection.forget(correlation_id)  # type: ignore[attr-defined]
        wait(reactor, lambda: len(handler.requests) == 2)
        assert handler.requests[1][2] == b"waits"


def test_the_bytes_of_a_reply_that_leaves_late_come_back(reactor: Reactor, serve: Any) -> None:
    """The replies wait in the server's queue until the client reads; only then are their requests paid for."""
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(inflight_bytes=10_000))
    with RawClient(server) as raw_client, RawClient(server) as two:
        wait(reactor, lambda: len(handler.connections) == 2)
        for turn in range(3):
            raw_client.send(turn, b"q" * 8_000)
            wait(reactor, lambda turn=turn: len(handler.requests) == 2 * turn + 1)
            connection, correlation_id, _ = handler.requests[-1]
            connection.reply(correlation_id, bytes(16 << 20))  # type: ignore[attr-defined]
            assert server.inflight_bytes >= 8_000, "it has not left"
            answer = threading.Thread(target=raw_client.reply)
            answer.start()
            wait(reactor, lambda: server.inflight_bytes == 0)
            answer.join(TIMEOUT_S)
            two.send(turn, b"q" * 9_000)
            wait(reactor, lambda turn=turn: len(handler.requests) == 2 * turn + 2)
            connection, correlation_id, _ = handler.requests[-1]
            connection.reply(correlation_id, b"")  # type: ignore[attr-defined]
            assert two.receive()[0] == turn


def test_the_bytes_of_a_lost_connection_come_back(reactor: Reactor, serve: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, limits=Limits(inflight_bytes=10_000))
    with RawClient(server) as raw_client, RawClient(server) as two:
        raw_client.send(1, b"q" * 20_000)
        wait(reactor, lambda: len(handler.requests) == 1)
        two.send(1, b"waits")
        raw_client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw_client.sock.close()
        wait(reactor, lambda: len(handler.requests) == 2)


def test_flooding_client_does_not_starve_another(reactor: Reactor, serve: Any) -> None:
    """For each reply to the quiet one, the other had a bounded number of requests read."""
    handler = Recorder(lambda body: b"ok")
    server = serve(handler)
    with RawClient(server) as flooder, RawClient(server) as quiet:
        stopping = threading.Event()

        def read() -> None:
            while not stopping.is_set():
                try:
                    flooder.receive()
                except (EOFError, OSError):
                    return

        def write() -> None:
            i = 0
            while not stopping.is_set():
                i += 1
                try:
                    flooder.sock.sendall(b"".join(encode(i * 100 + k, b"f" * 1000) for k in range(100)))
                except OSError:
                    return

        threads = [threading.Thread(target=target) for target in (read, write)]
        for thread in threads:
            thread.start()
        for i in range(1, 50):
            quiet.send(i, b"quiet")
            before = len(handler.requests)  # it lies at the server's, and waits for its turn
            assert quiet.reply() == (i, b"ok")
            bodies = [body for _, _, body in handler.requests[before:]]
            assert b"quiet" not in bodies or bodies.index(b"quiet") < 5000
        stopping.set()
        flooder.sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(TIMEOUT_S)


def test_a_paused_connection_delivers_requests_when_resumed(reactor: Reactor, serve: Any) -> None:
    handler = Recorder()
    with RawClient(serve(handler)) as client:
        wait(reactor, lambda: bool(handler.connections))
        handler.connections[0].pause()
        client.send(1, b"later")
        assert reactor.drive(lambda: bool(handler.requests), 0.02) is False
        handler.connections[0].resume()
        wait(reactor, lambda: bool(handler.requests))


class Hoarder:
    """A stream that takes all there is from its socket, as TLS does, and gives it away in small pieces."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._hoard = sock, b""
        self.fileno, self.sendmsg, self.recv, self.close = sock.fileno, sock.sendmsg, sock.recv, sock.close

    def recv_into(self, buffer: Any, /) -> int:
        with contextlib.suppress(BlockingIOError):
            self._hoard += self._sock.recv(1 << 20)
        if not self._hoard:
            raise BlockingIOError
        piece, self._hoard = self._hoard[:30], self._hoard[30:]
        buffer[: len(piece)] = piece
        return len(piece)

    def pending(self) -> int:
        return len(self._hoard)


def test_paused_connection_reads_data_that_epoll_does_not_report(reactor: Reactor) -> None:
    class Pausing(Recorder):
        pauses = 0

        def frames(self, connection: Any, batch: Any) -> None:
            super().frames(connection, batch)
            connection.pause()
            self.pauses += 1

    handler = Pausing(answer=None)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.sendall(b"".join(encode(i, b"%d" % i) for i in range(10, 30)))
        connection = Connection(reactor, Hoarder(ours), handler, Limits(), Peer(NODE, 1, 1000, 60.0, None))
        reactor.call_soon(connection.open)
        seen = 0
        while len(handler.requests) < 20:
            wait(reactor, lambda: handler.pauses > seen)  # noqa: B023
            seen = handler.pauses
            connection.resume()
        assert [i for _, i, _ in handler.requests] == list(range(10, 30))
        connection.close()
        wait(reactor, lambda: bool(handler.ends))
    free = Recorder(answer=None)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.sendall(b"".join(encode(i, b"%d" % i) for i in range(10, 30)))
        connection = Connection(reactor, Hoarder(ours), free, Limits(), Peer(NODE, 1, 1000, 60.0, None))
        reactor.call_soon(connection.open)
        wait(reactor, lambda: len(free.requests) == 20)
        connection.close()
        wait(reactor, lambda: bool(free.ends))


def test_drained_is_called_when_the_send_queue_is_empty(reactor: Reactor, serve: Any) -> None:
    handler = Recorder()
    with RawClient(serve(handler)) as client:
        wait(reactor, lambda: bool(handler.connections))
        connection = handler.connections[0]
        body = b"s" * (20 << 20)
        assert connection.send(encode_header(0, len(body)), body) is True
        assert connection.queued_bytes > 0 and handler.drains == 0
        assert client.reply() == (0, body)
        wait(reactor, lambda: handler.drains == 1 and connection.queued_bytes == 0)


# ---- the end ---------------------------------------------------------------------------------------------------


def test_drain_lets_replies_leave(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler, port=free_ports(1)[0])  # nobody else gets it
    channel = connect(server)
    replies: list[Any] = []
    channel.request(b"asked", on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: bool(handler.requests))
    connection, correlation_id, _ = handler.requests[0]
    body = b"r" * 3_000_000
    reactor.call_later(0.01, lambda: connection.reply(correlation_id, body))  # type: ignore[attr-defined]
    assert server.drain(TIMEOUT_S) is True
    wait(reactor, lambda: bool(replies))
    assert bytes(replies[0]) == body
    with pytest.raises(ClosedError):
        server.drain(1.0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, timeout=TIMEOUT_S)


def test_drain_does_not_wait_for_ever(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    server = serve(handler)
    channel = connect(server)
    replies: list[Any] = []
    channel.request(b"asked", on_reply=replies.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: bool(handler.requests))
    assert server.drain(0.02) is False
    wait(reactor, lambda: bool(replies))
    assert type(replies[0]) is DisconnectedError


def test_garbage_collected_server_emits_a_resource_warning(reactor: Reactor) -> None:
    kept = [Server(reactor, Recorder(), port=free_ports(1)[0])]
    address = kept[0].address
    with RawClient(kept[0]) as client:
        forgotten(reactor, kept, "unclosed server")
        assert client.ended()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=TIMEOUT_S)


def test_a_closed_reactor_ends_its_servers() -> None:
    reactor, handler = Reactor(), Recorder()
    reactor.start()
    server = Server(reactor, handler)
    with RawClient(server) as client:
        wait(reactor, lambda: bool(handler.connections))
        reactor.close()
        server.close()
        assert client.ended()
    assert [type(error) for error in handler.ends] == [ClosedError]


def test_a_server_at_an_impossible_address_is_refused(reactor: Reactor, serve: Any) -> None:
    server = serve(Recorder())
    with pytest.raises(OSError):
        Server(reactor, Recorder(), port=server.address[1])
    with pytest.raises(InvalidArgumentError, match="no address"):
        Server(reactor, Recorder(), host="no.such.host.invalid")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 0},
        {"connections": True},
        {"silence_ms": 1000},
        {"stall_ms": 0},
        {"handshake_ms": "1"},
        {"x": 1},
    ],
)
def test_impossible_limits_of_a_server_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits.of(wrong)
