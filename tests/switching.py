"""Two threads that switch as often as possible, so that a test finds a data race soon."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_PATIENCE_S = 60.0


@contextmanager
def eager_switching() -> Iterator[None]:
    """Let the interpreter switch between threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def race(times: int, act: Callable[[], object], ask: Callable[[], object]) -> None:
    """Call `act` so many times, and `ask` in another thread all the while. Raise the error of either."""
    is_over = threading.Event()

    def go_on_asking() -> None:
        while not is_over.is_set():
            ask()

    with eager_switching(), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(go_on_asking)
        try:
            for _ in range(times):
                act()
                if asked.done():
                    break
        finally:
            is_over.set()
        asked.result(_PATIENCE_S)
