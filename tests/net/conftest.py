"""A reactor that runs, and what is opened on it, closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pyreplog.net.channel import Channel
from pyreplog.net.connection import Handler
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server

Serve = Callable[..., Server]
Connect = Callable[..., Channel]


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with Reactor() as reactor:
        reactor.start()
        yield reactor


@pytest.fixture
def opened(reactor: Reactor) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(reactor: Reactor, opened: ExitStack) -> Serve:
    def serve(handler: Handler, **settings: Any) -> Server:
        return opened.enter_context(Server(settings.pop("reactor", reactor), handler, **settings))

    return serve


@pytest.fixture
def connect(reactor: Reactor, opened: ExitStack) -> Connect:
    def connect(server: Server, **settings: Any) -> Channel:
        return opened.enter_context(Channel(settings.pop("reactor", reactor), server.address, **settings))

    return connect
