"""Where threads wait for a group commit: one writes at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from pyreplog._native.log.gate import CommitGate
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def no_hurry() -> Iterator[None]:
    """A thread goes on until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)
    yield
    sys.setswitchinterval(before)


def test_begin_io_waits_for_the_writing_thread(no_hurry: None) -> None:
    gate, order = CommitGate(0), []

    def write() -> None:
        order.append("asks")
        gate.begin_io()
        order.append("writes")
        gate.end_io()

    gate.begin_io()
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    until(lambda: order)
    assert order == ["asks"] and gate.writing
    gate.end_io()
    thread.join(PATIENCE_S)
    assert order == ["asks", "writes"] and not gate.writing
