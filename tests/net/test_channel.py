"""A channel: order, deadlines, lost connections, servers that are stopped, killed and started again."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from pyreplog._native.net.frame import encode
from pyreplog.errors import (
    AuthenticationError,
    ClosedError,
    DisconnectedError,
    IncarnationError,
    InvalidArgumentError,
    NotConnectedError,
    OutcomeUnknownError,
    PeerTimeoutError,
    WrongClusterError,
)
from pyreplog.net import dialer
from pyreplog.net.backoff import Backoff
from pyreplog.net.channel import Channel
from pyreplog.net.handshake import NodeIdentity, Secret
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from tests.net.peers import NODE, TIMEOUT_S, Recorder, ask, call, forgotten, wait
from tests.ports import free_ports

SECRET = Secret(b"a secret of sixteen bytes or more")

ECHO = """
import sys
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from tests.net.peers import Recorder
with Reactor() as reactor, Server(reactor, Recorder(lambda body: None if body == b"held" else body)) as server:
    print(server.address[1], flush=True)
    reactor.run()
"""


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """An echo server in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, ("127.0.0.1", int(process.stdout.readline()))
        process.kill()


def test_requests_leave_in_order(reactor: Reactor, serve: Any, connect: Any) -> None:
    """Those made before the connection is there, and those made after, from several threads."""
    handler = Recorder()
    channel = connect(serve(handler))
    replies: list[Any] = []

    def ask_many(k: int) -> None:
        for i in range(200):
            channel.request(b"%d %d" % (k, i), on_reply=replies.append, timeout=TIMEOUT_S)

    threads = [threading.Thread(target=ask_many, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(reactor, lambda: len(replies) == 600)
    for k in range(3):
        mine = [body for _, _, body in handler.requests if body.startswith(b"%d " % k)]
        assert mine == [b"%d %d" % (k, i) for i in range(200)]
    ids = [correlation_id for _, correlation_id, _ in handler.requests]
    assert ids == sorted(ids)


def test_a_channel_is_whole_before_its_reactor_connects_it(
    reactor: Reactor, serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the reactor may run a call before the thread that asked for it goes on."""
    address = serve(Recorder())
    with monkeypatch.context() as patched:
        patched.setattr(Reactor, "call_soon", lambda self, call: call())
        channel = connect(address)
    wait(reactor, lambda: channel.connected)


def test_a_request_without_a_reply_times_out(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    channel = connect(serve(handler))
    wait(reactor, lambda: channel.connected)  # else it is not sent in time
    late: list[Any] = []
    channel.request(b"x", on_reply=late.append, timeout=0.01)
    channel.request(b"y", on_reply=late.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: len(late) == 1)
    assert type(late[0]) is PeerTimeoutError and isinstance(late[0], OutcomeUnknownError)
    wait(reactor, lambda: len(handler.requests) == 2)
    for connection, correlation_id, body in handler.requests:
        connection.reply(correlation_id, body)  # type: ignore[attr-defined]
    wait(reactor, lambda: len(late) == 2 and channel.unknown_replies == 1 and channel.inflight == 0)
    assert bytes(late[1]) == b"y"


def test_deadlines_are_looked_at_by_one_timer(reactor: Reactor, serve: Any, connect: Any) -> None:
    """However often an earlier one comes: who waits for long is there all the time."""
    channel = connect(serve(Recorder(answer=None)))
    wait(reactor, lambda: channel.connected)
    outcomes: list[Any] = []
    channel.request(b"long", on_reply=outcomes.append, timeout=TIMEOUT_S * 60)
    before = len(reactor._timers._wheel)
    for number in range(1, 31):
        channel.request(b"short", on_reply=outcomes.append, timeout=0.001)
        wait(reactor, lambda: len(outcomes) == number)  # noqa: B023
        wait(reactor, lambda: channel.requests.check_us - reactor.clock.monotonic_us() > 1e6 * TIMEOUT_S)
    assert len(reactor._timers._wheel) < before + 15


def test_a_request_of_many_parts(reactor: Reactor, serve: Any, connect: Any) -> None:
    """More than the kernel takes at a time, before anything waits for a reply and after."""
    channel = connect(serve(Recorder()))
    wait(reactor, lambda: channel.connected)
    outcomes: list[Any] = []
    for timeout in (TIMEOUT_S, 2 * TIMEOUT_S, 1.5 * TIMEOUT_S):
        channel.request(*([b"part"] * 3000), on_reply=outcomes.append, timeout=timeout)
    wait(reactor, lambda: len(outcomes) == 3)
    assert [bytes(body) for body in outcomes] == [b"part" * 3000] * 3


def test_unexpected_replies_are_counted_and_ignored(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder()
    channel = connect(serve(handler))
    assert call(reactor, channel, b"x") == b"x"
    handler.connections[0].send(encode(999, b"?"), encode(1, b"again"), encode(-1, b"control"))
    wait(reactor, lambda: channel.unknown_replies == 3)
    assert call(reactor, channel, b"y") == b"y"


def test_requests_that_are_empty_or_too_long_are_refused(reactor: Reactor, serve: Any, connect: Any) -> None:
    server = serve(Recorder(), limits=Limits(max_body_bytes=100))
    channel = connect(server)
    for _ in range(2):  # before it is connected, perhaps, and after
        refused = ask(reactor, channel, b"x" * 101)
        assert type(refused) is InvalidArgumentError and "100 bytes" in str(refused)
    with pytest.raises(InvalidArgumentError, match="heartbeat"):
        ask(reactor, channel, b"")
    assert call(reactor, channel, b"x" * 100) == b"x" * 100


def test_no_descriptors_for_a_while(
    reactor: Reactor, serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Recorder())
    with monkeypatch.context() as scarce:
        scarce.setattr(dialer, "socket", Mock(**{"socket.side_effect": OSError(errno.EMFILE, "too many open files")}))
        channel = connect(server, random=lambda: 0.0)
        refused = ask(reactor, channel, b"x")
        assert type(refused) is NotConnectedError and "too many" in str(refused)
    wait(reactor, lambda: channel.connected)
    assert call(reactor, channel, b"x") == b"x"


def test_a_lost_connection_is_made_again(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    channel = connect(serve(handler), random=lambda: 0.0)
    outcomes: list[Any] = []
    channel.request(b"x", on_reply=outcomes.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: bool(handler.requests))
    handler.connections[0].close()
    wait(reactor, lambda: bool(outcomes))
    assert type(outcomes[0]) is DisconnectedError and isinstance(outcomes[0], OutcomeUnknownError)
    handler.answer = bytes
    assert call(reactor, channel, b"y") == b"y"
    assert len(handler.connections) == 2


def test_channel_without_a_listener_raises_not_connected_error_until_one_listens(reactor: Reactor, opened: Any) -> None:
    address = ("127.0.0.1", *free_ports(1))
    channel = opened.enter_context(Channel(reactor, address))
    first = ask(reactor, channel, b"waits for the first attempt")
    assert type(first) is NotConnectedError and not isinstance(first, OutcomeUnknownError)
    assert type(ask(reactor, channel, b"refused at once")) is NotConnectedError
    assert not channel.connected and channel.error is not None
    server = opened.enter_context(Server(reactor, Recorder(), port=address[1]))
    wait(reactor, lambda: channel.connected)
    assert call(reactor, channel, b"now") == b"now" and server.refused == 0


def test_a_channel_looks_up_host_names(reactor: Reactor, opened: Any) -> None:
    server = opened.enter_context(Server(reactor, Recorder(), host="127.0.0.1"))
    channel = opened.enter_context(Channel(reactor, ("localhost", server.address[1])))
    wait(reactor, lambda: channel.connected or channel.error is not None)
    nowhere = opened.enter_context(Channel(reactor, ("no.such.host.invalid", 1)))
    assert type(ask(reactor, nowhere, b"x")) is NotConnectedError
    assert "no.such.host" in str(nowhere.error)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"expected": NodeIdentity(cluster="other")}, WrongClusterError),
        ({"expected": NodeIdentity(incarnation=b"j" * 16)}, IncarnationError),
        ({"secret": Secret(b"another secret, as long")}, AuthenticationError),
        ({"secret": None}, AuthenticationError),
    ],
)
def test_a_server_that_does_not_fit(
    settings: dict[str, Any], error: type[Exception], reactor: Reactor, serve: Any, connect: Any
) -> None:
    handler = Recorder()
    server = serve(handler, identity=NODE, secret=SECRET)
    channel = connect(server, **{"secret": SECRET, "expected": NODE} | settings)
    outcome = ask(reactor, channel, b"x")
    assert type(outcome) is NotConnectedError and type(outcome.__cause__) is error
    wait(reactor, lambda: server.refused > 0)
    assert not handler.connections
    right = connect(server, secret=SECRET, expected=NODE)
    assert call(reactor, right, b"x") == b"x"


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", encode(-1, b"nonsense"), encode(5, b"x")])
def test_a_server_of_another_kind(first: bytes, reactor: Reactor, opened: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = opened.enter_context(Channel(reactor, listener.getsockname()))
        sock, _ = listener.accept()
        with sock:
            sock.sendall(first)
        outcome = ask(reactor, channel, b"x")
        assert type(outcome) is NotConnectedError
        channel.close()


def test_requests_to_a_killed_server_fail_as_disconnected(reactor: Reactor, opened: Any, process: Any) -> None:
    server, address = process
    channel = opened.enter_context(Channel(reactor, address))
    assert call(reactor, channel, b"x") == b"x"
    server.send_signal(signal.SIGSTOP)
    outcomes: list[Any] = []
    channel.request(b"y", on_reply=outcomes.append, timeout=TIMEOUT_S)
    server.kill()
    wait(reactor, lambda: bool(outcomes))
    assert type(outcomes[0]) is DisconnectedError


def test_a_channel_notices_a_stopped_server_by_its_silence(reactor: Reactor, opened: Any, process: Any) -> None:
    """SIGSTOP: its kernel still acknowledges; only heartbeats tell. Memory does not grow meanwhile."""
    server, address = process
    limits = Limits(heartbeat_ms=200, silence_ms=3000, stall_ms=60_000, queued_bytes=1 << 20)
    channel = opened.enter_context(Channel(reactor, address, limits=limits))
    assert call(reactor, channel, b"x") == b"x"
    outcomes: list[Any] = []
    channel.request(b"held", on_reply=outcomes.append, timeout=TIMEOUT_S)
    os.kill(server.pid, signal.SIGSTOP)
    wait(reactor, lambda: bool(outcomes))
    assert type(outcomes[0]) is DisconnectedError and type(outcomes[0].__cause__) is PeerTimeoutError
    os.kill(server.pid, signal.SIGCONT)
    wait(reactor, lambda: channel.connected)
    while (reply := ask(reactor, channel, b"z")) != b"z":
        assert isinstance(reply, NotConnectedError | DisconnectedError)


def test_closing_a_channel_settles_every_request(reactor: Reactor, serve: Any, connect: Any) -> None:
    handler = Recorder(answer=None)
    channel = connect(serve(handler))
    outcomes: list[Any] = []
    channel.request(b"x", on_reply=outcomes.append, timeout=TIMEOUT_S)
    wait(reactor, lambda: bool(handler.requests))
    channel.close()
    assert [type(outcome) for outcome in outcomes] == [DisconnectedError]
    with pytest.raises(ClosedError):
        channel.request(b"x", on_reply=outcomes.append, timeout=1.0)
    fresh = connect(serve(handler))
    fresh.request(b"x", on_reply=outcomes.append, timeout=TIMEOUT_S)
    fresh.close()
    assert len(outcomes) == 2


def test_close_waits_until_every_request_has_its_outcome(reactor: Reactor, serve: Any, connect: Any) -> None:
    """Whoever closes may look at any moment: while somebody is being told, it is not over."""
    handler = Recorder(answer=None)
    channel = connect(serve(handler))
    over: list[bool] = []
    for number in range(3):
        channel.request(b"%d" % number, on_reply=lambda _: over.append(channel._is_released()), timeout=TIMEOUT_S)
    wait(reactor, lambda: len(handler.requests) == 3)
    channel.close()
    assert over == [False] * 3
    assert channel._is_released()


def test_a_channel_that_a_callback_has_closed_takes_nothing_more(reactor: Reactor, serve: Any, connect: Any) -> None:
    channel = connect(serve(Recorder()))
    assert call(reactor, channel, b"x") == b"x"
    refused: list[ClosedError] = []

    def close() -> None:
        channel.close()
        try:
            channel.request(b"y", on_reply=print, timeout=TIMEOUT_S)
        except ClosedError as error:
            refused.append(error)

    reactor.call_soon(close)
    wait(reactor, lambda: not channel.connected)
    assert len(refused) == 1 and channel.inflight == 0


def test_a_closed_reactor_settles_everything(opened: Any, process: Any) -> None:
    reactor = opened.enter_context(Reactor())
    reactor.start()
    channel = opened.enter_context(Channel(reactor, process[1]))
    assert call(reactor, channel, b"x") == b"x"
    os.kill(process[0].pid, signal.SIGSTOP)
    outcomes: list[Any] = []
    channel.request(b"x", on_reply=outcomes.append, timeout=TIMEOUT_S)
    reactor.close()
    channel.close()
    assert [type(outcome) for outcome in outcomes] == [DisconnectedError]


def test_exception_of_an_on_reply_callback_is_logged_and_harmless(
    reactor: Reactor, serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    channel = connect(serve(Recorder()))
    channel.request(b"x", on_reply=lambda _: 1 / 0, timeout=TIMEOUT_S)
    assert call(reactor, channel, b"y") == b"y"
    assert "ZeroDivisionError" in caplog.text
    wait(reactor, lambda: channel.inflight == 0)


def test_garbage_collected_channel_emits_a_resource_warning(reactor: Reactor, serve: Any) -> None:
    handler = Recorder()
    kept = [Channel(reactor, serve(handler).address)]
    wait(reactor, lambda: kept[0].connected)
    forgotten(reactor, kept, "unclosed channel")
    wait(reactor, lambda: bool(handler.ends))


def test_garbage_collected_channel_with_a_pending_request_emits_a_resource_warning(
    reactor: Reactor, serve: Any
) -> None:
    """Also when who waits for the reply has the channel, and replies have come before."""
    handler = Recorder(lambda body: None if body == b"held" else body)
    kept = [Channel(reactor, serve(handler).address)]
    assert call(reactor, kept[0], b"x") == b"x"
    kept[0].request(b"held", on_reply=partial(setattr, kept[0], "came"), timeout=TIMEOUT_S * 60)
    wait(reactor, lambda: len(handler.requests) == 2)
    forgotten(reactor, kept, "unclosed channel")
    wait(reactor, lambda: bool(handler.ends))


def test_reconnect_delays_double_between_bounds() -> None:
    low, high = Backoff(0.02, 1.0, lambda: 0.0), Backoff(0.02, 1.0, lambda: 1.0)
    assert [high.next_s() for _ in range(8)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert [low.next_s() for _ in range(3)] == [0.01, 0.02, 0.04]
    high.reset()
    assert high.next_s() == 0.02
