"""A link: one connection for a handler, made again for as long as it is wanted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from pyreplog._native.net.frame import encode
from pyreplog.errors import (
    ClosedError,
    DisconnectedError,
    InvalidArgumentError,
    NotConnectedError,
    ReplogError,
    WrongServiceError,
)
from pyreplog.net.connection import Connection
from pyreplog.net.dialer import Dialer, ReconnectingConnection
from pyreplog.net.handshake import NodeIdentity
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from tests.net.conftest import Serve
from tests.net.peers import NODE, Recorder, wait
from tests.ports import free_ports

MakeLink = Callable[..., ReconnectingConnection]


@pytest.fixture
def link(reactor: Reactor, opened: ExitStack) -> MakeLink:
    def link(address: tuple[str, int], handler: Recorder, **settings: Any) -> ReconnectingConnection:
        return opened.enter_context(ReconnectingConnection(reactor, address, handler, random=lambda: 0.0, **settings))

    return link


def test_a_link_carries_frames_in_both_directions(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    server = serve(Recorder(bytes.upper))
    client = Recorder(answer=None)
    link(server.address, client)
    wait(reactor, lambda: bool(client.connections))
    client.connections[0].send(encode(7, b"hello"))
    wait(reactor, lambda: bool(client.requests))
    assert client.requests == [(client.connections[0], 7, b"HELLO")]
    assert client.connections[0].unread_bytes == 0


def test_link_reconnects_and_keeps_the_error_of_failed_attempts(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    server = serve(Recorder(), port=free_ports(1)[0])
    client = Recorder()
    connection = link(server.address, client)
    wait(reactor, lambda: connection.connected)
    next(iter(server.connections)).close()
    wait(reactor, lambda: len(client.connections) == 2)
    assert [type(error) for error in client.ends] == [DisconnectedError]
    assert connection.error is None
    server.close()
    wait(reactor, lambda: connection.error is not None and not connection.connected and len(client.ends) == 2)
    wait(reactor, lambda: isinstance(connection.error, DisconnectedError | NotConnectedError))
    serve(Recorder(), port=server.address[1])
    wait(reactor, lambda: connection.connected)


def test_redirect_leaves_an_address_that_does_not_answer(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    first, second = Recorder(), Recorder()
    servers = serve(first), serve(second)
    client = Recorder()
    connection = link(servers[0].address, client)
    wait(reactor, lambda: bool(client.connections))
    connection.redirect(servers[1].address)
    connection.redirect(servers[1].address)
    wait(reactor, lambda: bool(second.connections) and connection.connected)
    assert [type(error) for error in client.ends] == [ClosedError]


def test_redirect_while_the_address_does_not_answer_connects_to_the_new_one(
    reactor: Reactor, serve: Serve, link: MakeLink
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = link(silent.getsockname(), Recorder())
        silent.accept()[0].close()
        connection.redirect(serve(Recorder()).address)
        wait(reactor, lambda: connection.connected)


def test_a_server_of_another_kind_is_not_taken(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    server = serve(Recorder(), identity=NODE)
    client = Recorder()
    connection = link(server.address, client, expected=NodeIdentity(service="other"))
    wait(reactor, lambda: isinstance(connection.error, WrongServiceError))
    assert not client.connections


def test_a_link_looks_up_host_names(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    server = serve(Recorder())
    connection = link(("localhost", server.address[1]), Recorder())
    wait(reactor, lambda: connection.connected)
    nowhere = link(("no-such-host.invalid", 1), Recorder())
    wait(reactor, lambda: nowhere.error is not None)
    assert "no-such-host.invalid" in str(nowhere.error)


@pytest.mark.parametrize("host", ["a\0b", "\ud800", "a" * 70, ".."], ids=ascii)
def test_invalid_host_name_is_reported_as_the_error_of_the_link(host: str, reactor: Reactor, link: MakeLink) -> None:
    nowhere = link((host, 1), Recorder())
    wait(reactor, lambda: isinstance(nowhere.error, InvalidArgumentError))


@pytest.mark.parametrize("host", ["localhost", "no-such-host.invalid"])
def test_name_lookup_that_outlives_its_reactor_raises_nothing(host: str) -> None:
    """An exception in that thread would be whoever's test runs then."""
    reactor = Reactor()
    dialer = Dialer(reactor, Mock(), identity=NodeIdentity(), expected=NodeIdentity(), limits=Limits())
    reactor.close()
    dialer._look_up(object(), (host, 1))


def test_close_waits_until_the_handler_was_called(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    """Whoever closes may look at any moment: while the handler is being told, it is not over."""
    over: list[bool] = []

    class Looking(Recorder):
        def closed(self, connection: Connection, error: ReplogError) -> None:
            over.append(new_connection._is_released())

    new_connection = link(serve(Recorder()).address, Looking())
    wait(reactor, lambda: new_connection.connected)
    new_connection.close()
    assert over == [False]
    assert new_connection._is_released()


def test_a_closed_link_ends_its_connection(reactor: Reactor, serve: Serve, link: MakeLink) -> None:
    client = Recorder()
    server = serve(Recorder())
    connection = link(server.address, client)
    wait(reactor, lambda: connection.connected)
    connection.close()
    assert [type(error) for error in client.ends] == [ClosedError]
    with pytest.raises(ClosedError):
        connection.redirect(("127.0.0.1", 1))
    wait(reactor, lambda: not server.connections)
