"""Waiting for what other threads and processes do, and nobody says when."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0


def until(condition: Callable[[], object]) -> None:
    """Until it holds; it must go on to hold, for a moment may be missed."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def stand_still(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP, and until all its threads stand: they go on until one of them has had the time to see it."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
