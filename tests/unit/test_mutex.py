"""The lock of native code, as Python code sees it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyreplog._native.system.mutex import Mutex
from tests.waiting import PATIENCE_S


def test_mutex_is_held_inside_a_with_block() -> None:
    mutex = Mutex()
    with mutex:
        assert mutex.locked()
    assert not mutex.locked()
    with pytest.raises(ValueError, match="planted"), mutex:
        raise ValueError("planted")
    assert not mutex.locked()


def test_others_wait_and_run_meanwhile() -> None:
    """One at a time is in the block; who waits does not keep the one in it from running."""
    mutex, inside, most = Mutex(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with mutex:
                inside += 1
                most = max(most, inside)
                Path().stat()  # others have the GIL
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert most == 1
