"""Timers: delayed calls, made by one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from pyreplog.handles import Handle

logger = logging.getLogger(__name__)


class Timers(Handle):
    """Makes delayed calls, with one thread. Any thread may use it; the calls must not block.

    Calls that are pending when it is closed are dropped.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], object]]] = []  # a heap
        self._numbers = itertools.count()
        self._is_stopping = False
        super().__init__("timers of a partition client")
        self._thread = threading.Thread(target=self._run, name="pyreplog-partition-client", daemon=True)
        self._thread.start()

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Make a call after a delay in seconds."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), call))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_stopping and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._is_stopping:
                    return
                call = heapq.heappop(self._due)[2]
            try:
                call()
            except Exception:
                logger.exception("a call of a timer failed")

    def _do_close(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._due.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
