"""What blocks, done for one topic by the cluster's workers: one job at a time; what failed is tried again later."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from pyreplog.ledger.driver import Runtime
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.model.event_queue import EventQueue

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1


class Jobs:
    """Outcomes are events of `events`."""

    def __init__(self, name: str, events: EventQueue, runtime: Runtime) -> None:
        self._name, self._events, self._runtime = name, events, runtime
        self._backoff = Backoff(RETRY_FIRST_S, BACKOFF_MOST_S, random.random)
        self._is_over = False
        self.waits_for = ""
        """Why something failed, that is tried again; "": nothing did."""
        self.is_busy = False
        """A job is under way."""
        self.is_resting = False
        """Something failed a moment ago, and is tried again later."""

    def work(
        self, job: Callable[[], Any], then: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Have a worker do `job`; `then` is told what it gave, or `failed` what it raised."""
        self.is_busy = True

        def work() -> None:
            try:
                result = job()
            except Exception as error:
                failure = error
                self._events.post(lambda: done(failed, failure))
            else:
                self._events.post(lambda: done(then, result))

        def done(tell: Callable[[Any], object], what: Any) -> None:
            self.is_busy = False
            if tell is then:
                self.waits_for = ""
            tell(what)

        self._runtime.work(work)

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self._backoff.reset()
        self.waits_for = ""

    def pause(self, seconds: float, then: Callable[[], object]) -> None:
        """Do nothing for a while; then call `then`."""
        self.is_resting = True

        def rested() -> None:
            self.is_resting = False
            if not self._is_over:
                then()

        self._runtime.wake_after(seconds, lambda: self._events.post(rested))

    def end(self) -> None:
        """Nothing is tried again."""
        self._is_over = True

    def rest(self, error: BaseException, then: Callable[[], object]) -> None:
        """Something failed: call `then` after a while, a longer one each time. Told once for as long as that lasts."""
        level = logging.DEBUG if self.waits_for == str(error) else logging.WARNING
        logger.log(level, "topic %s: publishers wait, if no ledger is open; tried again: %s", self._name, error)
        self.waits_for = str(error)
        self.pause(self._backoff.next_s(), then)
