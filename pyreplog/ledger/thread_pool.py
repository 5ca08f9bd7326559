"""A few threads for what blocks: calls to the metadata store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

logger = logging.getLogger(__name__)

Job = Callable[[], object]


class ThreadPool:
    """Does jobs in the order they come, `count` at a time. Any thread.

    The threads are daemons, as those of a concurrent.futures pool are not: a program's own threads may still be closing
    their ledgers while the interpreter shuts down.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed, self._name = False, name
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have `job()` called soon. After `close`: it is not."""
        if self._closed:
            logger.debug("a job came after its cluster was closed: %s", job)
        else:
            self._jobs.put(job)

    def close(self, timeout: float | None = None) -> bool:
        """Do what was submitted, and end; returns whether all threads have. Not for the workers themselves.

        After `timeout` seconds (None: never) jobs that were not begun are dropped, and those that still wait for
        something are left alone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        if dropped := self._drop():
            logger.warning("%s: %d jobs were dropped that had not begun when the time was over", self._name, dropped)
        return not any(thread.is_alive() for thread in self._threads)

    def _drop(self) -> int:
        """How many jobs were left. A thread that ends its job now finds none."""
        dropped = 0
        with suppress(Empty):
            while True:
                dropped += self._jobs.get_nowait() is not None
        for thread in self._threads:
            if thread.is_alive():
                self._jobs.put(None)
        return dropped


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            logger.exception("a job raised")
        del job  # what it holds is not needed while this thread waits
