"""Waiting for what other threads and processes do, and nobody says when."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0


def until(condition: Callable[[], object]) -> None:
    """Until it holds; it must go on to hold, for a moment may be missed."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)
