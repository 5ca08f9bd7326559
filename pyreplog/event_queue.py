"""EventQueue: runs the events of a topic one at a time, on the thread that finds the queue idle.

No thread waits for another.
"""

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
    """The serial executor of a topic's driver.

    Events have the rules of the steps of ledgers: callbacks of topics are also callbacks of ledgers, and must not wait
    (see `serial_executor.check_may_wait`). Errors that an event raises are logged.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._turn = threading.Lock()  # held while events run; no thread blocks on it, since events run callbacks

    def post(self, event: Event) -> None:
        """Run an event now; if another thread runs events, that thread runs it.

        Events run in the order of their posts.
        """
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
