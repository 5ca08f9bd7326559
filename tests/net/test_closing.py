"""Ends of connections and reactors that meet other threads half way."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import pyreplog.net.server as servers
from pyreplog.errors import ClosedError, DisconnectedError, NotConnectedError, ReplogError
from pyreplog.net.channel import Channel
from pyreplog.net.connection import Connection
from pyreplog.net.driver_lock import DriverLock
from pyreplog.net.handshake import Peer
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.net.server_connection import Budget, ServerConnection
from pyreplog.net.wakeup import Wakeup
from tests.net.peers import NODE, TIMEOUT_S, RawClient, Recorder, wait

PEER = Peer(NODE, 1, 1000, 60.0, None)


def in_time(call: Callable[[], object]) -> None:
    """In a thread of its own, which must not hang."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive(), "it hangs"


def test_descriptor_is_closed_while_the_connection_lock_is_held(reactor: Reactor) -> None:
    """Its number may be another connection's at once."""
    held: list[bool] = []

    class Watched:
        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock
            self.fileno, self.recv, self.recv_into, self.sendmsg = sock.fileno, sock.recv, sock.recv_into, sock.sendmsg

        def close(self) -> None:
            held.append(connection._lock.locked())
            self._sock.close()

    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        handler = Recorder()
        connection = Connection(reactor, Watched(ours), handler, Limits(), PEER)
        reactor.call_soon(connection.open)
        wait(reactor, lambda: bool(handler.connections))
        connection.close()
        wait(reactor, lambda: bool(handler.ends))
    assert held == [True]


def test_a_reply_that_fails_after_the_reactor_was_closed_does_not_hang() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handler, outcomes = Recorder(), list[bool]()
    with Reactor() as reactor:
        budget = Budget(1 << 20, lambda: None)
        connection = ServerConnection(reactor, ours, handler, Limits(), PEER, budget, lambda _: None)
        reactor.call_soon(connection.open)
        wait(reactor, lambda: bool(handler.connections))
    theirs.close()
    in_time(lambda: outcomes.append(connection.reply(1, b"to nobody")))
    connection.close()
    assert outcomes == [False] and [type(error) for error in handler.ends] == [ClosedError]


