"""A running reactor, and the objects that use it, which are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog

from .records import FILE_BYTES

TIMEOUT_S = 60.0

Until = Callable[[Callable[[], bool]], None]
MakeLog = Callable[[str], RawLog]


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    with Reactor() as reactor:
        reactor.start()
        yield reactor


@pytest.fixture
def opened(reactor: Reactor, tmp_path: Path) -> Iterator[ExitStack]:
    """Closed before the reactor, and before the files are deleted."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def until(reactor: Reactor) -> Until:
    def until(done: Callable[[], bool]) -> None:
        assert reactor.drive(done, TIMEOUT_S), "it did not come to pass"

    return until


@pytest.fixture
def make_log(opened: ExitStack, tmp_path: Path) -> MakeLog:
    def make_log(name: str) -> RawLog:
        return opened.enter_context(RawLog(tmp_path / name, file_bytes=FILE_BYTES))

    return make_log
