"""Events of one thing, taken one at a time by whoever finds nobody at work; no thread waits for another."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from pyreplog._native.machines.serial_executor import SerialExecutor
from pyreplog.defer_sigint import defer_sigint

logger = logging.getLogger(__name__)

Event = Callable[[], object]


class EventQueue(SerialExecutor):
    """Steps of a driver of topics: they take turns with those of ledgers, so callbacks of topics are callbacks of
    ledgers too, which must not wait (see `serial_executor.check_may_wait`). What a step raises is logged."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._turn = threading.Lock()  # held while callbacks run, so never waited for

    def post(self, event: Event) -> None:
        """Have it done: now, or by the thread that is at it. Events are done in the order they are posted."""
        with defer_sigint:
            self._events.append(event)
            self._go_on()

    def _run(self) -> None:
        events = self._events
        while events:
            if not self._turn.acquire(False):
                return
            try:
                for _ in range(len(events)):
                    try:
                        events.popleft()()
                    except Exception:
                        logger.exception("a step of a topic failed")
            finally:
                self._turn.release()
