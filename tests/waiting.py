"""Waiting for what other threads and processes do, and nobody says when."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

PATIENCE_S = 60.0

T = TypeVar("T")


def until(condition: Callable[[], T], patience_s: float = PATIENCE_S, pause_s: float = 0.001) -> T:
    """What it gives as soon as that is true; it must go on to be, for a moment may be missed."""
    deadline = time.monotonic() + patience_s
    while not (actual_condition := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause_s)
    return actual_condition


def until_none(missing: Callable[[], Collection[str]], patience_s: float = PATIENCE_S, pause_s: float = 0.02) -> None:
    """Return as soon as nothing is missing; when patience is over, say what still is."""
    deadline = time.monotonic() + patience_s
    while actual_missing := missing():
        assert time.monotonic() < deadline, f"missing after {patience_s:.0f} s: {'; '.join(actual_missing)}"
        time.sleep(pause_s)


def stand_still(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP, and until all its threads stand: they go on until one of them has had the time to see it."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