def test_a_request_that_fails_after_the_reactor_was_closed_does_not_hang() -> None:
    outcomes: list[Any] = []

    def request() -> None:
        with pytest.raises(ClosedError, match="reactor"):
            channel.request(b"x", on_reply=outcomes.append, timeout=TIMEOUT_S)

    with Reactor() as reactor, Server(reactor, Recorder()) as server:
        channel = Channel(reactor, server.address)
        wait(reactor, lambda: channel.connected)
        connection = channel._connection
        assert connection is not None
        channel.request(b"sent", on_reply=outcomes.append, timeout=TIMEOUT_S)
        reactor.close()
        connection._stream.close()  # what is sent now fails
        in_time(request)
        channel.close()
    assert [type(outcome) for outcome in outcomes] == [DisconnectedError]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have as long as it takes."""
    monkeypatch.setattr(servers, "_PARTING_S", TIMEOUT_S)


def test_a_drain_loses_no_reply_where_more_was_asked(reactor: Reactor, patient: None) -> None:
    """What nobody reads any more lies in the server's socket; the reply is longer than its client's buffer takes."""
    handler, drained = Recorder(answer=None), list[bool]()
    with Server(reactor, handler) as server, RawClient(server) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(1, b"asked")
        wait(reactor, lambda: bool(handler.requests))
        connection: Any = handler.connections[0]
        connection._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        thread = threading.Thread(target=lambda: drained.append(server.drain(TIMEOUT_S)))
        thread.start()
        wait(reactor, lambda: server._listener.closed)
        client.send(2, b"too late")
        wait(reactor, lambda: connection.unread_bytes > 0)
        body = bytes(150_000)
        assert connection.reply(1, body)
        wait(reactor, lambda: connection.error is not None)
        rounds: list[None] = []
        reactor.call_soon(lambda: rounds.append(None))  # behind an end, if this is one
        wait(reactor, lambda: bool(rounds))
        assert not connection.send(b"more")
        assert client.reply() == (1, body)
        client.send(3, b"much too late")
        assert client.ended()
        client.sock.close()
        thread.join(TIMEOUT_S)
        assert drained == [True] and len(handler.ends) == 1


def test_a_drain_ends_though_a_client_stays(reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_PARTING_S", 0.01)
    handler = Recorder()
    with Server(reactor, handler) as server, RawClient(server) as client:
        assert client.request(1, b"x") == b"x"
        assert server.drain(TIMEOUT_S) is True
        assert client.ended() and [type(error) for error in handler.ends] == [ClosedError]


def test_a_drain_keeps_its_time_though_a_client_stays(reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_PARTING_S", TIMEOUT_S)
    handler = Recorder()
    with Server(reactor, handler) as server, RawClient(server) as client:
        assert client.request(1, b"x") == b"x"
        began = time.monotonic()
        assert server.drain(0.04) is True
        assert time.monotonic() - began < TIMEOUT_S / 2
        assert client.ended()


@pytest.mark.parametrize(("timeout", "parting_s"), [(4.0, 1.0), (60.0, 2.0)])
def test_the_last_quarter_of_a_drain_is_for_clients_to_go(
    timeout: float, parting_s: float, reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most two seconds of it; the rest is for replies."""
    waits, drive = list[float | None](), Reactor.drive

    def driven(self: Reactor, done: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append(timeout)
        return drive(self, done, timeout)

    with Server(reactor, Recorder()) as server:
        monkeypatch.setattr(Reactor, "drive", driven)
        assert server.drain(timeout) is True
    assert waits[:2] == [timeout - parting_s, parting_s]


def test_concurrent_close_and_driver_finish_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who drove has seen that there is something left to close, and another one closes it."""
    reactor, closed, outcomes = Reactor(), threading.Event(), list[ReplogError]()

    def take_late(driver_lock: DriverLock) -> bool:
        if threading.current_thread() is thread:
            assert closed.wait(TIMEOUT_S)
        return take(driver_lock)

    def drive() -> None:
        try:
            reactor.drive(lambda: False, TIMEOUT_S)
        except ReplogError as error:
            outcomes.append(error)

    take = DriverLock.take
    thread = threading.Thread(target=drive)
    monkeypatch.setattr(DriverLock, "take", take_late)
    driving = threading.Event()
    reactor.call_soon(driving.set)
    thread.start()
    assert driving.wait(TIMEOUT_S)
    reactor.close()
    closed.set()
    thread.join(TIMEOUT_S)
    assert [type(error) for error in outcomes] == [ClosedError]


def test_wakeup_of_a_closed_reactor_writes_into_no_other_descriptor() -> None:
    """It had the bell in its hand; the descriptor's number is not given to another file before it lets go."""
    reactor = Reactor()
    wakeup = reactor._wakeup
    assert wakeup is not None
    number = wakeup.fd
    reactor.close()
    wakeup.ring()
    assert os.eventfd_read(number) >= 1
    del wakeup
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_bell_takes_any_number_of_rings() -> None:
    wakeup = Wakeup()
    wakeup.clear()
    os.eventfd_write(wakeup.fd, (1 << 64) - 2)
    wakeup.ring()
    wakeup.clear()
    wakeup.clear()


def test_a_child_refuses_a_channel_that_was_in_use_when_it_was_forked(reactor: Reactor) -> None:
    """The thread that had its lock is not there."""
    with Server(reactor, Recorder()) as server, Channel(reactor, server.address) as channel:
        with channel._lock:
            pid = os.fork()
            if pid == 0:
                threading.Timer(TIMEOUT_S, os._exit, (1,)).start()
                try:
                    channel.request(b"x", on_reply=print, timeout=1.0)
                except NotConnectedError:
                    os._exit(2)
                except ReplogError:
                    os._exit(0)
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_does_not_keep_the_port_of_its_parents_server(reactor: Reactor) -> None:
    """A program that was started by fork outlives a server: clients would connect to it, and wait for their hello."""
    ours, theirs = socket.socketpair()
    with ours, theirs, Server(reactor, Recorder()) as server:
        address = server.address
        pid = os.fork()
        if pid == 0:
            ours.close()
            theirs.sendall(b"!")
            theirs.recv(1)
            os._exit(0)
        ours.settimeout(TIMEOUT_S)
        assert ours.recv(1) == b"!"
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=TIMEOUT_S).close()
        ours.sendall(b"!")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
